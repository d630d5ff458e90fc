"""Spark's JVM, which never outlives the process that started it.

Spark does not ensure this: a starting JVM does not notice its driver's end, and a working one finishes first. So it
runs in the process group of a guard, a shell reading a pipe held by the driver. However the driver ends, the guard
sends SIGTERM, then SIGKILL. Only a JVM saving class data, after its work, has longer.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from drain.errors import DrainError

if TYPE_CHECKING:
    from pathlib import Path

Process: TypeAlias = subprocess.Popen[bytes]

# From SIGTERM to SIGKILL.
_END_SECONDS = 3
# Saving class data takes 15 s of processor time on Java 17.
_SAVE_SECONDS = 600
# From a broken connection to the JVM's end.
_NOTICE_SECONDS = 2
# The guard reads the class data's file, the JVM's pid, and that the work ended well. Python workers end with the JVM.
_GUARD = f"""
trap '' HUP INT TERM
turns={_END_SECONDS * 10}
while read -r word value; do
  case $word in
    new) new=$value ;;
    jvm) jvm=$value ;;
    save) save=1; turns={_SAVE_SECONDS * 10} ;;
  esac
done
kill -s TERM 0
while [ -n "$jvm" ] && [ $turns -gt 0 ] && kill -s 0 "$jvm"; do
  sleep 0.1
  turns=$((turns - 1))
done
[ -z "$save" ] || [ $turns -eq 0 ] || mv -f "$new" "${{new%.*}}"
[ -z "$new" ] || rm -f "$new"
kill -s KILL 0
"""

_running: list[Process] = []


@contextmanager
def started(settings: Mapping[str, str], class_data: Path | None = None) -> Iterator[None]:
    """Start the JVM for this process' sessions, ended with the block.

    A successful block does not wait until `class_data` is written.
    """
    from pyspark import SparkConf, SparkContext, java_gateway

    launch: Any = java_gateway.launch_gateway
    read, write = os.pipe()
    guard = _guard(read)
    gateway = None
    saving = False
    try:
        if class_data is not None:
            os.write(write, f"new {class_data}\n".encode())
        # While saving class data, the JVM would hold this process' output open.
        kwargs = {"process_group": guard.pid, "stdout": subprocess.DEVNULL}
        gateway = launch(SparkConf().setAll(list(settings.items())), kwargs)
        os.write(write, f"jvm {gateway.proc.pid}\n".encode())
        _running.append(gateway.proc)
        SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm
        yield
        saving = class_data is not None
    finally:
        if saving:
            os.write(write, b"save\n")
        os.close(write)
        SparkContext._gateway = SparkContext._jvm = None
        _running.clear()
        waiter = threading.Thread(target=_wait, args=(gateway, guard), name="end of the JVM", daemon=True)
        waiter.start()
        if not saving:
            waiter.join()


def _wait(gateway: Any, guard: Process) -> None:
    if gateway is not None:
        # The guard would mistake a zombie for a live process.
        gateway.proc.wait()
        gateway.shutdown()
    guard.wait()


def running() -> Process | None:
    """Return the JVM from `started`."""
    return _running[-1] if _running else None


def check(error: BaseException) -> None:
    """Raise a DrainError with advice if our JVM's end caused the error."""
    process = running()
    if process is None:
        return
    with suppress(subprocess.TimeoutExpired):
        process.wait(_NOTICE_SECONDS if _is_broken_connection(error) else 0)
    if process.returncode is not None:
        raise DrainError(_ending(process.returncode)) from error


def _is_broken_connection(error: BaseException) -> bool:
    from py4j.protocol import Py4JError, Py4JJavaError

    return isinstance(error, ConnectionError | Py4JError) and not isinstance(error, Py4JJavaError)


def _ending(code: int) -> str:
    # After SIGTERM, Java exits with 143, like a shell.
    number = -code if code < 0 else code - 128
    if number == signal.SIGKILL:
        return (
            "Spark's JVM was killed by SIGKILL, as happens when memory runs out: free memory, "
            "or give Spark less, such as --conf spark.driver.memory=512m"
        )
    if number > 0:
        return f"Spark's JVM was killed by {signal.Signals(number).name}: run the command again"
    return (
        f"Spark's JVM ended with exit code {code}: run the command again with --verbose, which shows its log"
    )


def end(process: Process) -> None:
    """End a JVM early; pending calls fail with Py4JError."""
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
