"""Pauses of a bulk run between its commits."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from drain.database import postgres
from drain.errors import DrainError
from drain.pipeline import throttle
from drain.pipeline.runs import Limits, Run
from drain.pipeline.throttle import Throttle

FINISHED = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token)
SELECT n, 'm.f', '[]', '{}', 'default', %(priority)s, staged, staged, staged + make_interval(secs => %(delay)s),
    now(), now(), 1, 1
FROM generate_series(1, %(jobs)s) AS n, LATERAL (SELECT now() - interval '1 minute') AS times (staged)
"""


@pytest.fixture
def connection(database_url: str) -> Iterator[psycopg.Connection]:
    with postgres.connect(database_url, "test") as connection:
        yield connection


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a run reports that gives up after its second look."""
    monkeypatch.setattr(throttle, "_PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(throttle, "_LOOK_SECONDS", 0.001)
    return []


def test_an_idle_server_does_not_pause_a_run(connection: psycopg.Connection, reported: list[str]) -> None:
    Throttle(connection, Run(run_id="run"), reported.append).pause(10, 1.0)
    assert reported == []


def test_a_replication_slot_that_retains_wal_pauses_a_run(
    connection: psycopg.Connection, reported: list[str]
) -> None:
    run = Run(run_id="run", limits=Limits(wal_bytes=1024))
    connection.execute("SELECT pg_create_physical_replication_slot('behind', true)")
    try:
        connection.execute("SELECT pg_logical_emit_message(true, 'test', repeat('x', 100000))")
        with pytest.raises(DrainError, match=r"paused for .* because a replication slot keeps \d+ MB of WAL"):
            Throttle(connection, run, reported.append).pause(10, 1.0)
    finally:
        connection.execute("SELECT pg_drop_replication_slot('behind')")


@pytest.mark.parametrize(
    ("before", "delay", "pauses"), [(0, 0.05, False), (0, 0.2, True), (0.2, 0.3, False), (0.2, 0.5, True)]
)
def test_a_run_pauses_when_other_jobs_wait_twice_as_long(
    connection: psycopg.Connection, reported: list[str], before: float, delay: float, pauses: bool
) -> None:
    if before:
        connection.execute(FINISHED, {"priority": 0, "jobs": 10, "delay": before})
    act = Throttle(connection, Run(run_id="run"), reported.append)
    connection.execute("TRUNCATE finished_jobs")
    connection.execute(FINISHED, {"priority": 0, "jobs": 10, "delay": delay})
    if pauses:
        with pytest.raises(DrainError, match="other jobs reach Redis after"):
            act.pause(10, 1.0)
    else:
        act.pause(10, 1.0)


def test_the_runs_own_jobs_never_pause_it(connection: psycopg.Connection, reported: list[str]) -> None:
    act = Throttle(connection, Run(run_id="run", priority=100), reported.append)
    connection.execute(FINISHED, {"priority": 100, "jobs": 10, "delay": 30})
    act.pause(10, 1.0)
    assert reported == []


def test_ends_of_flows_and_superseded_jobs_never_pause_a_run(
    connection: psycopg.Connection, reported: list[str]
) -> None:
    act = Throttle(connection, Run(run_id="run"), reported.append)
    connection.execute(FINISHED, {"priority": 0, "jobs": 10, "delay": 30})
    connection.execute(
        "UPDATE finished_jobs SET attempts = id % 2, superseded_by = CASE WHEN id % 2 = 1 THEN 11 END"
    )
    act.pause(10, 1.0)
    assert reported == []


def test_a_rate_is_kept_between_two_commits(
    connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(throttle, "sleep", slept.append)
    act = Throttle(connection, Run(run_id="run", rows_per_second=10), lambda _: None)
    act.pause(100, 4.0)
    act.pause(100, 11.0)
    assert slept == [6.0, 0.0]
