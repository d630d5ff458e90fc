"""Processor time and memory of processes and of all that descend from them."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


def family(roots: Iterable[int]) -> list[int]:
    """The processes themselves, and all that descend from them."""
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
    """User and system time of all of them so far, of those too that have ended and were waited for."""
    total = 0
    for pid in family(roots):
        with suppress(OSError):
            total += sum(int(field) for field in _fields(pid)[11:15])
    return total / _TICKS_A_SECOND


def megabytes(roots: Iterable[int]) -> float:
    """Memory of all of them together; what several share counts in parts."""
    total = 0
    for pid in family(roots):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


def _fields(pid: int) -> list[str]:
    """Those of /proc/pid/stat after the name, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
