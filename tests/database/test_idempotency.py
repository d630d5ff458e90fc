"""A job that is staged again under the same idempotency key is the job that is there already."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from drain import IdempotencyConflictError, stage
from drain.database import postgres
from drain.enqueuer.housekeeping import ExpiredKeys
from drain.workers import job
from tests.helpers import ids_in, query, wait_until

KEY = "webhook:9f"


def sqlalchemy_engine(url: str) -> Any:
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1))


def expire(database_url: str, interval: str = "1 s") -> None:
    query(database_url, f"UPDATE idempotency_keys SET expires_at = now() - interval '{interval}'")


def test_a_second_call_returns_the_first_id_and_stages_nothing(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        first = stage(connection, "m.f", [1], {"b": 2, "a": 1}, idempotency_key=KEY)
        assert stage(connection, "m.f", [1], {"a": 1, "b": 2}, idempotency_key=KEY) == first
        connection.commit()
        assert stage(connection, "m.f", [1], {"b": 2, "a": 1}, idempotency_key=KEY, priority=9) == first
        assert stage(connection, "m.f", [1], {"b": 2, "a": 1}, idempotency_key="another") != first
    assert len(ids_in(database_url, "staged_jobs")) == 2


@pytest.mark.parametrize("name_and_arguments", [("m.g", [1]), ("m.f", [2]), ("m.f", ["1"]), ("m.f", [1, 1])])
def test_a_different_job_under_the_same_key_is_a_conflict(
    database_url: str, name_and_arguments: tuple[str, list[Any]]
) -> None:
    with psycopg.connect(database_url) as connection:
        first = stage(connection, "m.f", [1], idempotency_key=KEY)
        with pytest.raises(
            IdempotencyConflictError, match=f"'{KEY}' is that of job {first}, which has another"
        ):
            stage(connection, *name_and_arguments, idempotency_key=KEY)
        assert connection.info.transaction_status == TransactionStatus.INTRANS
    assert ids_in(database_url, "staged_jobs") == [first]


def test_a_rolled_back_key_is_free(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        stage(connection, "m.f", [1], idempotency_key=KEY)
        connection.rollback()
        kept = stage(connection, "m.f", [2], idempotency_key=KEY)
    assert ids_in(database_url, "staged_jobs") == [kept]


def test_all_options_work_as_without_a_key(database_url: str) -> None:
    @job(name="once.greet", queue="mail", max_attempts=3, timeout_seconds=7, key=lambda name: f"of {name}")
    def greet(name: str) -> None:
        """A job that this test stages and never runs."""

    options: dict[str, Any] = {
        "priority": -3,
        "run_at": datetime(2050, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
        "expires_at": datetime(2051, 1, 1, tzinfo=UTC),
        "tag": 'a "tag"',
        "context": {"trace": "ü"},
        "unique_key": "u",
        "keep": "last",
        "quiet": timedelta(seconds=1.5),
    }
    with psycopg.connect(database_url, autocommit=True) as connection:
        stage(connection, greet, ["Ada"], **options)
        stage(connection, greet, ["Ada"], **options, idempotency_key=KEY)
        stage(connection, "m.f")
        stage(connection, "m.f", idempotency_key="defaults")
    different = "'{id,salt,staged_at,scheduled_at}'::text[]"
    rows = query(
        database_url,
        f"SELECT to_jsonb(job) - {different}, queue = 'mail' OR scheduled_at = staged_at, "
        "CASE queue WHEN 'mail' THEN scheduled_at END FROM staged_jobs AS job ORDER BY id",
    )
    assert rows[0] == rows[1]
    assert rows[2] == rows[3]
    assert rows[0][2] == options["run_at"] + options["quiet"]


def test_it_works_on_sqlalchemy(database_url: str) -> None:
    engine = sqlalchemy_engine(database_url)
    with Session(engine) as session, session.begin():
        first = stage(session, "m.f", [1], idempotency_key=KEY)
    with engine.connect() as connection, connection.begin():
        assert stage(connection, "m.f", [1], idempotency_key=KEY) == first
        with pytest.raises(IdempotencyConflictError):
            stage(connection, "m.f", [2], idempotency_key=KEY)
    engine.dispose()
    assert ids_in(database_url, "staged_jobs") == [first]


def waits_for_a_lock(database_url: str) -> bool:
    return bool(
        query(
            database_url,
            "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
        )
    )


def race(
    database_url: str, isolation: IsolationLevel, end: Callable[[psycopg.Connection], None]
) -> tuple[int, int | Exception]:
    """Stage twice under one key at a time; the first transaction ends once the second one waits for it."""
    results: list[int | Exception] = []

    def second() -> None:
        with psycopg.connect(database_url) as connection:
            connection.isolation_level = isolation
            try:
                results.append(stage(connection, "m.f", [1], idempotency_key=KEY))
            except psycopg.errors.SerializationFailure as error:
                results.append(error)

    thread = threading.Thread(target=second)
    with psycopg.connect(database_url) as connection:
        job_id = stage(connection, "m.f", [1], idempotency_key=KEY)
        thread.start()
        wait_until(lambda: waits_for_a_lock(database_url))
        end(connection)
    thread.join()
    return job_id, results[0]


def test_a_second_transaction_waits_for_the_commit_of_the_first_and_gets_its_id(database_url: str) -> None:
    first, second = race(database_url, IsolationLevel.READ_COMMITTED, psycopg.Connection.commit)
    assert first == second
    assert ids_in(database_url, "staged_jobs") == [first]


def test_a_second_transaction_stages_when_the_first_one_rolls_back(database_url: str) -> None:
    first, second = race(database_url, IsolationLevel.READ_COMMITTED, psycopg.Connection.rollback)
    assert first != second
    assert ids_in(database_url, "staged_jobs") == [second]


def test_at_repeatable_read_the_second_transaction_must_be_retried(database_url: str) -> None:
    first, second = race(database_url, IsolationLevel.REPEATABLE_READ, psycopg.Connection.commit)
    assert isinstance(second, psycopg.errors.SerializationFailure)
    with psycopg.connect(database_url) as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        assert stage(connection, "m.f", [1], idempotency_key=KEY) == first


def test_a_key_is_kept_for_a_week_or_the_requested_time(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        stage(connection, "m.f", idempotency_key=KEY)
        stage(connection, "m.f", idempotency_key="long", idempotency_period=timedelta(days=30))
    kept = (
        "SELECT date_part('day', expires_at - staged_at + interval '1 hour')::integer FROM idempotency_keys"
    )
    assert query(database_url, f"{kept} ORDER BY 1") == [(7,), (30,)]


def test_an_expired_key_can_be_used_for_a_new_job(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        first = stage(connection, "m.f", [1], idempotency_key=KEY)
        expire(database_url)
        second = stage(connection, "m.g", [2], idempotency_key=KEY)
        assert stage(connection, "m.g", [2], idempotency_key=KEY) == second != first
    assert ids_in(database_url, "staged_jobs") == [first, second]


def test_the_leader_deletes_keys_an_hour_after_they_expire(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        stage(connection, "m.f", idempotency_key="old")
        expire(database_url, "2 hours")
        stage(connection, "m.f", idempotency_key="new")
        query(
            database_url,
            "UPDATE idempotency_keys SET expires_at = now() - interval '1 s' WHERE idempotency_key = 'postgres new'",
        )
    with postgres.connect(database_url, "test") as connection:
        assert ExpiredKeys(connection).run_once() == 1
        assert ExpiredKeys(connection).run_once() == 0
    assert query(database_url, "SELECT idempotency_key FROM idempotency_keys") == [("postgres new",)]


@pytest.mark.parametrize("argument", [1, 2])
def test_at_repeatable_read_a_key_deleted_after_the_snapshot_is_free(
    database_url: str, argument: int
) -> None:
    with psycopg.connect(database_url, autocommit=True) as other:
        first = stage(other, "m.f", [1], idempotency_key=KEY)
        expire(database_url, "2 hours")
        with psycopg.connect(database_url) as connection:
            connection.isolation_level = IsolationLevel.REPEATABLE_READ
            connection.execute("SELECT FROM idempotency_keys")
            with postgres.connect(database_url, "test") as leader:
                assert ExpiredKeys(leader).run_once() == 1
            second = stage(connection, "m.f", [argument], idempotency_key=KEY)
        assert stage(other, "m.f", [argument], idempotency_key=KEY) == second != first
    assert ids_in(database_url, "staged_jobs") == [first, second]


def test_one_sql_call_stages_once_from_another_language(database_url: str) -> None:
    call = (
        "SELECT drain_stage_once('k', 3600, "
        "jsonb_build_object('job_name', 'm.f', 'job_args', jsonb_build_array({})))"
    )
    assert query(database_url, call.format(1)) == [(1,)]
    assert query(database_url, call.format(1)) == [(1,)]
    assert query(database_url, call.format(2)) == [(-1,)]
    with pytest.raises(psycopg.errors.CheckViolation):
        query(database_url, """SELECT drain_stage_once('l', 3600, '{"job_name": ""}')""")
    assert query(database_url, "SELECT idempotency_key FROM idempotency_keys") == [("postgres k",)]
