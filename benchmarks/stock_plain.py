"""Plain RQ job for `stock_workers`: its module imports only modules that RQ has imported."""

import os
from time import monotonic

TIMES = "STOCK_WORKERS_TIMES"


def note() -> None:
    """Write down the time, by a clock that all processes of the machine share."""
    with open(os.environ[TIMES], "a") as times:  # noqa: PTH123
        times.write(f"{monotonic()}\n")


def plain() -> None:
    """Write down the time."""
    note()
