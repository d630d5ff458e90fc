"""Spark's JVM, which never outlives the process that started it.

Spark alone does not ensure that: a JVM that is still starting when its driver ends does not notice, and a working one
finishes its work first. So the JVM is started into the process group of a guard, a shell that reads a pipe of which
only the driver holds the other end. However the driver ends, by SIGKILL too, the guard then sends SIGTERM to the group,
and SIGKILL a few seconds later.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

Process: TypeAlias = subprocess.Popen[bytes]

# Grace period from SIGTERM to SIGKILL.
_END_SECONDS = 3
# Script of the guard. Each line that it reads names the JVM's process. Spark's Python workers end with the JVM: each
# reads from the JVM, or from a worker that the JVM has started.
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

# JVM that `started` has started, at most one.
_running: list[Process] = []


@contextmanager
def started(settings: Mapping[str, str]) -> Iterator[None]:
    """Start the JVM for the sessions of this process; it has ended when the block ends.

    Args:
        settings: Spark's settings by name, including those that the JVM itself starts with.

    Raises:
        PySparkException: The JVM ended before it accepted a connection.
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
            # Until it is waited for it is a zombie, which the guard would mistake for a live process.
            gateway.proc.wait()
            gateway.shutdown()
        guard.wait()


def running() -> Process | None:
    """Return the JVM that `started` has started in this process, if any."""
    return _running[-1] if _running else None


def end(process: Process) -> None:
    """End a JVM while its block still runs: calls that wait for its answer fail with a Py4JError."""
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
