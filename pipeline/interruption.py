"""Ctrl-C, SIGTERM and SIGHUP while Spark starts and works: waiting code cleans up, and the command ends."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from pipeline import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AGAIN_SECONDS = 0.2
_PATIENCE_SECONDS = 3.0

# Signals, for as long as there is a session.
_received: list[int] = []


@contextmanager
def interruptible(session: AbstractContextManager[SparkSession]) -> Iterator[SparkSession]:
    """Enter a session; from then on the first signal cancels Spark's jobs, and a second one ends the block at once.

    While the session starts, the first one ends it. What cannot be cancelled, such as a commit that is under way, has
    a few seconds to come to its end, and is reported as done; then the JVM ends, if it is ours. A signal that is
    ignored stays so, as SIGHUP is under nohup.

    Raises:
        KeyboardInterrupt: After SIGINT, in place of what the cancelled job raised.
        SystemExit: After SIGTERM and SIGHUP, likewise, with 143 and 129.
    """
    if threading.current_thread() is not threading.main_thread():
        with session as spark:
            yield spark
        return
    _received.clear()
    ended = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    heard = [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]

    def end(number: int, _frame: object) -> None:
        _received.append(number)
        _raise(number)

    def cancel(number: int, _frame: object) -> None:
        _received.append(number)
        if len(_received) > 1:
            _raise(number)
        # Not here: the main thread is in the middle of talking to the JVM, and cannot begin anew.
        for act in (partial(_cancel, spark), partial(_end, ours)):
            threading.Thread(target=act, args=(ended,), name="interruption", daemon=True).start()

    running = jvm.running()
    _handle(heard, end)
    try:
        with session as spark:
            ours = None if running else jvm.running()
            # Spark has put one of its own in the place of the first.
            _handle(heard, cancel)
            try:
                yield spark
            finally:
                ended.set()
    except Exception:
        check()
        raise
    finally:
        _received.clear()
        for number in heard:
            signal.signal(number, before[number])


def check() -> None:
    """Raise if a signal has been received; for code that continues after a failure.

    Raises:
        KeyboardInterrupt: It was SIGINT.
        SystemExit: It was another one.
    """
    if _received:
        _raise(_received[0])


def _handle(numbers: Iterable[int], handler: Callable[[int, object], None]) -> None:
    for number in numbers:
        signal.signal(number, handler)


def _cancel(spark: SparkSession, ended: threading.Event) -> None:
    # A job that begins only now is to be cancelled too.
    while not ended.wait(_AGAIN_SECONDS):
        with suppress(Exception):
            spark.sparkContext.cancelAllJobs()


def _end(ours: jvm.Process | None, ended: threading.Event) -> None:
    # Spark cannot cancel what is no job yet, and takes seconds to plan one that reads a Python data source.
    if ours is not None and not ended.wait(_PATIENCE_SECONDS):
        jvm.end(ours)


def _raise(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
