"""What `proof/postgres.py` says of PostgreSQL, asked of a real one with two sessions, as Hermitage does."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg.errors import DeadlockDetected, SerializationFailure

from proof.postgres import (
    READ_COMMITTED,
    REPEATABLE_READ,
    Blocked,
    Database,
    SerializationFailureError,
    Statement,
    Writer,
)
from tests.helpers import query, wait_until

Sessions = tuple[psycopg.Connection[Any], psycopg.Connection[Any]]
ADD = "UPDATE counters SET n = n + 1 WHERE n < 2 RETURNING id"


def _add(writer: Writer, row_id: int, row: int) -> int:
    writer.update("counters", row_id, row + 1)
    return row_id


MODEL_OF_ADD = Statement("", "counters", lambda at, row, lapsed: row < 2, _add)
MODEL_OF_DELETE = Statement(
    "", "counters", lambda at, row, lapsed: at == 1, lambda w, at, row: w.delete("counters", at)
)


@pytest.fixture
def sessions(database_url: str) -> Iterator[Sessions]:
    query(database_url, "CREATE TABLE counters (id bigint PRIMARY KEY, n integer NOT NULL)")
    query(database_url, "INSERT INTO counters VALUES (1, 0), (2, 0)")
    with ExitStack() as stack:
        first, second = (stack.enter_context(psycopg.connect(database_url)) for _ in range(2))
        yield first, second


def model() -> Database:
    return Database({("counters", 1): 0, ("counters", 2): 0}, {})


def rows(database_url: str) -> dict[tuple[str, int], int]:
    return {("counters", row_id): n for row_id, n in query(database_url, "SELECT id, n FROM counters")}


def is_waiting(database_url: str) -> bool:
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return bool(query(database_url, waiting))


@pytest.mark.parametrize("change", ["n = 1", "n = 2"])
def test_read_committed_checks_the_condition_again_after_a_lock_wait(
    sessions: Sessions, database_url: str, change: str
) -> None:
    first, second = sessions
    first.execute(f"UPDATE counters SET {change} WHERE id = 1".encode())
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(lambda: second.execute(ADD).fetchall())
        wait_until(lambda: is_waiting(database_url))
        first.commit()
        real = sorted(row_id for (row_id,) in answer.result())
    second.commit()

    database = model()
    database.begin("first", READ_COMMITTED)
    value = int(change[-1])
    database.execute(
        "first",
        Statement(
            "",
            "counters",
            lambda at, row, lapsed: at == 1,
            lambda w, at, row: w.update("counters", at, value),
        ),
    )
    assert database.execute("second", MODEL_OF_ADD) == Blocked("first")
    database.commit("first", is_durable=True)
    assert database.execute("second", MODEL_OF_ADD) == real
    assert database.committed == rows(database_url)


def test_a_row_deleted_during_a_lock_wait_is_skipped(sessions: Sessions, database_url: str) -> None:
    first, second = sessions
    first.execute("DELETE FROM counters WHERE id = 1")
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(lambda: second.execute(ADD).fetchall())
        wait_until(lambda: is_waiting(database_url))
        first.commit()
        real = [row_id for (row_id,) in answer.result()]
    second.commit()

    database = model()
    database.begin("first", READ_COMMITTED)
    database.execute("first", MODEL_OF_DELETE)
    assert database.execute("second", MODEL_OF_ADD) == Blocked("first")
    database.commit("first", is_durable=True)
    assert database.execute("second", MODEL_OF_ADD) == real == [2]
    assert database.committed == rows(database_url)


def test_repeatable_read_fails_on_a_row_changed_after_its_snapshot(
    sessions: Sessions, database_url: str
) -> None:
    first, second = sessions
    second.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    second.execute("SELECT FROM counters")
    first.execute(ADD)
    first.commit()
    with pytest.raises(SerializationFailure):
        second.execute(ADD)
    second.rollback()

    database = model()
    database.begin("second", REPEATABLE_READ)
    look = Statement("", "counters", lambda at, row, lapsed: True, lambda w, at, row: at, reads=True)
    database.execute("second", look)
    database.execute("first", MODEL_OF_ADD)
    with pytest.raises(SerializationFailureError):
        database.execute("second", MODEL_OF_ADD)
    database.roll_back("second")
    assert database.committed == rows(database_url)


def test_skip_locked_leaves_out_locked_rows_and_never_waits(sessions: Sessions, database_url: str) -> None:
    first, second = sessions
    first.execute("SELECT FROM counters WHERE id = 1 FOR UPDATE")
    skipping = "SELECT id FROM counters WHERE n < 2 FOR UPDATE SKIP LOCKED"
    real = [row_id for (row_id,) in second.execute(skipping)]

    database = model()
    keep = lambda w, at, row: at  # noqa: E731
    database.begin("first", READ_COMMITTED)
    database.execute("first", Statement("", "counters", lambda at, row, lapsed: at == 1, keep))
    model_of_skipping = Statement("", "counters", lambda at, row, lapsed: row < 2, keep, skips_locked=True)
    assert database.execute("second", model_of_skipping) == real == [2]


def test_a_sequence_keeps_its_value_after_a_rollback(sessions: Sessions, database_url: str) -> None:
    first, _ = sessions
    first.execute("SELECT setval('drain_last_delivery', 7)")
    first.rollback()
    ((real,),) = query(database_url, "SELECT last_value FROM drain_last_delivery")

    database = Database({}, {"drain_last_delivery": 0})
    database.begin("first", READ_COMMITTED)
    nothing = Statement("", "", lambda *_: False, lambda *_: None, sequences={"drain_last_delivery": 7})
    database.execute("first", nothing)
    database.roll_back("first")
    assert database.sequences["drain_last_delivery"] == real == 7


def test_sessions_that_wait_for_each_other_deadlock(sessions: Sessions, database_url: str) -> None:
    first, second = sessions
    first.execute("UPDATE counters SET n = 1 WHERE id = 1")
    second.execute("UPDATE counters SET n = 1 WHERE id = 2")
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(lambda: first.execute("UPDATE counters SET n = 1 WHERE id = 2"))
        wait_until(lambda: is_waiting(database_url))
        failed = 0
        try:
            second.execute("UPDATE counters SET n = 1 WHERE id = 1")
        except DeadlockDetected:
            failed += 1
            second.rollback()
        try:
            answer.result()
        except DeadlockDetected:
            failed += 1
            first.rollback()
            second.rollback()
    assert failed == 1
