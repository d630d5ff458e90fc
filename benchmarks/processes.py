"""Run commands of job-drain as real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from drain.embedded import Services


@contextmanager
def command(
    services: Services, *words: str, jobs: str = "", patch: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `drain …` while the block runs, then end it by SIGTERM; `patch` is Python that runs first."""
    program = [sys.executable, "-c", f"{patch}\nfrom drain.__main__ import main; main()", *words]
    process = subprocess.Popen(program, env=environment(services, jobs), stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=20)


def environment(services: Services, jobs: str = "") -> dict[str, str]:
    """Build the environment of a command on these servers."""
    return os.environ | {
        "DRAIN_DATABASE_URL": services.database_url,
        "DRAIN_REDIS_URL": services.redis_url,
        "DRAIN_NAMESPACE": "bench",
        "DRAIN_JOBS": jobs,
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }


def cpu_seconds(pid: int) -> float:
    """Read the processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_megabytes(process: subprocess.Popen[bytes]) -> float:
    """Read the peak memory of a process so far."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("this system does not report a process's peak memory")
