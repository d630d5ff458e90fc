"""Plain RQ job for `stock_workers`; it imports only modules that RQ has already imported."""

import os
from time import monotonic

TIMES = "STOCK_WORKERS_TIMES"


def note() -> None:
    """Record the time, by a clock that all processes of the machine share."""
    with open(os.environ[TIMES], "a") as times:  # noqa: PTH123
        times.write(f"{monotonic()}\n")


def plain() -> None:
    """Record the time."""
    note()
