"""Keys of a terminal, one by one and without an echo, for a program that redraws its screen."""

from __future__ import annotations

import os
import re
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep

# Sequences of arrows and the like.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.|.)?")

# Function that waits for keys for some seconds; returns an empty text if none came.
Read = Callable[[float], str]


@contextmanager
def reading_keys() -> Iterator[Read]:
    """Read single keys while the block runs; afterwards the terminal is as it was. Ctrl-C raises KeyboardInterrupt.

    Without a terminal on standard input there are no keys, and the function only waits.
    """
    if not sys.stdin.isatty():
        yield _wait
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        # A program that was stopped by Ctrl-Z would leave its screen behind.
        present = termios.tcgetattr(number)
        present[6][termios.VSUSP] = b"\0"
        termios.tcsetattr(number, termios.TCSANOW, present)
        yield lambda seconds: _read(number, seconds)
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _read(number: int, seconds: float) -> str:
    if not select.select([number], [], [], seconds)[0]:
        return ""
    data = os.read(number, 64)
    if not data:
        # The terminal is gone.
        raise KeyboardInterrupt
    return _SEQUENCE.sub("", data.decode(errors="replace"))


def _wait(seconds: float) -> str:
    sleep(seconds)
    return ""
