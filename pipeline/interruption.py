"""Ctrl-C, SIGTERM and SIGHUP while Spark starts and works: Spark's jobs are cancelled, and the command ends."""

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

# Interval between two cancellations of Spark's jobs.
_CANCEL_SECONDS = 0.2
# Grace period from the first signal until the JVM is ended.
_GRACE_SECONDS = 3.0

# Signals received since the session was entered.
_received: list[int] = []
# Set while the driver does work of its own, which no thread could cancel.
_own_work = threading.Event()


@contextmanager
def interruptible(session: AbstractContextManager[SparkSession]) -> Iterator[SparkSession]:
    """Enter a session; from then on the first signal cancels Spark's jobs, and a second one ends the block at once.

    While the session starts, the first signal ends the start, as it does work within `at_once`. Work of Spark's that
    cannot be cancelled has a few seconds to end, and is then reported as done; after them the JVM is ended, if this
    call has started it. A signal that was ignored stays ignored, as SIGHUP is under nohup.

    Raises:
        KeyboardInterrupt: SIGINT arrived; it replaces the exception of the cancelled job.
        SystemExit: SIGTERM or SIGHUP arrived; with exit code 143 or 129, and also in place of the job's exception.
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
            # In threads: the main thread may be in the middle of a call to the JVM, and cannot begin another one.
            for act in (partial(_cancel, spark), partial(_end, ours)):
                threading.Thread(target=act, args=(ended,), name="interruption", daemon=True).start()
        if len(_received) > 1 or _own_work.is_set():
            _raise(number)

    running = jvm.running()
    _handle(handled, end)
    try:
        with session as spark:
            ours = None if running else jvm.running()
            # Spark has replaced the handler of SIGINT by its own.
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
    """Let the first signal end the block: for the driver's own work, such as a statement.

    Raises:
        KeyboardInterrupt: SIGINT arrived, in the block or before it.
        SystemExit: SIGTERM or SIGHUP arrived, in the block or before it.
    """
    _own_work.set()
    try:
        check()
        yield
    finally:
        _own_work.clear()


def check() -> None:
    """Raise if a signal has been received; for code that continues after a failure.

    Raises:
        KeyboardInterrupt: SIGINT was received first.
        SystemExit: SIGTERM or SIGHUP was received first.
    """
    if _received:
        _raise(_received[0])


def _handle(numbers: Iterable[int], handler: Callable[[int, object], None]) -> None:
    for number in numbers:
        signal.signal(number, handler)


def _cancel(spark: SparkSession, ended: threading.Event) -> None:
    # Repeatedly, since another job may begin after a cancellation.
    while not ended.wait(_CANCEL_SECONDS):
        with suppress(Exception):
            spark.sparkContext.cancelAllJobs()


def _end(ours: jvm.Process | None, ended: threading.Event) -> None:
    # Spark cannot cancel a job that it still plans, which takes seconds if the job reads a Python data source.
    if ours is not None and not ended.wait(_GRACE_SECONDS):
        jvm.end(ours)


def _raise(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
