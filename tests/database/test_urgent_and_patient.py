"""Rows of a priority above 0 are taken in the order of theirs, and keep no other row waiting."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from drain import metrics
from drain.config import Settings
from drain.enqueuer import cursor, due_rows
from drain.enqueuer.cursor import ScanCursor
from drain.enqueuer.daemon import Daemon
from drain.enqueuer.lanes import PATIENT_KINDS
from drain.read import system
from drain.tables import bulk as bulk_run, lanes, staged
from tests.helpers import ids_in, new_enqueuer, pushed_jobs, query, stage_jobs
from tests.process.test_truncation import pages_read

BULK = "INSERT INTO staged_jobs (job_name, priority) SELECT 'm.f', 100 FROM generate_series(1, %s)"


@pytest.fixture
def every_sweep_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor, "_SCAN_SECONDS", -1.0)


@pytest.fixture
def bulk(database_url: str) -> Iterator[psycopg.Connection]:
    """A transaction that has staged ten thousand rows, and is still open."""
    with psycopg.connect(database_url) as connection:
        staged.announce_bulk(connection)
        connection.execute(BULK, [10_000])
        yield connection


def test_jobs_are_drained_in_the_order_of_priority_and_id(database_url: str, redis_url: str) -> None:
    ids = [
        stage_jobs(database_url, priority=priority)[0] for priority in (100, 7, -5, 0, 2**31 - 1, -(2**31), 0)
    ]
    with new_enqueuer(database_url, redis_url, batch_size=2) as draining:
        assert draining.drain() == 7

    assert pushed_jobs(redis_url) == [ids[number] for number in (5, 2, 3, 6, 1, 0, 4)]


def test_an_urgent_row_is_always_in_the_next_batch(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = stage_jobs(database_url, 6, priority=100)
    with new_enqueuer(database_url, redis_url, batch_size=2) as draining:
        draining.run_once()
        monkeypatch.setattr(ScanCursor, "sweep_is_due", lambda _: False)
        draining.run_once()
        (urgent,) = stage_jobs(database_url)
        draining.run_once()
        draining.flush()
        assert pushed_jobs(redis_url)[:5] == [*patient[:4], urgent]
        draining.drain()

    assert sorted(pushed_jobs(redis_url)) == [*patient, urgent]


def test_few_patient_rows_are_taken_while_urgent_ones_arrive(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_rows, "_BESIDE_URGENT", 3)
    monkeypatch.setattr(due_rows, "monotonic", lambda: 1000.0)
    stage_jobs(database_url, 20, priority=100)
    with new_enqueuer(database_url, redis_url, batch_size=10) as draining:
        taken = []
        for _ in range(4):
            stage_jobs(database_url)
            taken.append(draining.run_once())
        assert taken == [1, 4, 1, 4]

        # A second after the last urgent one, a batch is as large as it may be.
        assert draining.run_once() == 3
        monkeypatch.setattr(due_rows, "monotonic", lambda: float("inf"))
        assert draining.run_once() == 10
        assert draining.drain() == 1


def test_reading_urgent_rows_skips_no_uncommitted_patient_ones(
    database_url: str, redis_url: str, bulk: psycopg.Connection
) -> None:
    with new_enqueuer(database_url, redis_url) as draining:
        assert pages_read(draining, staged.START, kind=lanes.PATIENT) > 100
        assert pages_read(draining, staged.START, kind=lanes.URGENT) < 20


def test_patient_rows_are_not_scanned_during_a_bulk_load(
    database_url: str, redis_url: str, bulk: psycopg.Connection, every_sweep_is_slow: None
) -> None:
    with new_enqueuer(database_url, redis_url) as draining:
        assert draining.drain() == 0
        (patient,) = stage_jobs(database_url, priority=5)
        (urgent,) = stage_jobs(database_url)
        assert draining.drain() == 1
        assert draining.awaits_bulk
        assert ids_in(database_url, "staged_jobs") == [patient]

        bulk.commit()
        assert draining.drain() == 10_001
        assert not draining.awaits_bulk

    assert pushed_jobs(redis_url)[:2] == [urgent, patient]


def test_a_rolled_back_bulk_load_delays_nothing(
    database_url: str, redis_url: str, bulk: psycopg.Connection, every_sweep_is_slow: None
) -> None:
    with new_enqueuer(database_url, redis_url) as draining:
        assert draining.drain() == 0
        stage_jobs(database_url, priority=5)
        bulk.rollback()
        assert draining.drain() == 1


def test_a_run_announces_itself_until_it_has_committed(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as run, psycopg.connect(database_url) as other:
        bulk_run.begin(run, "run", None)
        assert not staged.is_bulk_under_way(other)
        other.rollback()
        with bulk_run.staging(run, "run", ["job_name"]):
            assert staged.is_bulk_under_way(other)
        assert not staged.is_bulk_under_way(other)


def test_metrics_do_not_scan_patient_rows_during_a_bulk_load(
    database_url: str,
    redis_url: str,
    bulk: psycopg.Connection,
    every_sweep_is_slow: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[lanes.Lane]] = []

    def ask(_: psycopg.Connection, after: Any) -> dict[str, float]:
        asked.append(list(after))
        daemon.stop()
        return {"default": 1.0}

    lags: list[float] = []
    monkeypatch.setattr(metrics.LAG, "set", lags.append)
    monkeypatch.setattr(lanes, "oldest_due_seconds", ask)
    monkeypatch.setattr(system, "count_staged", lambda *_: pytest.fail("staged rows were counted"))
    daemon = Daemon(Settings(database_url=database_url, redis_url=redis_url))
    daemon.run()

    assert not any(lane.kind in PATIENT_KINDS for lane in asked[0])
    # Its term is over: what it has measured is forgotten.
    assert lags == [1.0, 0]


def test_the_lag_is_that_of_the_priority_with_the_oldest_row(database_url: str) -> None:
    for priority, seconds in ((0, 10), (5, 300), (100, 60)):
        query(
            database_url,
            "INSERT INTO staged_jobs (job_name, priority, staged_at, scheduled_at) "
            "SELECT 'm.f', %s, at, at FROM (SELECT now() - make_interval(secs => %s)) AS staged (at)",
            priority,
            seconds,
        )
    with psycopg.connect(database_url) as connection:
        for kind, lag in ((lanes.URGENT, 10), (lanes.PATIENT, 300)):
            found = lanes.oldest_due_seconds(connection, {lanes.Lane(kind, "default"): staged.START})
            assert round(found["default"], -1) == lag
        assert round(lanes.oldest_due_seconds(connection)["default"], -1) == 300


@pytest.mark.parametrize(("poisoned", "others"), [(100, 0), (0, 100)])
def test_an_unmovable_row_is_found_while_other_priorities_keep_arriving(
    database_url: str, redis_url: str, poisoned: int, others: int
) -> None:
    query(database_url, "ALTER TABLE inflight_jobs ADD CONSTRAINT no_poison CHECK (job_name <> 'poison')")
    before = stage_jobs(database_url, 3, priority=poisoned)
    (poison,) = stage_jobs(database_url, job="poison", priority=poisoned)
    behind = stage_jobs(database_url, 16, priority=poisoned)
    with new_enqueuer(database_url, redis_url) as draining:
        for _ in range(100):
            stage_jobs(database_url, priority=others)
            draining.run_once()
        draining.flush()
        assert ids_in(database_url, "dead_jobs") == [poison]
        assert {*before, *behind} <= set(pushed_jobs(redis_url))


def test_batches_regain_their_size_once_the_poisoned_row_is_gone(database_url: str, redis_url: str) -> None:
    query(database_url, "ALTER TABLE inflight_jobs ADD CONSTRAINT no_poison CHECK (job_name <> 'poison')")
    stage_jobs(database_url, job="poison", priority=100)
    stage_jobs(database_url, 40, priority=100)
    with new_enqueuer(database_url, redis_url, batch_size=8) as draining:
        for _ in range(100):
            stage_jobs(database_url)
            draining.run_once()
        assert not draining._due_rows._size.is_reduced
