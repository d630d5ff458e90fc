"""What `proof/postgres.py` says of PostgreSQL, asked of a real one with two sessions, as Hermitage does."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg.errors import DeadlockDetected, LockNotAvailable, SerializationFailure, UniqueViolation

from proof.postgres import (
    EXCLUSIVE,
    READ_COMMITTED,
    REPEATABLE_READ,
    Blocked,
    Database,
    LockNotAvailableError,
    Seen,
    SerializationFailureError,
    Statement,
    UniqueViolationError,
    Writer,
    Xid,
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


def _set(wanted: int, value: int) -> Statement:
    def set_value(writer: Writer, row_id: int, row: int) -> None:
        writer.update("counters", row_id, value)

    return Statement("", "counters", lambda at, row, lapsed: at == wanted, set_value)


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


@pytest.mark.parametrize("isolation", [READ_COMMITTED, REPEATABLE_READ])
def test_a_query_finds_the_rows_of_its_transaction_s_snapshot(
    sessions: Sessions, database_url: str, isolation: str
) -> None:
    first, second = sessions
    if isolation == REPEATABLE_READ:
        second.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    second.execute("UPDATE counters SET n = 5 WHERE id = 2")
    first.execute("UPDATE counters SET n = 7 WHERE id = 1")
    first.commit()
    real = {("counters", row_id): n for row_id, n in second.execute("SELECT id, n FROM counters")}

    database = model()
    database.begin("second", isolation)
    database.execute("second", _set(2, 5))
    database.execute("first", _set(1, 7))
    expected = 7 if isolation == READ_COMMITTED else 0
    assert database.read("second") == real == {("counters", 1): expected, ("counters", 2): 5}


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


def test_skip_locked_at_repeatable_read_fails_on_a_row_changed_after_the_snapshot(
    sessions: Sessions, database_url: str
) -> None:
    first, second = sessions
    second.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    second.execute("SELECT FROM counters")
    first.execute("UPDATE counters SET n = 1 WHERE id = 1")
    first.commit()
    with pytest.raises(SerializationFailure):
        second.execute("SELECT id FROM counters WHERE n < 2 FOR UPDATE SKIP LOCKED")

    database = model()
    database.begin("second", REPEATABLE_READ)
    database.read("second")
    database.execute("first", _set(1, 1))
    skipping = Statement(
        *("", "counters", lambda at, row, lapsed: row < 2, lambda w, at, row: at), skips_locked=True
    )
    with pytest.raises(SerializationFailureError):
        database.execute("second", skipping)


INSERT_OR_UPDATE = """
INSERT INTO counters VALUES (3, 2) ON CONFLICT (id) DO UPDATE SET n = excluded.n WHERE counters.n = 0 RETURNING id
"""


def _insert_or_update(value: int) -> Statement:
    def write(writer: Writer, row_id: int, row: int) -> int | None:
        is_written = writer.insert_or_update("counters", 3, value, lambda n: n == 0)
        return 3 if is_written else None

    return Statement("", "counters", lambda at, row, lapsed: at == 1, write, reads=True)


@pytest.mark.parametrize("first_value", [0, 1])
@pytest.mark.parametrize("commits", [True, False])
def test_an_insert_waits_for_an_uncommitted_one_and_then_updates_or_inserts(
    sessions: Sessions, database_url: str, first_value: int, *, commits: bool
) -> None:
    first, second = sessions
    first.execute(f"INSERT INTO counters VALUES (3, {first_value})".encode())
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(lambda: second.execute(INSERT_OR_UPDATE).fetchall())
        wait_until(lambda: is_waiting(database_url))
        first.commit() if commits else first.rollback()
        real = [row_id for (row_id,) in answer.result()]
    second.commit()

    database = model()
    database.begin("first", READ_COMMITTED)
    database.execute("first", _insert_or_update(first_value))
    assert database.execute("second", _insert_or_update(2)) == Blocked("first")
    if commits:
        database.commit("first", is_durable=True)
    else:
        database.roll_back("first")
    assert database.execute("second", _insert_or_update(2)) == real
    assert database.committed == rows(database_url)


def test_at_repeatable_read_an_insert_fails_on_a_row_that_it_cannot_see(
    sessions: Sessions, database_url: str
) -> None:
    first, second = sessions
    second.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    second.execute("SELECT FROM counters")
    first.execute("INSERT INTO counters VALUES (3, 0)")
    first.commit()
    with pytest.raises(SerializationFailure):
        second.execute(INSERT_OR_UPDATE)

    database = model()
    database.begin("second", REPEATABLE_READ)
    database.read("second")
    database.execute("first", _insert_or_update(0))
    with pytest.raises(SerializationFailureError):
        database.execute("second", _insert_or_update(2))


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


SEEN = """
SELECT pg_snapshot_xmax(seen)::text::bigint, ARRAY (SELECT pg_snapshot_xip(seen)::text::bigint)
FROM pg_current_snapshot() AS seen
"""
XID = "SELECT pg_current_xact_id_if_assigned()::text::bigint"


def see(writer: Writer, row_id: int, row: int) -> Any:
    return writer.seen


LOOK = Statement("", "counters", lambda at, row, lapsed: at == 1, see, reads=True)


def look(database: Database, session: str) -> Seen:
    answers = database.execute(session, LOOK)
    assert isinstance(answers, list)
    return Seen(*answers[0])


def insert_3(writer: Writer, row_id: int, row: int) -> int:
    writer.insert("counters", 3, 0)
    return int(writer.xid)


INSERT_3 = Statement("", "counters", lambda at, row, lapsed: at == 1, insert_3, reads=True)


@pytest.mark.parametrize("isolation", [READ_COMMITTED, REPEATABLE_READ])
def test_a_snapshot_sees_transactions_by_id_except_those_that_are_open(
    sessions: Sessions, database_url: str, isolation: str
) -> None:
    first, second = sessions
    first.execute("SELECT FROM counters")
    assert first.execute(XID).fetchone() == (None,)
    first.execute("SELECT FROM counters WHERE id = 1 FOR UPDATE")  # assigns the id
    ((base,),) = first.execute(XID).fetchall()
    second.isolation_level = psycopg.IsolationLevel[isolation.upper().replace(" ", "_")]
    looks = [second.execute(SEEN).fetchall()]
    insert = "INSERT INTO counters VALUES (3, 0) RETURNING pg_current_xact_id()::text::bigint"
    ((other,),) = query(database_url, insert)
    looks.append(second.execute(SEEN).fetchall())
    first.commit()
    looks.append(second.execute(SEEN).fetchall())
    real = [[Seen(Xid(xmax), tuple(xip)).sees(Xid(xid)) for xid in (base, other)] for ((xmax, xip),) in looks]

    database = Database({("counters", 1): 0, ("counters", 2): 0}, {}, next_xid=Xid(0))
    database.begin("first", READ_COMMITTED)
    database.execute("first", LOOK)
    assert database.transactions["first"].xid is None
    database.execute(
        "first", Statement("", "counters", lambda at, row, lapsed: at == 1, lambda w, at, row: None)
    )
    database.begin("second", isolation)
    seen = [look(database, "second")]
    assert database.execute("other", INSERT_3) == [other - base]
    seen.append(look(database, "second"))
    database.commit("first", is_durable=True)
    seen.append(look(database, "second"))
    assert [[each.sees(Xid(0)), each.sees(Xid(other - base))] for each in seen] == real
    is_fresh = isolation == READ_COMMITTED
    assert real == [[False, False], [False, is_fresh], [is_fresh, is_fresh]]


def test_a_snapshot_taken_after_a_write_does_not_list_its_own_transaction_as_open(
    sessions: Sessions, database_url: str
) -> None:
    # A leader that remembered this snapshot would never find rows of its own transaction.
    first, _ = sessions
    first.execute("INSERT INTO counters VALUES (3, 0)")
    ((own,),) = first.execute(XID).fetchall()
    query(database_url, "INSERT INTO counters VALUES (4, 0)")
    ((xmax, xip),) = first.execute(SEEN).fetchall()
    assert own < xmax
    assert own not in xip

    database = Database({("counters", 1): 0}, {}, next_xid=Xid(0))
    database.begin("first", READ_COMMITTED)
    database.execute("first", INSERT_3)
    database.execute("second", MODEL_OF_ADD)
    assert look(database, "first").sees(Xid(0))


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_an_insert_waits_for_an_insert_of_the_same_key(
    sessions: Sessions, database_url: str, outcome: str
) -> None:
    first, second = sessions
    first.execute("INSERT INTO counters VALUES (3, 0)")
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(second.execute, "INSERT INTO counters VALUES (3, 0)")
        wait_until(lambda: is_waiting(database_url))
        getattr(first, outcome)()
        error = answer.exception()
    assert isinstance(error, UniqueViolation) == (outcome == "commit")
    second.rollback()

    database = Database({("counters", 1): 0, ("counters", 2): 0}, {}, next_xid=Xid(0))
    database.begin("first", READ_COMMITTED)
    database.begin("second", READ_COMMITTED)
    database.execute("first", INSERT_3)
    assert database.execute("second", INSERT_3) == Blocked("first")
    if outcome == "commit":
        database.commit("first", is_durable=True)
        with pytest.raises(UniqueViolationError):
            database.execute("second", INSERT_3)
    else:
        database.roll_back("first")
        database.execute("second", INSERT_3)
    database.roll_back("second")
    assert database.committed == rows(database_url)


def test_a_shared_key_holds_back_a_delete_but_no_update(sessions: Sessions, database_url: str) -> None:
    first, second = sessions
    share = "SELECT id FROM counters WHERE id = 1 AND n = 0 FOR KEY SHARE"
    shares = [
        first.execute(share).fetchall(),
        query(database_url, "UPDATE counters SET n = 1 WHERE id = 1 RETURNING id"),
    ]
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(second.execute, "DELETE FROM counters WHERE id = 1")
        wait_until(lambda: is_waiting(database_url))
        first.commit()
        answer.result()
    second.execute("UPDATE counters SET n = 1 WHERE id = 2")
    # An update that is under way is not waited for: the last committed row counts.
    shares.append(query(database_url, share.replace("id = 1", "id = 2")))
    second.commit()
    assert shares == [[(1,)], [(1,)], [(2,)]]

    database = model()
    keep = lambda w, at, row: at  # noqa: E731
    first_key = Statement("", "counters", lambda at, row, lapsed: (at, row) == (1, 0), keep, shares_key=True)
    second_key = Statement("", "counters", lambda at, row, lapsed: (at, row) == (2, 0), keep, shares_key=True)
    add = Statement("", "counters", lambda at, row, lapsed: at == 1, _add)
    database.begin("first", READ_COMMITTED)
    database.begin("second", READ_COMMITTED)
    assert database.execute("first", first_key) == [1]
    assert database.execute("third", add) == [1]
    assert database.execute("second", MODEL_OF_DELETE) == Blocked("first")
    database.commit("first", is_durable=True)
    database.execute("second", MODEL_OF_DELETE)
    database.execute("second", Statement("", "counters", lambda at, row, lapsed: at == 2, _add))
    assert database.execute("third", second_key) == [2]
    database.commit("second", is_durable=True)
    assert database.committed == rows(database_url)


@pytest.mark.parametrize("locks_first", [True, False])
def test_truncate_empties_earlier_snapshots_unless_they_were_locked(
    sessions: Sessions, database_url: str, locks_first: bool
) -> None:
    report, leader = sessions
    report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    report.execute("LOCK TABLE counters IN ACCESS SHARE MODE" if locks_first else "SELECT")
    real: bool | list[Any]
    try:
        leader.execute("LOCK TABLE counters IN ACCESS EXCLUSIVE MODE NOWAIT")
        leader.execute("TRUNCATE counters")
        leader.commit()
        real = report.execute("SELECT id FROM counters").fetchall()
    except LockNotAvailable:
        real = True

    database = model()
    database.begin("report", REPEATABLE_READ)
    if locks_first:
        database.lock("report", ["counters"])
    else:
        database.read("report")
    database.begin("leader", READ_COMMITTED)
    modelled: bool | list[Any]
    try:
        database.lock("leader", ["counters"], EXCLUSIVE, waits=False)
        database.truncate("leader", "counters")
        database.commit("leader", is_durable=True)
        modelled = list(database.read("report"))
    except LockNotAvailableError:
        modelled = True
    assert modelled == real == (True if locks_first else [])


def test_lock_table_takes_no_snapshot_and_waits_for_a_truncation(
    sessions: Sessions, database_url: str
) -> None:
    report, leader = sessions
    report.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    leader.execute("TRUNCATE counters")
    with ThreadPoolExecutor(1) as thread:
        lock = thread.submit(lambda: report.execute("LOCK TABLE counters IN ACCESS SHARE MODE"))
        wait_until(lambda: is_waiting(database_url))
        leader.execute("INSERT INTO counters VALUES (3, 0)")
        leader.commit()
        lock.result()
    real = [row_id for (row_id,) in report.execute("SELECT id FROM counters")]

    database = model()
    database.begin("leader", READ_COMMITTED)
    database.truncate("leader", "counters")
    database.begin("report", REPEATABLE_READ)
    assert database.lock("report", ["counters"]) == Blocked("leader")
    Writer(database, "leader", database.transactions["leader"]).insert("counters", 3, 0)
    database.commit("leader", is_durable=True)
    assert database.lock("report", ["counters"]) is None
    assert [row_id for _, row_id in database.read("report")] == real == [3]


def test_a_write_waits_for_an_exclusive_lock_and_finds_the_table_empty(
    sessions: Sessions, database_url: str
) -> None:
    first, second = sessions
    first.execute("LOCK TABLE counters IN ACCESS EXCLUSIVE MODE NOWAIT")
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(lambda: second.execute(ADD).fetchall())
        wait_until(lambda: is_waiting(database_url))
        first.execute("TRUNCATE counters")
        first.commit()
        real = answer.result()
    second.commit()

    database = model()
    database.begin("first", READ_COMMITTED)
    database.lock("first", ["counters"], EXCLUSIVE, waits=False)
    add = replace(MODEL_OF_ADD, tables=("counters",))
    assert database.execute("second", add) == Blocked("first")
    database.truncate("first", "counters")
    database.commit("first", is_durable=True)
    assert database.execute("second", add) == real == []
    assert database.committed == rows(database_url) == {}
