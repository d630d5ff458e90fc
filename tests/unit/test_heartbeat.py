"""The heartbeat's thread starts when the first attempt needs it, whichever thread asks and whatever fails."""

import threading
import time
from typing import Any

import pytest

from drain.database import deadline
from drain.workers.lease.heartbeat import Heartbeat
from drain.workers.lease.lease import NEVER
from tests.helpers import interrupted_at_each_step, threads_that_fail, wait_until


class Attempt:
    """An attempt that is to be interrupted after some seconds, and whose lease is extended long afterwards."""

    def __init__(self, seconds: float) -> None:
        self.lease = self.interruption = self
        self.beat_at = time.monotonic() + 60
        self.slow_at = NEVER
        self.due_at = time.monotonic() + seconds
        self.interrupted = threading.Event()

    def interrupt(self) -> None:
        self.due_at = NEVER
        self.interrupted.set()


def heartbeat_of(*attempts: Attempt) -> Heartbeat:
    held: Any = attempts
    return Heartbeat("postgresql://nowhere", lambda: held)


def test_a_job_is_interrupted_once_the_heartbeats_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("drain.workers.lease.heartbeat._RETRY_SECONDS", 0.01)
    threads_that_fail(monkeypatch, "leases", 3)
    attempt = Attempt(0.01)
    heartbeat = heartbeat_of(attempt)
    heartbeat.wake_by(attempt.due_at)
    assert attempt.interrupted.wait(10)
    heartbeat.stop()
    assert [record.message for record in caplog.records] == [
        "no lease is extended until a thread can be started: can't start new thread"
    ]


def test_a_heartbeat_whose_thread_never_started_stops_cleanly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(deadline._watch.limits)
    threads_that_fail(monkeypatch, "leases", 1_000_000)
    attempt = Attempt(0.01)
    heartbeat = heartbeat_of(attempt)
    heartbeat.wake_by(attempt.due_at)
    wait_until(lambda: caplog.records)
    heartbeat.stop()
    heartbeat.stop()
    assert set(deadline._watch.limits) <= before


def test_short_attempts_start_no_thread_and_leave_no_limits() -> None:
    before = set(deadline._watch.limits)
    attempts = [Attempt(seconds) for seconds in (50, 40, 30)]
    heartbeat = heartbeat_of(*attempts)
    for attempt in attempts:
        heartbeat.wake_by(attempt.due_at)
    heartbeat.stop()
    assert heartbeat._thread is None
    assert set(deadline._watch.limits) <= before


class Slow(Heartbeat):
    """A heartbeat whose caller is overtaken by another thread in the middle of `wake_by`."""

    def __init__(self, *attempts: Attempt) -> None:
        held: Any = attempts
        self.overtaken, self.go_on = threading.Event(), threading.Event()
        super().__init__("postgresql://nowhere", lambda: held)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_wakes_at" and threading.current_thread().name == "overtaken":
            self.overtaken.set()
            self.go_on.wait(10)
        object.__setattr__(self, name, value)


def test_the_earlier_of_two_concurrent_wake_times_is_kept() -> None:
    early, late = Attempt(0.1), Attempt(30)
    heartbeat = Slow(early, late)
    thread = threading.Thread(target=heartbeat.wake_by, args=(late.due_at,), name="overtaken")
    thread.start()
    assert heartbeat.overtaken.wait(10)
    heartbeat.wake_by(early.due_at)
    heartbeat.go_on.set()
    thread.join(10)
    assert early.interrupted.wait(10)
    heartbeat.stop()


def test_a_job_interrupted_while_it_begins_leaves_a_working_heartbeat() -> None:
    held: Any = [Attempt(60)]
    heartbeat = Heartbeat("postgresql://nowhere", lambda: held)
    heartbeat._start()
    # Later than the next attempt is due, however slow the machine: no attempt is behind this call.
    for step in interrupted_at_each_step(lambda: heartbeat.wake_by(time.monotonic() + 30)):
        attempt = Attempt(0.01)
        held[:] = [attempt]
        threading.Thread(target=heartbeat.wake_by, args=(attempt.due_at,), daemon=True).start()
        assert attempt.interrupted.wait(10), step
    heartbeat.stop()
