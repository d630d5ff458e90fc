"""One line about the machine, the servers and the packages of a measurement."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import servers

if TYPE_CHECKING:
    from drain.embedded import Services

_WHOSE = {servers.EMBEDDED: "the embedded ones", servers.DEBIAN: "Debian's"}


def line(started: Services, kind: str, packages: tuple[str, ...] = ()) -> str:
    """Describe the environment and the date of a measurement.

    Args:
        started: Running servers.
        kind: Kind of these servers.
        packages: Packages to name in addition to those that every part uses.
    """
    named = ", ".join(f"{name} {version(name)}" for name in ("rq", "redis", "hiredis", "psycopg", *packages))
    return (
        f"Machine: {os.cpu_count()} cores, {_processor()}, {platform.system()} {platform.release()}. "
        f"Servers: {_WHOSE[kind]}, {servers.title(started)}; fsync on. "
        f"Python {platform.python_version()}, {named}. {datetime.now(UTC):%Y-%m-%d}."
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
