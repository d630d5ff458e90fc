"""The job of `stock_workers` that is ours."""

from benchmarks.stock_plain import note
from drain import job


@job(name="benchmark.stock")
def ours() -> None:
    """Nothing but the note of its time."""
    note()
