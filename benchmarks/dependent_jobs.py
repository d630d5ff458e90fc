"""The job of `benchmarks.dependencies`."""

from __future__ import annotations

from drain.workers import job

QUEUE = "nodes"


@job(name="benchmark.node", queue=QUEUE)
def node() -> None:
    """End at once."""
