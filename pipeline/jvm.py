"""Spark's JVM, which never outlives the process that started it.

By itself it would: a JVM that is still starting when its driver goes misses that, and one at work finishes its work
first. So it is started into the process group of a guard, a shell that reads a pipe of which only the driver holds the
other end. Whatever becomes of the driver, SIGKILL included, the guard then asks the group to end, and after a few
seconds no longer asks.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

Process: TypeAlias = subprocess.Popen[bytes]

_END_SECONDS = 3
# A line names the JVM. Python's workers end with it: each reads from it, or from the one that it has started.
_GUARD = f"""
trap '' HUP INT TERM
while read -r line; do jvm=$line; done
kill -s TERM 0
turns=0
while [ -n "$jvm" ] && [ $turns -lt {_END_SECONDS * 10} ] && kill -s 0 "$jvm"; do
  sleep 0.1
  turns=$((turns + 1))
done
kill -s KILL 0
"""

_running: list[Process] = []


@contextmanager
def started(settings: Mapping[str, str]) -> Iterator[None]:
    """Start the JVM that sessions of this process are to use. At the end of the block it is gone.

    Args:
        settings: Of Spark's, by name; those that the JVM itself starts with are among them.

    Raises:
        PySparkException: It has ended before it could be talked to.
    """
    from pyspark import SparkConf, SparkContext, java_gateway

    launch: Any = java_gateway.launch_gateway
    read, write = os.pipe()
    guard = _guard(read)
    gateway = None
    try:
        gateway = launch(SparkConf().setAll(list(settings.items())), {"process_group": guard.pid})
        os.write(write, f"{gateway.proc.pid}\n".encode())
        _running.append(gateway.proc)
        SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm
        yield
    finally:
        os.close(write)
        SparkContext._gateway = SparkContext._jvm = None
        _running.clear()
        if gateway is not None:
            # The guard takes it for alive until it is waited for.
            gateway.proc.wait()
            gateway.shutdown()
        guard.wait()


def running() -> Process | None:
    """Return the JVM that `started` has started in this process, if any."""
    return _running[-1] if _running else None


def end(process: Process) -> None:
    """End a JVM while its block still runs: whatever waits for it fails with a Py4JError."""
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _guard(read: int) -> Process:
    nowhere = subprocess.DEVNULL
    try:
        return subprocess.Popen(
            ["/bin/sh", "-c", _GUARD], stdin=read, stdout=nowhere, stderr=nowhere, process_group=0
        )
    finally:
        os.close(read)
