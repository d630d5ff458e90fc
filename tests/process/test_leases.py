"""Leases: extended while the job runs and no longer, and what a job learns that has lost its own."""

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime
from typing import Any

import psycopg
import pytest

from drain import metrics
from drain.config import Settings
from drain.database import postgres, schema
from drain.embedded import CARELESS, EmbeddedPostgres
from drain.enqueuer.gauges import Gauges
from drain.jobs import registry
from drain.tables import claims, finishes, leases, outcomes
from drain.wire import Producer
from drain.workers import LeaseLostError, current_job, job, transaction
from drain.workers.context.current import Attempt, current_attempt
from drain.workers.entry import Worker
from drain.workers.lease import interruption
from drain.workers.lease.database import Database
from drain.workers.lease.extension import Extender
from drain.workers.lease.heartbeat import Heartbeat
from tests.helpers import (
    NAMESPACE,
    PATIENCE_SECONDS,
    ROOT,
    ask,
    deliveries,
    drain_command,
    environment,
    free_port,
    query,
    wait_until,
)
from tests.inprocess_worker import FOREVER_SECONDS, HEARTBEAT_SECONDS, NAME, SHORT_LEASE_SECONDS, Workshop
from tests.proxy import proxied

QUICK: dict[str, Any] = {
    "lease_seconds": 30,
    "heartbeat_seconds": HEARTBEAT_SECONDS,
    "timeout_seconds": 2 * PATIENCE_SECONDS,
}


def wait_for_extensions(times: int = 1) -> None:
    """Return once the lease of the current job has been extended so often from now on."""
    for _ in range(times):
        before = current_job().lease_expires_at
        wait_until(lambda before=before: current_job().lease_expires_at > before)  # type: ignore[misc]


def has_time_left() -> bool:
    """Whether what interrupts the current job is not its own time limit, which comes back every ten seconds."""
    return signal.getitimer(signal.ITIMER_REAL)[0] > 10


def lease_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "leases"]


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "event", None) == name]


# --- while the job runs


def test_a_job_that_runs_for_longer_than_its_lease_keeps_it(shop: Workshop) -> None:
    refused: list[bool] = []

    def act() -> None:
        over = "SELECT clock_timestamp() > %s"
        wait_until(lambda: query(shop.database_url, over, first) == [(True,)])
        refused.append(shop.claim(job_id) is None)

    job_id = shop.delivered(act, lease_seconds=2, heartbeat_seconds=0.25)
    ((first,),) = query(shop.database_url, "SELECT clock_timestamp() + interval '3 s'")
    assert shop.work(job_id) == "finished"
    assert refused == [True]
    assert shop.row(job_id)["fencing_token"] == 1


def test_each_heartbeat_extends_the_lease_by_its_full_length(shop: Workshop) -> None:
    seen: list[tuple[datetime, float]] = []

    def act() -> None:
        for _ in range(3):
            # Of the row: the process learns of an extension a moment after its commit.
            before = shop.lease_expires_at(job_id)
            wait_until(lambda before=before: shop.lease_expires_at(job_id) > before)  # type: ignore[misc]
            left = (
                "SELECT extract(epoch FROM lease_expires_at - clock_timestamp())::float8 FROM inflight_jobs"
            )
            ((seconds,),) = query(shop.database_url, left)
            seen.append((shop.lease_expires_at(job_id), seconds))
            assert 0 < current_job().lease_seconds_left <= 30

    job_id = shop.delivered(act, **QUICK)
    assert shop.work(job_id) == "finished"
    ends, lefts = zip(*seen, strict=True)
    assert list(ends) == sorted(set(ends))
    assert all(20 < left <= 30 for left in lefts)


def test_a_lease_has_three_heartbeats_unless_registered_otherwise(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def lease_of(**options: Any) -> None:
        job_id = shop.delivered(lambda: pauses.append(beating()), **options)
        assert shop.work(job_id) == "finished"
        monkeypatch.setattr("drain.jobs.registry._jobs", {})

    def beating() -> float:
        lease = current_attempt().lease
        return round(lease.beat_at - lease.extended_at, 3)

    lease_of(lease_seconds=60)
    lease_of(lease_seconds=60, heartbeat_seconds=7)
    lease_of()
    assert pauses == [20, 7, 10]


def test_a_job_that_ends_before_its_first_heartbeat_starts_no_thread_for_it(shop: Workshop) -> None:
    seen: list[str] = []
    job_id = shop.delivered(lambda: seen.extend(thread.name for thread in threading.enumerate()))
    assert shop.work(job_id) == "finished"
    assert "leases" not in seen


def test_a_job_that_ends_before_its_first_heartbeat_opens_no_connection_for_it(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    dial = postgres.dial

    def spy(database_url: str, name: str, **options: Any) -> Any:
        opened.append(name)
        return dial(database_url, name, **options)

    monkeypatch.setattr(postgres, "dial", spy)
    assert shop.work(shop.delivered(lambda: None)) == "finished"
    assert opened == ["drain work"]


@pytest.mark.parametrize("error", [None, ValueError("it fails"), SystemExit(1)], ids=repr)
def test_nothing_is_left_of_the_heartbeat_when_the_job_has_ended(
    shop: Workshop, error: BaseException | None
) -> None:
    # What nobody refers to any more would close its connection by itself.
    kept: list[object] = []

    def act() -> None:
        wait_for_extensions()
        kept.append(current_job())
        assert lease_threads() == ["leases"]
        assert len(shop.backends("drain lease")) == 1
        if error is not None:
            raise error

    job_id = shop.delivered(act, **QUICK)
    assert shop.work(job_id) == ("retrying" if error else "finished")
    assert lease_threads() == []
    wait_until(lambda: not shop.backends("drain lease"))


def test_a_heartbeat_that_hangs_as_the_job_ends_is_cancelled(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(connection: psycopg.Connection, *_: Any) -> None:
        connection.execute("SELECT pg_sleep(%s)", [FOREVER_SECONDS])

    def act() -> None:
        current_attempt().lease.heartbeat_seconds = FOREVER_SECONDS
        wait_until(lambda: shop.backends("drain lease", state="active"))

    monkeypatch.setattr(leases, "extend_many", hang)
    assert shop.work(shop.delivered(act, **QUICK)) == "finished"
    assert lease_threads() == []


def test_a_heartbeat_retried_after_a_lock_wait_leaves_no_session_behind(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up: list[Exception] = []
    extend = leases.extend_many

    def spy(*given: Any) -> Any:
        try:
            return extend(*given)
        except psycopg.Error as error:
            given_up.append(error)
            raise

    monkeypatch.setattr(leases, "extend_many", spy)
    with psycopg.connect(shop.database_url) as somebody:

        def act() -> None:
            somebody.execute("SELECT FROM inflight_jobs FOR UPDATE")
            wait_until(lambda: len(given_up) >= 3, PATIENCE_SECONDS)
            wait_until(lambda: len(shop.backends("drain lease")) <= 1)
            somebody.rollback()
            wait_for_extensions()

        assert shop.work(shop.delivered(act, **QUICK)) == "finished"


def test_the_heartbeat_survives_the_end_of_its_session(shop: Workshop) -> None:
    def act() -> None:
        for _ in range(3):
            wait_for_extensions()
            assert shop.terminate("drain lease") == 1
        wait_for_extensions()

    assert shop.work(shop.delivered(act, **QUICK)) == "finished"


def test_the_heartbeat_survives_any_exception(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    extend = leases.extend_many
    broken: list[Exception] = [RuntimeError("can't start new thread"), psycopg.ProgrammingError("no rights")]

    def break_twice(*given: Any) -> Any:
        if broken:
            raise broken.pop()
        return extend(*given)

    monkeypatch.setattr(leases, "extend_many", break_twice)
    assert shop.work(shop.delivered(wait_for_extensions, **QUICK)) == "finished"
    assert "can't start new thread" in caplog.text


@pytest.mark.usefixtures("processes")
def test_the_heartbeat_survives_a_restart_of_postgres_that_takes_longer_than_the_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("drain.jobs.registry._jobs", {})
    with EmbeddedPostgres(settings=CARELESS) as server:
        schema.install(server.url)

        def act() -> None:
            wait_for_extensions()
            server.stop()
            wait_until(lambda: not current_job().lease_seconds_left)
            server.start()
            wait_for_extensions(2)

        with closing(Worker(Settings(database_url=server.url))) as worker:
            shop = Workshop(server.url, worker)
            job_id = shop.delivered(act, lease_seconds=SHORT_LEASE_SECONDS)
            assert shop.work(job_id) == "finished"
            assert shop.row(job_id)["fencing_token"] == 1


def test_the_heartbeat_abandons_a_hung_postgres_and_reconnects(
    database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("drain.jobs.registry._jobs", {})
    with proxied(database_url) as (proxy, through):

        def act() -> None:
            wait_for_extensions()
            proxy.stalled.set()
            wait_until(lambda: "trying again" in caplog.text)
            proxy.stalled.clear()
            wait_for_extensions()

        with closing(Worker(Settings(database_url=through))) as worker:
            shop = Workshop(database_url, worker)
            assert shop.work(shop.delivered(act, **QUICK)) == "finished"


# --- when it is lost


def test_a_sleeping_job_whose_lease_was_taken_over_is_interrupted(
    shop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[bool, bool, float]] = []

    def act() -> None:
        try:
            taken.append(shop.take_over(job_id))
            time.sleep(FOREVER_SECONDS)
        except LeaseLostError:
            told.append((has_time_left(), current_job().lease_lost, current_job().lease_seconds_left))
            raise

    taken: list[claims.Claim] = []
    job_id = shop.delivered(act, **QUICK)
    assert shop.work(job_id) == "stale"
    assert told == [(True, True, 0.0)]
    assert shop.stale_finishes() == [(job_id, 1, "nothing")]
    for name in ("lease_lost", "stale_finish"):
        (event,) = events(caplog, name)
        assert (event.job_id, event.token) == (job_id, 1)  # type: ignore[attr-defined]
    assert not events(caplog, "job_failed")
    assert shop.row(job_id)["claimed_by"] == "the other"
    assert shop.finish(taken[0])


def test_a_job_waiting_for_its_own_database_is_interrupted_too(shop: Workshop) -> None:
    told: list[bool] = []

    def act() -> None:
        with psycopg.connect(shop.database_url) as connection:
            try:
                shop.take_over(job_id)
                connection.execute("SELECT pg_sleep(%s)", [FOREVER_SECONDS])
            finally:
                told.append(has_time_left())

    job_id = shop.delivered(act, **QUICK)
    assert shop.work(job_id) == "stale"
    assert told == [True]
    assert shop.stale_finishes() == [(job_id, 1, "nothing")]


def test_a_job_in_an_event_loop_is_interrupted_too(shop: Workshop) -> None:
    told: list[bool] = []

    async def act() -> None:
        try:
            # A heartbeat may come before the sleep.
            shop.take_over(job_id)
            await asyncio.sleep(FOREVER_SECONDS)
        finally:
            told.append(has_time_left())

    job_id = shop.delivered(act, **QUICK)
    assert shop.work(job_id) == "stale"
    assert told == [True]


def test_a_job_in_a_thread_can_ask_whether_its_lease_is_lost(shop: Workshop) -> None:
    told: list[tuple[bool, float]] = []

    def act() -> None:
        assert not current_job().lease_lost
        shop.take_over(job_id)
        wait_until(lambda: current_job().lease_lost)
        told.append((current_job().lease_lost, current_job().lease_seconds_left))

    job_id = shop.delivered(act, **QUICK)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(shop.work, job_id).result(PATIENCE_SECONDS) == "stale"
    assert told == [(True, 0.0)]
    assert shop.stale_finishes() == [(job_id, 1, "finished")]


def test_a_job_that_uses_the_alarm_itself_receives_none_of_ours(shop: Workshop) -> None:
    rang: list[int] = []

    def act() -> None:
        signal.signal(signal.SIGALRM, lambda number, _: rang.append(number))
        shop.take_over(job_id)
        wait_until(lambda: current_job().lease_lost)
        beats = current_attempt().interruption.due_at
        wait_until(lambda: current_attempt().interruption.due_at > beats)

    job_id = shop.delivered(act, **QUICK)
    handler = signal.getsignal(signal.SIGALRM)
    assert shop.work(job_id) == "stale"
    assert rang == []
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_job_that_ignores_its_lost_lease_is_interrupted_repeatedly(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruption, "AGAIN_SECONDS", HEARTBEAT_SECONDS)
    told: list[bool] = []

    def act() -> None:
        while len(told) < 3 and has_time_left():
            try:
                if not told:
                    shop.take_over(job_id)
                time.sleep(FOREVER_SECONDS)
            except LeaseLostError:
                told.append(has_time_left())

    job_id = shop.delivered(act, **QUICK)
    assert shop.work(job_id) == "stale"
    assert told == [True] * 3


@pytest.mark.parametrize(
    ("error", "max_attempts", "outcome"),
    [(ValueError("too late"), 2, "retrying"), (ValueError("too late"), 1, "dead"), (None, 1, "finished")],
)
def test_a_late_outcome_is_recorded_as_stale_and_changes_nothing(
    shop: Workshop,
    caplog: pytest.LogCaptureFixture,
    error: Exception | None,
    max_attempts: int,
    outcome: str,
) -> None:
    def act() -> None:
        shop.take_over(job_id)
        before.append(shop.row(job_id))
        if error:
            raise error

    before: list[dict[str, Any]] = []
    job_id = shop.delivered(act, max_attempts=max_attempts)
    assert shop.work(job_id) == "stale"
    assert shop.stale_finishes() == [(job_id, 1, outcome)]
    assert [shop.row(job_id)] == before
    assert len(events(caplog, "stale_finish")) == 1
    assert not [*events(caplog, "job_failed"), *events(caplog, "job_dead")]


@pytest.mark.usefixtures("processes")
def test_the_leader_counts_refused_outcomes(shop: Workshop, redis_url: str) -> None:
    port = free_port()

    def counted(metric: str) -> float | None:
        text = ask(port, "/metrics")[1]
        found = re.search(rf"^{metric} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else None

    job_id = shop.delivered(lambda: shop.take_over(job_id))
    env = environment(shop.database_url, redis_url)
    with drain_command("run", "--metrics-port", str(port), env=env) as command:
        wait_until(lambda: command.events("leading"))
        # What was refused before the leader first looked is not its to count.
        wait_until(lambda: counted('drain_redis_depth{queue="default"}') is not None)
        assert counted("drain_stale_finishes_total") == 0
        assert shop.work(job_id) == "stale"
        wait_until(lambda: counted("drain_stale_finishes_total") == 1)


def test_the_leader_tolerates_deleted_stale_finishes(shop: Workshop, redis_url: str) -> None:
    gauges = Gauges(Producer(redis_url, NAMESPACE))
    before = metrics.STALE._value.get()
    for count in (5, 7, 0, 1):
        gauges._count_stale(count)
    assert metrics.STALE._value.get() == before + 3


def test_a_lease_lost_error_raised_without_a_lost_lease_fails_the_job(shop: Workshop) -> None:
    def act() -> None:
        raise LeaseLostError("so I think")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    assert shop.row(job_id)["last_error"]["message"] == "so I think"
    assert shop.stale_finishes() == []


@pytest.mark.usefixtures("processes")
def test_losing_the_lease_at_the_moment_a_job_ends_is_harmless() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tests.lost_as_they_end"],
        cwd=ROOT,
        # An exception that a signal raises in coverage's own code leaves its lock behind.
        env={name: text for name, text in os.environ.items() if not name.startswith("COVERAGE_")},
        timeout=2 * PATIENCE_SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, "all at work\n"), result.stderr


def test_a_heartbeat_refused_after_the_job_has_ended_interrupts_nothing(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = threading.Event(), threading.Event()

    def refuse_later(*_: Any) -> dict[int, datetime]:
        asked.set()
        assert answered.wait(PATIENCE_SECONDS)
        return {}

    monkeypatch.setattr(leases, "extend_many", refuse_later)
    monkeypatch.setattr(finishes, "is_finished", lambda *_: False)
    interrupted: list[int] = []
    handler = signal.signal(signal.SIGALRM, lambda number, _: interrupted.append(number))
    try:
        assert shop.work(shop.delivered(lambda: asked.wait(PATIENCE_SECONDS), **QUICK)) == "finished"
        (late,) = [thread for thread in threading.enumerate() if thread.name in lease_threads()]
        answered.set()
        late.join(PATIENCE_SECONDS)
        assert interrupted == []
    finally:
        signal.signal(signal.SIGALRM, handler)


# --- when the job is beyond its time


def test_a_job_that_catches_everything_loses_its_lease_after_its_timeout(
    shop: Workshop,
) -> None:
    caught: list[BaseException] = []

    def act() -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and LeaseLostError not in map(type, caught):
            try:
                if caught and not taken:
                    taken.extend(claim for claim in [shop.claim(job_id)] if claim)
                time.sleep(HEARTBEAT_SECONDS)
            except BaseException as error:  # noqa: BLE001
                caught.append(error)

    taken: list[claims.Claim] = []
    job_id = shop.delivered(act, timeout_seconds=1, lease_seconds=SHORT_LEASE_SECONDS)
    assert shop.work(job_id) == "stale"
    assert [claim.fencing_token for claim in taken] == [2]
    assert [type(error).__name__ for error in caught] == ["JobTimeoutError", "LeaseLostError"]


def test_a_slow_attempt_is_reported_once_with_its_current_line(
    shop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    def wait_where_it_is_slow() -> None:
        wait_until(lambda: events(caplog, "job_slow"))
        wait_for_extensions(3)

    job_id = shop.delivered(wait_where_it_is_slow, max_execute_seconds=0.5, **QUICK)
    assert shop.work(job_id) == "finished"
    (event,) = events(caplog, "job_slow")
    assert event.job_id == job_id  # type: ignore[attr-defined]
    text = event.getMessage()
    assert f"job {job_id} (tests.act) has been running for " in text
    assert "in wait_where_it_is_slow\n    wait_until(lambda: events(caplog" in text


def test_a_slow_async_job_is_reported_with_the_line_it_awaits(
    shop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    async def pause() -> None:
        await asyncio.sleep(HEARTBEAT_SECONDS)

    async def wait_where_it_is_slow() -> None:
        while not events(caplog, "job_slow"):
            await pause()

    assert shop.work(shop.delivered(wait_where_it_is_slow, max_execute_seconds=0.5)) == "finished"
    (event,) = events(caplog, "job_slow")
    assert "in wait_where_it_is_slow\n    await pause()" in event.getMessage()
    assert "in pause\n    await asyncio.sleep(HEARTBEAT_SECONDS)" in event.getMessage()


def test_a_job_of_ordinary_length_is_not_reported_as_slow(
    shop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    assert shop.work(shop.delivered(lambda: wait_for_extensions(2), **QUICK)) == "finished"
    assert not events(caplog, "job_slow")


# --- when it is over


def test_a_job_that_runs_on_after_its_transaction_is_not_extended(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    beats: list[float] = []
    extensions: list[int] = []
    beat, extend = Extender.extend, leases.extend_many
    monkeypatch.setattr(Extender, "extend", lambda self, *held: beats.append(held[1]) or beat(self, *held))  # type: ignore[func-returns-value]
    monkeypatch.setattr(leases, "extend_many", lambda *claims: extensions.append(1) or extend(*claims))  # type: ignore[func-returns-value]

    def act() -> None:
        with transaction():
            pass
        beats.clear()
        # One may have been under way.
        wait_until(lambda: beats)
        extensions.clear()
        wait_until(lambda: len(beats) >= 5)
        assert extensions == []

    job_id = shop.delivered(act, **QUICK)
    assert shop.work(job_id) == "finished"
    assert not [*events(caplog, "lease_lost"), *events(caplog, "failed_after_finish")]


@pytest.mark.parametrize("give_back", ["retry", "defer", "release"])
def test_a_heartbeat_after_the_job_was_given_back_changes_nothing(shop: Workshop, give_back: str) -> None:
    job_id = shop.delivered(lambda: None)
    claim = shop.claim(job_id)
    assert claim is not None
    with psycopg.connect(shop.database_url, autocommit=True) as connection:
        if give_back == "retry":
            assert outcomes.retry_later(connection, claim, 0, {})
        elif give_back == "defer":
            assert outcomes.defer(connection, claim, 0)
        else:
            # As for a process that has died, whose last heartbeat the server executes a moment later.
            assert leases.release(connection, [claim])
        before = shop.row(job_id)
        assert leases.extend_many(connection, [claim]) == {}
    assert shop.row(job_id) == before
    assert shop.work(job_id) == "finished"


def test_a_claim_given_back_twice_loses_one_attempt(shop: Workshop) -> None:
    job_id = shop.delivered(lambda: None)
    claim = shop.claim(job_id)
    assert claim is not None
    with psycopg.connect(shop.database_url, autocommit=True) as connection:
        assert leases.release(connection, [claim])
        before = shop.row(job_id)
        assert before["attempts"] == 0
        assert leases.release(connection, [claim]) == []
    assert shop.row(job_id) == before


@pytest.mark.parametrize("asks_first", [True, False], ids=["asks first", "does not ask"])
def test_a_worker_session_commits_as_the_server_is_configured(shop: Workshop, asks_first: bool) -> None:
    with closing(Database(shop.database_url, asks_first=asks_first)) as database:
        assert database.ask(lambda c: c.execute("SHOW synchronous_commit").fetchone()) == ("on",)


# --- of many


def test_all_leases_that_are_held_are_extended_by_one_statement(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[int]] = []
    extend = leases.extend_many

    def spy(connection: psycopg.Connection, held: Sequence[claims.Claim]) -> dict[int, datetime]:
        asked.append({claim.id for claim in held})
        return extend(connection, held)

    monkeypatch.setattr(leases, "extend_many", spy)
    registered = job(name=NAME, **QUICK)(lambda: None)
    ids = [shop.deliver(registered) for _ in range(3)]
    with psycopg.connect(shop.database_url, autocommit=True) as connection:
        named = deliveries(connection, ids)
        won = claims.claim_many(connection, named, worker="w", limits=registry.limits())
    held: list[Attempt] = []
    heartbeat = Heartbeat(shop.database_url, held.copy)
    held += [Attempt(claim, time.monotonic(), heartbeat, shop.database_url) for claim in won]
    kept = [attempt.lease for attempt in held]
    began = [lease.expires_at for lease in kept]
    try:
        for lease in kept:
            heartbeat.wake_by(lease.beat_at)
        wait_until(lambda: all(lease.expires_at > before for lease, before in zip(kept, began, strict=True)))
    finally:
        heartbeat.stop()
    assert all(each == set(ids) for each in asked)
