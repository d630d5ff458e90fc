"""Exceptions that are raised in a job in a thread."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from drain.workers.errors import JobTimeoutError
from drain.workers.execution.thread_alarm import thread_alarm

CAUSE = JobTimeoutError("it ran for longer than its timeout of 1 s")


def in_thread(act: Callable[[Callable[[], None]], object], end: Callable[[], None] = lambda: None) -> object:
    """Call a function in another thread, with what interrupts that thread."""

    def run(interrupt: Callable[[], None] | None, _seconds: float) -> None:
        assert interrupt is not None
        act(interrupt)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(thread_alarm, run, 1.0, lambda: CAUSE, end).result(30)


def test_a_job_is_interrupted_by_the_given_error() -> None:
    def act(interrupt: Callable[[], None]) -> None:
        threading.Thread(target=interrupt).start()
        while True:
            time.sleep(0.001)

    with pytest.raises(JobTimeoutError, match=r"^it ran for longer than its timeout of 1 s$") as raised:
        in_thread(act)
    assert type(raised.value).__qualname__ == "JobTimeoutError"
    assert type(raised.value).__module__ == "drain.workers.errors"


def test_a_traced_function_returns_after_an_interruption() -> None:
    def act(interrupt: Callable[[], None]) -> None:
        interrupt()

    child = os.fork()
    if not child:
        signal.alarm(30)
        with suppress(JobTimeoutError):
            in_thread(act)
        sys.settrace(lambda *_: None)
        json.dumps(None)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_an_interruption_that_comes_when_the_job_has_ended_is_dropped() -> None:
    interrupts: list[Callable[[], None]] = []
    ends: list[str] = []

    def end() -> None:
        # As from another thread, right before no further one is ordered.
        ends.append("ended")
        if len(ends) == 1:
            interrupts[0]()

    in_thread(interrupts.append, end)
    assert len(ends) > 1
