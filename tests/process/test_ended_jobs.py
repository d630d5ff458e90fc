"""Notifications of ended jobs: the next job begins without polling, and nothing depends on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

import psycopg
import pytest

from drain import queues, stage
from drain.admission import keyed_queue
from drain.admission.keyed_queue import RuledQueue
from drain.admission.rules import Rate, Rules
from drain.database import postgres
from drain.enqueuer import leader, sleeper
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.gauges import Gauges
from drain.enqueuer.health import Health
from drain.enqueuer.sleeper import Sleeper
from drain.enqueuer.term import Term
from drain.enqueuer.thin_queues import ThinQueues
from drain.tables import running
from drain.wire import Producer, is_thin, notifies_end
from drain.workers.lease.database import Database
from drain.workers.process import inbox
from drain.workers.stores import POSTGRES
from tests import jobs_in_batches as jobs
from tests.admitting import QUEUE, admitting, finish, stage as stage_rows
from tests.helpers import (
    NAMESPACE,
    PATIENCE_SECONDS,
    ids_in,
    new_enqueuer,
    pushed,
    query,
    stage_jobs,
    wait_until,
)
from tests.hostility import Place
from tests.worker_processes import Yard

LONG_SECONDS = 3600.0
FORGED = 20


@pytest.fixture
def never_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a leader look at running jobs only if notified."""
    monkeypatch.setattr(keyed_queue, "_NAP_SECONDS", LONG_SECONDS)


@contextmanager
def thin_leader(database_url: str, redis_url: str) -> Iterator[Enqueuer]:
    with (
        closing(Producer(redis_url, NAMESPACE)) as looks,
        new_enqueuer(database_url, redis_url, thin_queues=ThinQueues(looks, {"*"})) as enqueuer,
    ):
        yield enqueuer


@contextmanager
def listening(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(f"LISTEN {running.CHANNEL}".encode())
        yield connection


def next_payload(connection: psycopg.Connection[Any]) -> str:
    (notice,) = connection.notifies(timeout=PATIENCE_SECONDS, stop_after=1)
    return notice.payload


def limit(database_url: str, queue: str, **rules: Any) -> None:
    with psycopg.connect(database_url) as connection:
        queues.set(connection, queue, **rules)


def notify(database_url: str, names: str) -> None:
    query(database_url, f"SELECT count(pg_notify('{running.CHANNEL}', name)) FROM ({names}) AS forged (name)")


@pytest.mark.usefixtures("never_polls")
@pytest.mark.parametrize("rules", [{"running": 1}, {"running_per_key": 1}, {"ordered": True}], ids=str)
def test_the_next_job_begins_though_the_leader_never_polls(
    rules: dict[str, Any], yard: Yard, tmp_path: Path
) -> None:
    limit(yard.database_url, "default", **rules)
    paths = [str(tmp_path / f"{number}") for number in range(4)]
    with (
        thin_leader(yard.database_url, yard.redis_url) as enqueuer,
        yard.working("default"),
        psycopg.connect(yard.database_url) as connection,
    ):
        ids = [stage(connection, jobs.wait_for_file, [path], key="k") for path in paths]
        connection.commit()
        asleep = Sleeper(enqueuer, Event(), poll_seconds=1.0)
        deadline = monotonic() + PATIENCE_SECONDS
        for job_id, path in zip(ids, paths, strict=True):
            while not list(tmp_path.glob(f"{Path(path).name}.*")):
                assert monotonic() < deadline, f"job {job_id} did not begin"
                asleep.sleep(monotonic() + 0.05)
            assert ids_in(yard.database_url, "inflight_jobs") == [job_id]
            # Ends of short jobs are left to polls.
            long_at = monotonic() + inbox.SLOW_SECONDS
            wait_until(lambda: monotonic() > long_at)  # noqa: B023
            Path(path).touch()
        yard.wait_for("finished_jobs", ids)


def test_only_ends_that_jobs_may_wait_for_are_notified(yard: Yard) -> None:
    limit(yard.database_url, "limited", running=1)
    limit(yard.database_url, "rated", rate=Rate.parse("1000/s"))
    with (
        thin_leader(yard.database_url, yard.redis_url) as enqueuer,
        listening(yard.database_url) as connection,
        yard.working("default", "rated", "limited"),
    ):
        for queue in ("default", "rated"):
            ids = yard.stage(jobs.note, "a", "b", queue=queue)
            enqueuer.drain()
            yard.wait_for("finished_jobs", ids)
        # Failed attempts free a place too.
        (failed,) = yard.stage(jobs.sleep_too_long, "c", queue="limited")
        wait_until(lambda: enqueuer.drain() or yard.place(failed) == "dead_jobs")
        assert next_payload(connection) == "limited"


@pytest.mark.parametrize("rules", [{"running": 1}, {"fair": True}], ids=str)
def test_the_leader_marks_deliveries_under_the_rules_of_now(
    rules: dict[str, Any], database_url: str, redis_url: str
) -> None:
    with thin_leader(database_url, redis_url) as enqueuer:
        stage_jobs(database_url)
        enqueuer.drain()
        limit(database_url, "default", **rules)
        enqueuer.admission.follow()
        # The first counts as running.
        query(database_url, "DELETE FROM inflight_jobs")
        stage_jobs(database_url)
        wait_until(enqueuer.drain)
        before, under = pushed(redis_url)
        assert is_thin(before)
        assert is_thin(under)
        assert not notifies_end(before)
        assert notifies_end(under) == ("running" in rules)
        # `drain explain` finds it.
        (job_id,) = ids_in(database_url, "inflight_jobs")
        assert enqueuer.redis.ids_before("default", job_id, 2, within=10) == 1


def test_forged_notifications_cost_a_bounded_number_of_looks(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = count(), running.still_running

    def look_and_count(connection: postgres.Connection, queue: str, ids: list[int]) -> Any:
        next(looks)
        return look(connection, queue, ids)

    monkeypatch.setattr(running, "still_running", look_and_count)
    monkeypatch.setattr(keyed_queue, "_NAP_SECONDS", LONG_SECONDS)
    monkeypatch.setattr(keyed_queue, "_NOTICED_SECONDS", LONG_SECONDS)
    stage_rows(database_url, 3)
    with admitting(database_url, Rules(QUEUE, running=1)) as leader:
        first = leader.admit_all(1)
        for _ in range(1000):
            leader.queue.notice_end()
            leader.queue.look()
        assert next(looks) == 1
        # Not dropped, but put off.
        leader.queue._notice_from = 0.0
        leader.queue._noticed_at = float("inf")
        finish(database_url, first)
        leader.queue.notice_end()
        assert leader.queue.next_look_at <= monotonic()
        leader.admit_all(1)


def test_a_job_staged_after_an_end_begins_at_once(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_queue, "_NAP_SECONDS", LONG_SECONDS)
    stage_rows(database_url, 1)
    with admitting(database_url, Rules(QUEUE, running=1)) as leader:
        first = leader.settle(least=1)
        finish(database_url, first)
        leader.queue.notice_end()
        stage_rows(database_url, 1)
        leader.admit_all(1)


def test_a_queue_without_waiting_jobs_ignores_notifications(database_url: str) -> None:
    with admitting(database_url, Rules(QUEUE, running=1)) as leader:
        leader.settle()
        leader.queue.next_look_at = LONG_SECONDS + monotonic()
        leader.queue.notice_end()
        assert leader.queue.next_look_at > monotonic()


def test_a_busy_leader_keeps_no_notifications(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    noticed: list[str] = []

    def note(queue: RuledQueue) -> None:
        noticed.append(queue.rules.queue)

    monkeypatch.setattr(RuledQueue, "notice_end", note)
    limit(database_url, "default", running=1)
    stage_jobs(database_url, 2)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        wait_until(enqueuer.drain)
        notify(database_url, "SELECT 'q' || n FROM generate_series(1, 5000) AS n UNION ALL SELECT 'default'")
        # The server hands them over with the next answer.
        enqueuer.connection.execute("SELECT 1")
        enqueuer.run_once()
        assert list(enqueuer.connection.notifies(timeout=0)) == []
        assert noticed == ["default"]


def test_a_leader_that_redelivers_keeps_no_notifications(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
        term = Term(
            enqueuer, (), gauges=Gauges(enqueuer.redis), health=Health(), stop=Event(), poll_seconds=1.0
        )
        notify(database_url, "SELECT 'q' || n FROM generate_series(1, 5000) AS n")
        enqueuer.connection.execute("SELECT 1")
        term._redelivery.recover()
        assert list(enqueuer.connection.notifies(timeout=0)) == []


def test_a_sleeping_leader_runs_no_batch_for_forged_names(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, waits, batches = Event(), count(1), count(1)
    wait = leader.wait_for_notify

    def forge_and_wait(connection: postgres.Connection, seconds: float) -> set[str]:
        notify(database_url, "SELECT 'unknown'")
        if next(waits) == FORGED:
            stop.set()
        names = wait(connection, min(seconds, 1.0))
        assert names <= {"unknown"}
        return names

    monkeypatch.setattr(leader, "wait_for_notify", forge_and_wait)
    monkeypatch.setattr(sleeper, "_BRIEF_SECONDS", LONG_SECONDS)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        run_once = enqueuer.run_once

        def run_and_count() -> int:
            next(batches)
            return run_once()

        monkeypatch.setattr(enqueuer, "run_once", run_and_count)
        # A moved job is followed by a brief wait, the other kind of wait.
        for staged in (0, 1):
            stage_jobs(database_url, staged)
            while not stop.is_set():
                # A batch that may have left rows ends the sleep early.
                Sleeper(enqueuer, stop, poll_seconds=LONG_SECONDS).sleep(monotonic() + LONG_SECONDS)
            stop.clear()
            waits = count(1)
    assert next(batches) <= FORGED // 2


def test_a_worker_may_notify_unless_notifications_are_off(place: Place) -> None:
    with listening(place.url) as connection, place.connected("worker") as worker:
        worker.execute("SET drain.notify = 'off'")
        running.notify_ends(worker, {"off"})
        worker.execute("RESET drain.notify")
        running.notify_ends(worker, {"default"})
        assert next_payload(connection) == "default"


def test_a_notification_that_fails_is_neither_an_error_nor_an_outage(database_url: str) -> None:
    database = Database(database_url)
    assert not database.send_hint(lambda c: running.notify_ends(c, {"a"}))
    assert database.connection is None
    database.ask(lambda c: c.execute("SELECT 1"))
    assert database.send_hint(lambda c: running.notify_ends(c, {"a"}))
    # Longer than PostgreSQL takes.
    assert not database.send_hint(lambda c: running.notify_ends(c, {"a" * 9000}))
    assert database.connection is not None
    assert not database.connection.closed
    query(database_url, "SELECT pg_terminate_backend(%s)", postgres.backend_pid(database.connection))
    assert not database.send_hint(lambda c: running.notify_ends(c, {"a"}))
    assert not database.stores.is_away(POSTGRES)
    assert database.ask(lambda c: c.execute("SELECT 1").fetchall(), patience_seconds=0.0) == [(1,)]
    database.close()


def test_a_notification_does_not_wait_long_for_a_lock(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        running.notify_ends(connection, {"a"})
        assert connection.execute("SHOW lock_timeout").fetchall() == [("100ms",)]
