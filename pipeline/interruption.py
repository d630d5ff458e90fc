"""Ctrl-C and SIGTERM while Spark works: its jobs are cancelled, and whoever waits for them cleans up."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AGAIN_SECONDS = 0.2


@contextmanager
def interruptible(spark: SparkSession) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM cancel Spark's jobs until the block has ended; a second one ends it at once.

    What cannot be cancelled, such as a commit that is under way, comes to its end, and is reported as done.

    Raises:
        KeyboardInterrupt: After SIGINT, in place of what the cancelled job raised.
        SystemExit: After SIGTERM, likewise, with 143.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ended = threading.Event()
    received: list[int] = []

    def cancel() -> None:
        # A job that begins only now is to be cancelled too.
        while not ended.wait(_AGAIN_SECONDS):
            with suppress(Exception):
                spark.sparkContext.cancelAllJobs()

    def end(number: int, _frame: object) -> None:
        received.append(number)
        if len(received) > 1:
            _raise(number)
        # Not here: the main thread is in the middle of talking to the JVM, and cannot begin anew.
        threading.Thread(target=cancel, name="cancel", daemon=True).start()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except Exception:
        if received:
            _raise(received[0])
        raise
    finally:
        ended.set()
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)
