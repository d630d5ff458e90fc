"""Jobs of `benchmarks.dependencies` and `benchmarks.batches`."""

from __future__ import annotations

from statistics import median
from time import perf_counter, time

import drain
from drain.workers import job

QUEUE = "nodes"


@job(name="benchmark.node", queue=QUEUE)
def node() -> None:
    """Return immediately."""


@job(name="benchmark.waiting", queue=QUEUE, result="keep")
def waiting(event: str) -> float:
    """Wait for the event; returns the time when the job runs again."""
    drain.wait_for(event)
    return time()


def undo(_result: int) -> None:
    """Return immediately."""


@job(name="benchmark.undone", queue=QUEUE)
def undone() -> None:
    """Die after three steps that can be undone."""
    for number in range(3):
        drain.step.options(undo=undo)(str(number), lambda: 1)
    raise drain.Dead("undo the steps")


@job(name="benchmark.steps", queue=QUEUE, result="keep", timeout_seconds=600)
def steps(number: int) -> list[float]:
    """Alternate steps without and with an undo; returns the median seconds of each."""
    taken: list[list[float]] = [[], []]
    with_undo = drain.step.options(undo=undo)
    for n in range(number):
        began = perf_counter()
        drain.step(f"plain {n}", lambda: 1)
        between = perf_counter()
        with_undo(f"undone {n}", lambda: 1)
        taken[0].append(between - began)
        taken[1].append(perf_counter() - between)
    return [median(seconds) for seconds in taken]
