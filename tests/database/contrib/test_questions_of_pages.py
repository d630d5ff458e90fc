"""Questions of the pages about claimed jobs and bulk runs: bounded, in pages, from an index."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from drain.contrib.web.pages import bulk as bulk_runs
from drain.database import locks, postgres
from drain.read import claimed
from drain.read.claimed import After
from drain.tables import bulk, crons
from tests.database.test_query_plans import scans_of
from tests.helpers import query

START = datetime(2026, 11, 1, tzinfo=UTC)
CLAIMS = """
INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, delivery,
    fencing_token, attempts, claimed_at, claimed_by, lease_expires_at)
SELECT n, 'm.f', '[]', '{{}}', 'mail', 0, now(), now(), n, 1, 1, '2026-11-01Z'::timestamptz + (n / 2) * interval '1 s',
    'host-' || n % 3 || ':' || n % 3 || ':abcdef', now() + (n % 7 - 2.5) * interval '1 hour'
FROM generate_series(1, {number}) AS n
"""


def claims(database_url: str, number: int) -> None:
    query(database_url, CLAIMS.format(number=number))


def test_the_longest_claims_come_first_and_pages_have_no_gaps(database_url: str) -> None:
    claims(database_url, 25)
    with postgres.connect(database_url, "test") as connection:
        whole = [row["id"] for row in claimed.longest(connection, 100)]
        parts: list[int] = []
        after = None
        while rows := claimed.longest(connection, 4, after):
            parts += [row["id"] for row in rows]
            after = After(rows[-1]["claimed_at"], rows[-1]["id"])
        assert parts == whole == list(range(1, 26))
        over = claimed.over(connection, 100)
        assert {row["id"] % 7 for row in over} == {0, 1, 2}
        assert all(row["is_over"] for row in over)
        assert [row["lease_expires_at"] for row in over] == sorted(row["lease_expires_at"] for row in over)
        assert claimed.by_process(connection) == {
            "host-0:0:abcdef": 8,
            "host-1:1:abcdef": 9,
            "host-2:2:abcdef": 8,
        }
        assert not claimed.are_too_many(connection)


def test_the_number_of_claims_read_is_bounded(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claimed, "MOST_CLAIMS", 10)
    claims(database_url, 30)
    with postgres.connect(database_url, "test") as connection:
        assert len(claimed.longest(connection, 100)) == 10
        assert sum(claimed.by_process(connection).values()) == 10
        assert claimed.are_too_many(connection)


def test_claims_are_found_by_index_among_many_waiting_jobs(database_url: str) -> None:
    claims(database_url, 50)
    query(
        database_url,
        "INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, "
        "delivery) SELECT n, 'm.f', '[]', '{}', 'mail', 0, now(), now(), n FROM generate_series(1000, 20000) AS n",
    )
    query(database_url, "ANALYZE inflight_jobs")
    parameters = {"most": 10_000, "limit": 51, "after_at": None, "after_id": None}
    with psycopg.connect(database_url) as connection:
        connection.execute("SET enable_seqscan = off")
        for statement in (claimed.LONGEST, claimed.OVER, claimed.BY_PROCESS):
            found = scans_of(connection, statement, parameters)
            assert set(found) <= {"inflight_jobs_claimed", "inflight_jobs_pkey", "looked_at", "page"}, found
            assert max(found.values()) <= 60


def test_a_job_that_waits_for_its_next_attempt_is_not_claimed(database_url: str) -> None:
    claims(database_url, 2)
    query(database_url, "UPDATE inflight_jobs SET lease_expires_at = NULL, next_run_at = now() WHERE id = 1")
    with postgres.connect(database_url, "test") as connection:
        assert [row["id"] for row in claimed.longest(connection, 9)] == [2]
        assert claimed.claim_of(connection, 3) is None


def test_staged_runs_are_paged_latest_first(database_url: str) -> None:
    for number in range(7):
        at = START + timedelta(hours=number // 2)
        name = f"backfill-20261101-00000{number}-abcdef" if number % 2 else f"mine <b>{number}"
        query(database_url, "INSERT INTO bulk_runs VALUES (%s, %s, %s)", name, number, at)
    with postgres.connect(database_url, "test") as connection:
        whole = bulk_runs.latest(connection, 100)
        parts: list[bulk_runs.StagedRun] = []
        after = None
        while rows := bulk_runs.latest(connection, 3, after):
            parts += rows
            after = (rows[-1].committed_at, rows[-1].run_id)
    assert parts == whole
    assert len(whole) == 7
    assert [run.committed_at for run in whole] == sorted((run.committed_at for run in whole), reverse=True)
    assert {run.kind for run in whole} == {"", "backfill"}


def test_a_running_run_is_distinguished_from_an_abandoned_one(database_url: str) -> None:
    with postgres.connect(database_url, "driver") as driver, postgres.connect(database_url, "test") as asking:
        for run in ("driven", "left"):
            bulk.begin(driver, run, None)
        assert bulk.try_to_run(driver, "driven")
        found = {run.run_id: run for run in bulk_runs.under_way(asking, 10)}
        assert {name: run.is_driven for name, run in found.items()} == {"driven": True, "left": False}
        assert bulk_runs.work(asking, 10) == []
        assert locks.try_lock(driver, locks.RECONCILE, "m.f")
        assert locks.try_lock(driver, locks.ARCHIVE)
        assert {work.kind for work in bulk_runs.work(asking, 10)} == {"reconcile", "archive"}
        assert all(work.since for work in bulk_runs.work(asking, 10))


def test_schedules_are_paged_by_name(database_url: str) -> None:
    names = ["b", "a b", "<b>", "ä", "B", "a"]
    for name in names:
        query(database_url, "INSERT INTO crons (name, job_name, cron) VALUES (%s, 'm.f', '0 3 * * *')", name)
    with postgres.connect(database_url, "test") as connection:
        whole = [row["name"] for row in crons.page(connection, 100)]
        parts: list[str] = []
        while rows := crons.page(connection, 2, parts[-1] if parts else None):
            parts += [row["name"] for row in rows]
    assert parts == whole
    assert set(whole) == set(names)
