"""The job of `stock_workers` that is RQ's own: its module imports nothing that RQ has not imported."""

import os
from time import monotonic

TIMES = "STOCK_WORKERS_TIMES"


def note() -> None:
    """Write down when this job ran, by a clock that all processes of the machine share."""
    with open(os.environ[TIMES], "a") as times:  # noqa: PTH123
        times.write(f"{monotonic()}\n")


def plain() -> None:
    """Nothing but the note of its time."""
    note()
