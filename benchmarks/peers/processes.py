"""Processor time and memory of processes and their descendants."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def family(roots: Iterable[int]) -> list[int]:
    """Find the processes and all their descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int(_fields(int(entry.name))[1])
                children.setdefault(parent, []).append(int(entry.name))
    members = list(roots)
    for member in members:
        members += children.get(member, [])
    return members


def cpu_seconds(roots: Iterable[int]) -> float:
    """Sum the user and system time of all of them so far, including ended processes that were waited for."""
    total = 0
    for pid in family(roots):
        with suppress(OSError):
            total += sum(int(field) for field in _fields(pid)[11:15])
    return total / _TICKS_A_SECOND


def megabytes(roots: Iterable[int]) -> float:
    """Sum the proportional set sizes of all of them."""
    total = 0
    for pid in family(roots):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


def _fields(pid: int) -> list[str]:
    """Read the fields of /proc/pid/stat after the name, which may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
