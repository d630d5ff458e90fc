"""One thread keeps all time limits of a process, and nothing that goes wrong once ends it."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from drain.database import deadline
from drain.database.deadline import call_at, limited
from tests.helpers import interrupted_at_each_step, threads_that_fail, wait_until

NAME = "time limits"


@pytest.fixture(autouse=True)
def _watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has had no limit so far."""
    monkeypatch.setattr(deadline, "_watch", deadline._Watch())


def soon(act: Callable[[], object]) -> None:
    call_at(time.monotonic() + 0.01, act)


def test_a_failing_limit_callback_does_not_affect_later_limits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail() -> None:
        raise OSError("the connection is none any more")

    acted = threading.Event()
    soon(fail)
    wait_until(lambda: caplog.records)
    soon(acted.set)
    assert acted.wait(10)
    assert "the connection is none any more" in caplog.text


def test_limits_are_kept_once_a_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    threads_that_fail(monkeypatch, NAME, 2)
    early, late = threading.Event(), threading.Event()
    soon(early.set)
    with limited(60, late.set):
        pass
    assert not early.is_set()
    soon(late.set)
    assert early.wait(10)
    assert late.wait(10)
    assert [record.message for record in caplog.records] == [
        "time limits are not enforced until a thread can be started: can't start new thread"
    ]


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_keeps_its_own_limits_and_none_of_its_parents() -> None:
    acted = threading.Event()
    forget = call_at(time.monotonic() + 0.5, acted.set)
    # The child is forked while another thread of the parent starts the one of the limits.
    with deadline._watch._starting:
        child = os.fork()
        if not child:
            with suppress(BaseException):
                ours = threading.Event()
                soon(ours.set)
                os._exit(0 if ours.wait(10) and not deadline._watch.limits else 1)
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert acted.wait(10)
    forget()


def test_a_job_interrupted_while_it_sets_a_limit_does_not_spoil_later_limits() -> None:
    early = threading.Event()
    soon(early.set)
    assert early.wait(10)
    for step in interrupted_at_each_step(lambda: call_at(time.monotonic(), int)):
        acted = threading.Event()
        threading.Thread(target=soon, args=(acted.set,), daemon=True).start()
        assert acted.wait(10), step
