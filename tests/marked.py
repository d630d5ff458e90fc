"""Processes that are found by a variable in their environment, whoever started them."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

on_linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc")


def marked(marker: str) -> list[str]:
    """Command lines of the processes that have this variable, `NAME=text`, in their environment."""
    return [command for command, variables in processes() if marker in variables]


def processes() -> Iterator[tuple[str, list[str]]]:
    """Command line and environment of each process; a zombie has none."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, UnicodeDecodeError):
            command = (folder / "cmdline").read_text().replace("\0", " ")
            yield command, (folder / "environ").read_text().split("\0")
