"""How a worker is to work, as the command line says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOptions:
    """What `drain work` has been told.

    Attributes:
        queues: Names of the queues, the first of which comes first.
        processes: How many work at the same time.
        prefetch: How many jobs each takes at a time; None: as many as it is about to run.
        concurrency: How many `async def` jobs each runs at once.
        grace_seconds: What runs when the worker is told to stop has so long to end.
        max_jobs: After so many a process is replaced; None for never.
        max_memory_mb: As soon as it has more megabytes resident, likewise.
        burst: End when the queues are empty.
        metrics_host, metrics_port: Where to serve HTTP for machines; port 0 for nowhere.
        only_tracked: Run nothing but tracked jobs, in whatever queue; plain RQ jobs are refused.
    """

    queues: Sequence[str]
    processes: int = 1
    prefetch: int | None = None
    concurrency: int = 100
    grace_seconds: float = 30.0
    max_jobs: int | None = None
    max_memory_mb: int | None = None
    burst: bool = False
    only_tracked: bool = False
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
