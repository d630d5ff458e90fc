"""The keeper's thread starts when the first lease needs care, whoever watches meanwhile and whatever fails."""

import threading
import time
from typing import Any

import pytest

from drain.database import deadline
from tests.helpers import threads_that_fail, wait_until
from workers.lease.heartbeat import Heartbeat
from workers.lease.lease import NEVER


class Lease:
    """One that is to be interrupted after so many seconds, and needs no other care for long."""

    def __init__(self, seconds: float) -> None:
        self.beat_at = time.monotonic() + 60
        self.tell_at = NEVER
        self.interrupt_at = time.monotonic() + seconds
        self.interrupted = threading.Event()

    def interrupt(self) -> None:
        self.interrupt_at = NEVER
        self.interrupted.set()


def keeper_of(*leases: Lease) -> Heartbeat:
    held: Any = leases
    return Heartbeat("postgresql://nowhere", lambda: held)


def test_a_lease_is_cared_for_once_the_keepers_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("workers.lease.heartbeat._RETRY_SECONDS", 0.01)
    threads_that_fail(monkeypatch, "leases", 3)
    lease = Lease(0.01)
    heartbeat = keeper_of(lease)
    heartbeat.watch(lease)  # type: ignore[arg-type]
    assert lease.interrupted.wait(10)
    heartbeat.stop()
    assert [record.message for record in caplog.records] == [
        "no lease is extended until a thread can be started: can't start new thread"
    ]


def test_a_keeper_whose_thread_was_never_started_ends_and_leaves_nothing_to_be_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(deadline._watch.limits)
    threads_that_fail(monkeypatch, "leases", 1_000_000)
    lease = Lease(0.01)
    heartbeat = keeper_of(lease)
    heartbeat.watch(lease)  # type: ignore[arg-type]
    wait_until(lambda: caplog.records)
    heartbeat.stop()
    heartbeat.stop()
    assert set(deadline._watch.limits) <= before


def test_what_ends_soon_starts_no_thread_and_leaves_nothing_to_be_done() -> None:
    before = set(deadline._watch.limits)
    leases = [Lease(seconds) for seconds in (50, 40, 30)]
    heartbeat = keeper_of(*leases)
    for lease in leases:
        heartbeat.watch(lease)  # type: ignore[arg-type]
    heartbeat.stop()
    assert heartbeat._thread is None
    assert set(deadline._watch.limits) <= before


class Slow(Heartbeat):
    """One thread of it, while it watches, is overtaken by another."""

    def __init__(self, *leases: Lease) -> None:
        held: Any = leases
        self.overtaken, self.go_on = threading.Event(), threading.Event()
        super().__init__("postgresql://nowhere", lambda: held)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "_wakes_at" and threading.current_thread().name == "overtaken":
            self.overtaken.set()
            self.go_on.wait(10)
        object.__setattr__(self, name, value)


def test_the_earlier_of_two_leases_that_two_threads_watch_at_once_is_cared_for_in_time() -> None:
    early, late = Lease(0.1), Lease(30)
    heartbeat = Slow(early, late)
    thread = threading.Thread(target=heartbeat.watch, args=(late,), name="overtaken")
    thread.start()
    assert heartbeat.overtaken.wait(10)
    heartbeat.watch(early)  # type: ignore[arg-type]
    heartbeat.go_on.set()
    thread.join(10)
    assert early.interrupted.wait(10)
    heartbeat.stop()
