"""Signals during Spark's work."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from drain.pipeline import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CANCEL_SECONDS = 0.2
# From the first signal to the JVM's end.
_GRACE_SECONDS = 3.0

_received: list[int] = []
# During the driver's own work, which no thread could cancel.
_own_work = threading.Event()


@contextmanager
def interruptible(session: AbstractContextManager[SparkSession]) -> Iterator[SparkSession]:
    """Enter a session: the first signal cancels Spark's jobs, a second ends the block.

    The first ends it during the start and within `at_once`. If work continues for a few seconds, a JVM started here is
    ended. Ignored signals stay ignored, such as SIGHUP under nohup.

    Raises:
        KeyboardInterrupt: SIGINT, in place of the job's exception.
        SystemExit: SIGTERM or SIGHUP, with 143 or 129.
    """
    if threading.current_thread() is not threading.main_thread():
        with session as spark:
            yield spark
        return
    _received.clear()
    ended = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    handled = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]

    def end(number: int, _frame: object) -> None:
        _received.append(number)
        _raise(number)

    def cancel(number: int, _frame: object) -> None:
        _received.append(number)
        if len(_received) == 1:
            # In threads: the main thread may be calling the JVM.
            for act in (partial(_cancel, spark), partial(_end, ours)):
                threading.Thread(target=act, args=(ended,), name="interruption", daemon=True).start()
        if len(_received) > 1 or _own_work.is_set():
            _raise(number)

    running = jvm.running()
    _handle(handled, end)
    try:
        with session as spark:
            ours = None if running else jvm.running()
            # Spark has replaced SIGINT's handler.
            _handle(handled, cancel)
            try:
                yield spark
            finally:
                ended.set()
    except Exception:
        check()
        raise
    finally:
        _received.clear()
        for number in handled:
            signal.signal(number, before[number])


@contextmanager
def at_once() -> Iterator[None]:
    """Let the first signal, even an earlier one, end the block."""
    _own_work.set()
    try:
        check()
        yield
    finally:
        _own_work.clear()


def check() -> None:
    """Raise for a received signal."""
    if _received:
        _raise(_received[0])


def _handle(numbers: Iterable[int], handler: Callable[[int, object], None]) -> None:
    for number in numbers:
        signal.signal(number, handler)


def _cancel(spark: SparkSession, ended: threading.Event) -> None:
    # Another job may begin after a cancellation.
    while not ended.wait(_CANCEL_SECONDS):
        with suppress(Exception):
            spark.sparkContext.cancelAllJobs()


def _end(ours: jvm.Process | None, ended: threading.Event) -> None:
    # Spark cannot cancel a job in planning, which takes seconds with Python data sources.
    if ours is not None and not ended.wait(_GRACE_SECONDS):
        jvm.end(ours)


def _raise(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
