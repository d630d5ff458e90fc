"""A failure is told after its grace, once, and is over after a time without one, once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

import drain
from drain.enqueuer.health import Health
from drain.errors import UnavailableError
from drain.health import HealthChange
from drain.service import callbacks
from drain.service.callbacks import Callbacks
from drain.service.hysteresis import HealthOptions, Steady
from tests.helpers import wait_until

CHANGE = HealthChange("redis", "Redis is away", datetime(2026, 11, 23, tzinfo=UTC), "enqueuer")


class Clocked:
    """A thing that may fail, its clock, and what it has told."""

    def __init__(self, *, grace: float = 10, recovery: float = 5) -> None:
        self.now = 1000.0
        self.told: list[HealthChange] = []
        self.steady = Steady(
            "redis",
            "enqueuer",
            grace=grace,
            recovery=recovery,
            changed=self.told.append,
            clock=lambda: self.now,
        )

    def look(self, *problems: str | None, every: float = 1) -> list[str]:
        """Look once a second, with these problems one after the other; returns what was told by then."""
        for problem in problems:
            self.steady.look(problem)
            self.now += every
        return ["recovery" if change.is_recovery else "unhealthy" for change in self.told]


def test_a_failure_shorter_than_the_grace_is_not_reported() -> None:
    clocked = Clocked()
    assert clocked.look(*["away"] * 10, *[None] * 20) == []
    assert clocked.steady.problem is None


def test_a_failure_and_its_recovery_are_each_reported_once() -> None:
    clocked = Clocked()
    assert clocked.look(*["away"] * 10) == []
    assert clocked.look("still away") == ["unhealthy"]
    assert clocked.steady.problem == "still away"
    assert clocked.look(*["away"] * 30, *[None] * 5) == ["unhealthy"]
    assert clocked.steady.problem == "away"
    assert clocked.look(None) == ["unhealthy", "recovery"]
    assert clocked.look(*[None] * 30) == ["unhealthy", "recovery"]
    assert clocked.steady.problem is None
    first, last = clocked.told
    assert (first.what, first.reason, first.process, first.recovered_at) == (
        "redis",
        "still away",
        "enqueuer",
        None,
    )
    assert last.recovered_at is not None
    assert first.since == last.since < last.recovered_at


def test_a_store_that_comes_and_goes_is_one_failure() -> None:
    clocked = Clocked()
    assert clocked.look(*["away", "away", None, None] * 20) == ["unhealthy"]
    assert clocked.look(*[None] * 5) == ["unhealthy", "recovery"]


def test_failures_separated_by_healthy_periods_are_separate() -> None:
    clocked = Clocked()
    assert clocked.look(*(["away"] * 6 + [None] * 7) * 10) == []
    assert clocked.look(*(["away"] * 11 + [None] * 7) * 2) == ["unhealthy", "recovery"] * 2


def test_without_grace_and_recovery_each_change_is_reported_at_once() -> None:
    clocked = Clocked(grace=0, recovery=0)
    assert clocked.look("away", None, "away") == ["unhealthy", "recovery", "unhealthy"]


# --- the enqueuer


@pytest.fixture
def told() -> list[tuple[str, str, bool]]:
    found: list[tuple[str, str, bool]] = []

    def note(change: HealthChange) -> None:
        found.append((change.what, change.reason, change.is_recovery))

    drain.on_unhealthy(note)
    drain.on_recovery(note)
    return found


def test_the_enqueuer_is_ready_once_up_and_unready_only_after_the_grace() -> None:
    health = Health(HealthOptions(grace_seconds=3600, recovery_seconds=0))
    unready = health.answers().unready
    assert unready() == "starting"
    health.down(UnavailableError("Redis at x does not take commands"))
    assert unready() == "Redis at x does not take commands"
    health.up("leading")
    assert unready() is None
    health.down(UnavailableError("Redis at x does not take commands"))
    health.look()
    assert unready() is None


def test_the_enqueuer_calls_hooks_for_its_stores_and_for_failing_queues(
    told: list[tuple[str, str, bool]],
) -> None:
    health = Health(HealthOptions(grace_seconds=0, recovery_seconds=0, queue_grace_seconds=0))
    health.look()
    health.up("leading")
    health.down(UnavailableError("PostgreSQL at x cannot be used: gone"))
    health.up("leading")
    health.report_failing({"mail"})
    health.look()
    health.report_failing(())
    health.look()
    reason = "PostgreSQL at x cannot be used: gone"
    queue = "queue mail keeps failing"
    wait_until(lambda: len(told) == 4)
    assert told == [
        ("postgres", reason, False),
        ("postgres", reason, True),
        ("queue:mail", queue, False),
        ("queue:mail", queue, True),
    ]


def test_a_former_leader_reports_nothing_about_queues(told: list[tuple[str, str, bool]]) -> None:
    health = Health(HealthOptions(recovery_seconds=0, queue_grace_seconds=0))
    health.report_failing({"mail"})
    health.look()
    health.forget_failing()
    health.look()
    wait_until(lambda: told)
    assert [is_recovery for _, _, is_recovery in told] == [False]


# --- hooks that fail


@pytest.fixture
def released() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_a_raising_or_hanging_hook_does_not_block_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, released: threading.Event
) -> None:
    monkeypatch.setattr(callbacks, "HOOK_SECONDS", 0.05)
    called: list[str] = []

    @drain.on_unhealthy
    def exits(change: HealthChange) -> None:
        called.append(change.what)
        raise SystemExit(1)

    @drain.on_unhealthy
    def hangs(change: HealthChange) -> None:
        released.wait()

    @drain.on_recovery
    def recovers(change: HealthChange) -> None:
        called.append("recovered")

    callback = Callbacks(HealthOptions())
    began = time.monotonic()
    callback.call(CHANGE)
    callback.call(HealthChange("redis", "", CHANGE.since, "enqueuer", CHANGE.since))
    assert time.monotonic() - began < 10
    wait_until(lambda: called == ["redis", "recovered"])
    failed = [
        record.message for record in caplog.records if vars(record).get("event") == "health_hook_failed"
    ]
    assert any("exits failed: SystemExit: 1" in message for message in failed)
    assert any("did not end within 0.05 s" in message for message in failed)


@pytest.mark.usefixtures("processes")
def test_a_command_gets_the_change_in_its_environment_and_may_not_hang(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: object
) -> None:
    file = f"{tmp_path}/told"
    change = HealthChange("redis", "away: $(touch /nowhere) `x` 'y\"", CHANGE.since, "workers")
    command = (
        f'echo "$DRAIN_HEALTH_EVENT $DRAIN_HEALTH_PROCESS $DRAIN_HEALTH_WHAT $DRAIN_HEALTH_REASON" > {file}'
    )
    callbacks.run_command(change, HealthOptions(on_unhealthy=command))
    with open(file) as told:  # noqa: PTH123
        assert told.read() == "unhealthy workers redis away: $(touch /nowhere) `x` 'y\"\n"

    monkeypatch.setattr(callbacks, "COMMAND_SECONDS", 0.05)
    callbacks.run_command(change, HealthOptions(on_unhealthy="sleep 1000 & sleep 1000"))
    callbacks.run_command(change, HealthOptions(on_unhealthy="exit 3"))
    messages = [record.message for record in caplog.records]
    assert any("was killed" in message for message in messages)
    assert any("exit code 3" in message for message in messages)


def test_a_hook_that_cannot_be_called_is_refused() -> None:
    async def later(change: HealthChange) -> None:
        pass

    for wrong in (later, 3):
        with pytest.raises(TypeError, match=r"@drain.on_unhealthy is for a plain function"):
            drain.on_unhealthy(wrong)  # type: ignore[type-var]
