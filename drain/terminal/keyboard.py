"""Single keys of a terminal, without echo."""

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

# Arrows and other escape sequences.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.|.)?")

# Waits this many seconds; empty if no key came.
Read = Callable[[float], str]


@contextmanager
def reading_keys() -> Iterator[Read]:
    """Read single keys during the block; Ctrl-C raises KeyboardInterrupt.

    Without a terminal on standard input, only waits.
    """
    if not sys.stdin.isatty():
        yield _wait
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        # Ctrl-Z would leave the screen behind.
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
        raise KeyboardInterrupt
    return _SEQUENCE.sub("", data.decode(errors="replace"))


def _wait(seconds: float) -> str:
    sleep(seconds)
    return ""
