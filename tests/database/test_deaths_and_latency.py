"""What the overview says of the past: deaths by time step, and how long jobs waited and ran."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from drain.read import queue_overview
from drain.read.queue_overview import Latency
from drain.read.snapshots import snapshot
from tests.database.test_query_plans import explained, nodes
from tests.dead_rows import bury
from tests.helpers import query

BEGINS, STEP = datetime(2026, 11, 1, 12, tzinfo=UTC), timedelta(minutes=5)
FINISHED = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, staged_at, scheduled_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token, superseded_by)
VALUES (nextval('staged_jobs_id_seq'), 'm.f', '[]', '{}', %s, 0, %s, %s, now(), %s, %s, 1, %s, %s)
"""

FINISHED_MANY = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, staged_at, scheduled_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token)
SELECT nextval('staged_jobs_id_seq'), 'm.f', '[]', '{}', %s, 0, now(), now(), now(), now(),
    now() - number * interval '10 ms', 1, 1 FROM generate_series(1, %s) AS number
"""
MANY = 20_000


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


def died(database_url: str, connection: psycopg.Connection, *times: datetime, steps: int = 3) -> list[int]:
    for at in times:
        bury(database_url, died_at=at)
    found = queue_overview.count_died(connection, BEGINS, BEGINS + steps * STEP, STEP)
    assert set(found) <= {BEGINS + place * STEP for place in range(steps)}
    return [found.get(BEGINS + place * STEP, 0) for place in range(steps)]


def test_without_jobs_there_are_no_deaths(database_url: str, connection: psycopg.Connection) -> None:
    assert died(database_url, connection) == [0, 0, 0]
    assert queue_overview.count_died(connection, BEGINS, BEGINS, STEP) == {}


def test_a_step_includes_its_start_but_not_its_end(database_url: str, connection: psycopg.Connection) -> None:
    little = timedelta(microseconds=1)
    assert died(database_url, connection, BEGINS - little, BEGINS, BEGINS + STEP - little) == [2, 0, 0]
    assert died(database_url, connection, BEGINS + STEP, BEGINS + 3 * STEP - little, BEGINS + 3 * STEP) == [
        2,
        1,
        1,
    ]


@pytest.mark.parametrize("time", ["infinity", "-infinity", "4000-01-01 BC", "290000-01-01"])
def test_a_death_outside_the_calendar_belongs_to_no_step(
    database_url: str, connection: psycopg.Connection, time: str
) -> None:
    bury(database_url, count=2)
    query(database_url, "UPDATE dead_jobs SET died_at = %s::timestamptz", time)
    assert died(database_url, connection, BEGINS) == [1, 0, 0]


def test_deaths_are_counted_among_the_jobs_staged_last(
    database_url: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_overview, "DIED_UP_TO", 4)
    assert died(database_url, connection, *[BEGINS] * 3, *[BEGINS + STEP] * 3) == [1, 3, 0]


def finish(
    database_url: str,
    *,
    wait: Any = 0.0,
    run: Any = 1.0,
    ago: float = 60.0,
    queue: str = "mail",
    late: float = 0.0,
    token: int = 1,
    superseded_by: int | None = None,
) -> None:
    """Write a job with these wait and run times in seconds; `late` is the time from staging to due."""
    ended = datetime.now(UTC) - timedelta(seconds=ago)
    claimed = ended - timedelta(seconds=run)
    due = claimed - timedelta(seconds=wait)
    staged = due - timedelta(seconds=late)
    query(database_url, FINISHED, queue, staged, due, claimed, ended, token, superseded_by)


def measured(connection: psycopg.Connection, *queues: str) -> Latency:
    found = queue_overview.latency(connection, queues or ("mail",))
    return Latency(
        found.jobs, [round(each, 2) for each in found.wait], [round(each, 2) for each in found.run]
    )


def test_without_jobs_nothing_is_measured(database_url: str, connection: psycopg.Connection) -> None:
    nothing = Latency(0, [], [])
    assert measured(connection, "mail") == nothing
    assert queue_overview.latency(connection, []) == Latency(0, (), ())
    finish(database_url, ago=queue_overview.LATENCY_SECONDS + 5)
    finish(database_url, queue="calls")
    assert measured(connection, "mail") == nothing


def test_percentiles_cover_all_jobs_of_the_queues(database_url: str, connection: psycopg.Connection) -> None:
    for number in range(1, 101):
        finish(database_url, wait=number, run=2 * number, queue="mail" if number % 2 else "calls")
    assert measured(connection, "mail", "calls") == Latency(100, [50.5, 95.05, 99.01], [101.0, 190.1, 198.02])
    assert measured(connection, "mail").jobs == 50


def test_a_job_waits_from_when_it_is_due(database_url: str, connection: psycopg.Connection) -> None:
    finish(database_url, wait=3, run=2, late=3600)
    assert measured(connection) == Latency(1, [3.0] * 3, [2.0] * 3)


def test_a_job_staged_after_its_due_time_waits_from_its_staging(
    database_url: str, connection: psycopg.Connection
) -> None:
    finish(database_url, wait=3, run=2, late=-1)
    assert measured(connection).wait == [2.0] * 3


def test_a_wait_is_never_negative(database_url: str, connection: psycopg.Connection) -> None:
    finish(database_url, wait=-5)
    assert measured(connection).wait == [0.0] * 3


def test_the_wait_counts_only_jobs_claimed_once(database_url: str, connection: psycopg.Connection) -> None:
    finish(database_url, wait=100, run=9, token=2)
    assert measured(connection) == Latency(1, [], [9.0] * 3)
    finish(database_url, wait=4, run=9)
    assert measured(connection) == Latency(2, [4.0] * 3, [9.0] * 3)


def test_a_superseded_job_has_no_latency(database_url: str, connection: psycopg.Connection) -> None:
    finish(database_url, wait=100, run=100, superseded_by=7)
    assert measured(connection) == Latency(0, [], [])
    finish(database_url, wait=4, run=9)
    assert measured(connection) == Latency(1, [4.0] * 3, [9.0] * 3)


@pytest.mark.parametrize("time", ["infinity", "-infinity", "4000-01-01 BC"])
@pytest.mark.parametrize("column", ["scheduled_at", "staged_at", "claimed_at", "finished_at"])
def test_a_time_outside_the_calendar_counts_as_a_long_one(
    database_url: str, connection: psycopg.Connection, column: str, time: str
) -> None:
    finish(database_url, wait=4, run=9)
    query(database_url, f"UPDATE finished_jobs SET {column} = '{time}'")
    finish(database_url, wait=4, run=9)
    found = measured(connection)
    assert 1 <= found.jobs <= 2
    assert all(abs(seconds) < 10_000 * 366 * 86_400 for seconds in (*found.wait, *found.run))
    assert all(seconds >= 0 for seconds in found.wait)


def test_each_queue_has_its_share_of_the_rows(
    database_url: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_overview, "_LATENCY_OF", 30)
    for _ in range(20):
        finish(database_url, run=1, ago=600)
        finish(database_url, run=5, ago=60)
        finish(database_url, run=7, queue="calls")
    # Of each the latest.
    assert measured(connection, "mail", "calls") == Latency(30, [0.0] * 3, [6.0, 7.0, 7.0])
    # However many there are.
    queues = ["mail", *(f"queue {number}" for number in range(100)), "calls"]
    assert measured(connection, *queues).jobs == 20


@pytest.mark.parametrize("when", ["analyzed", "analyzed while it was empty"])
def test_neither_query_scans_a_whole_table(
    database_url: str, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    if when != "analyzed":
        query(database_url, "VACUUM ANALYZE")
    bury(database_url, died_at=BEGINS, count=MANY)
    for queue in ("mail", "calls"):
        query(database_url, FINISHED_MANY, queue, MANY)
    if when == "analyzed":
        query(database_url, "ANALYZE")
    given = {"since": BEGINS, "until": BEGINS + STEP, "length": STEP, "up_to": 100}
    given |= {"queues": ["mail", "calls"], "shares": [0.5], "seconds": 3600.0}
    for statement in (queue_overview._DIED, queue_overview._LATENCY):
        with snapshot(connection):
            (plan,) = explained(connection, statement, given, "ANALYZE, ")
        for node in nodes(plan["Plan"]):
            looked_at = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            assert looked_at * node["Actual Loops"] <= 200, (statement, node)
