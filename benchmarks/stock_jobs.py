"""Job of job-drain for `stock_workers`."""

from benchmarks.stock_plain import note
from drain import job


@job(name="benchmark.stock")
def ours() -> None:
    """Record the time."""
    note()
