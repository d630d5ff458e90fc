"""Order of the jobs of a key: no job begins before an earlier one that was committed before it was staged."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus

from drain.admission import ordering
from drain.admission.rules import Rules
from drain.database import postgres
from drain.database.postgres import Connection
from drain.tables import changes, keyed
from drain.tables.changes import Change
from drain.tables.selections import Selection
from tests.admitting import QUEUE, Leader, admitting, bury, finish, ids_of, retry_later, stage
from tests.helpers import PATIENCE_SECONDS, ids_in, query, wait_until

ORDERED = Rules(QUEUE, ordered=True)


@contextmanager
def without_sweeps(database_url: str, rules: Rules = ORDERED) -> Iterator[Leader]:
    """Lead with hints alone, as between two sweeps of many keys."""
    with admitting(database_url, rules) as leader:
        leader.queue.look()
        assert not leader.queue.is_first_sweep
        leader.queue._streams._arrivals._sweep_at = float("inf")
        yield leader


def in_turn(leader: Leader, database_url: str, count: int) -> list[int]:
    """Ids in the order of admission, each job finished before the next."""
    ids: list[int] = []
    while len(ids) < count:
        ids += ids_of(leader.admit_all(1))
        finish(database_url, ids[-1:])
    return ids


def move(database_url: str, change: Change, *ids: int) -> None:
    """Change jobs as `drain jobs move` does."""
    with psycopg.connect(database_url) as connection:
        selection = Selection(ids=ids)
        changes.change_staged(connection, selection, change)
        changes.change_inflight(connection, selection, change)


def test_a_late_committed_job_goes_before_later_ones_of_its_key(
    database_url: str,
) -> None:
    with without_sweeps(database_url) as leader, psycopg.connect(database_url) as application:
        insert = f"INSERT INTO staged_jobs (job_name, queue, key) VALUES ('m.f', '{QUEUE}', 'a') RETURNING id"
        ((first,),) = application.execute(insert.encode()).fetchall()
        (other,) = stage(database_url, queue="other")
        wait_until(lambda: leader.admit() or leader.queue._streams._arrivals._last_id == other)
        application.commit()
        (second,) = stage(database_url, key="a")

        assert in_turn(leader, database_url, 2) == [first, second]


def test_a_key_is_read_only_when_its_turn_comes(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read also finds the job behind the first one, which tells when the key must be read again."""
    read: list[str] = []
    first_of_keys = keyed.first_of_keys

    def noticed(connection: Connection, queue: str, keys: Sequence[str]) -> dict[str, keyed.First]:
        read.extend(keys)
        return first_of_keys(connection, queue, keys)

    keys = [f"k{number}" for number in range(200)] * 5
    random.Random(1).shuffle(keys)
    insert = "INSERT INTO staged_jobs (job_name, queue, key) SELECT 'm.f', %s, unnest(%s::text[])"
    query(database_url, insert, QUEUE, keys)
    monkeypatch.setattr(keyed, "first_of_keys", noticed)
    with without_sweeps(database_url) as leader:
        admitted = 0
        while admitted < len(keys):
            rows = leader.admit_all(1, room=100)
            admitted += len(rows)
            finish(database_url, rows)
    assert len(read) < 1.35 * len(keys)


@pytest.mark.parametrize("priorities", [(0, -3, -5), (9, 5, 3), (9, 0, -5)])
def test_the_first_job_of_a_key_is_found_across_priorities(
    database_url: str, priorities: tuple[int, int, int]
) -> None:
    alone, behind, before = priorities
    (of_other,) = stage(database_url, key="b", priority=alone)
    (earlier,) = stage(database_url, key="a", priority=behind)
    (later,) = stage(database_url, key="a", priority=before)
    with psycopg.connect(database_url) as connection:
        found = keyed.first_of_keys(connection, QUEUE, ["a", "b"])

    assert {key: row.id for key, row in found.items()} == {"a": earlier, "b": of_other}
    assert found["a"].following == (before, later)


# Staged an hour ago for a time that has come since.
DUE: dict[str, Any] = {
    "staged_at": datetime.now(UTC) - timedelta(hours=1),
    "scheduled_at": datetime.now(UTC) - timedelta(minutes=1),
}


def test_a_due_job_goes_before_later_ones_even_before_it_matures(database_url: str) -> None:
    with without_sweeps(database_url) as leader:
        due = stage(database_url, key="a", priority=7, **DUE)
        stage(database_url, key="a", scheduled_at=datetime.now(UTC) + timedelta(hours=1))
        later = stage(database_url, key="a")

        assert in_turn(leader, database_url, 2) == due + later


@pytest.mark.parametrize("skip_locked", [False, True])
def test_a_locked_due_job_that_has_not_matured_holds_later_ones(
    database_url: str, *, skip_locked: bool
) -> None:
    with admitting(database_url, ORDERED) as leader, psycopg.connect(database_url) as other:
        due = stage(database_url, key="a", **DUE)
        later = stage(database_url, key="a")
        other.execute("SELECT FROM staged_jobs WHERE id = %s FOR UPDATE", due)
        if skip_locked:
            leader.queue.look()
            with leader.connection.transaction():
                assert leader.queue.select(10, skip_locked=True) == []
        assert leader.settle(0.1) == []
        other.rollback()

        assert in_turn(leader, database_url, 2) == due + later


def test_a_job_keeps_its_place_when_its_priority_changes(database_url: str) -> None:
    ids = stage(database_url, 3, key="a")
    with without_sweeps(database_url) as leader:
        first = leader.admit_all(1)
        move(database_url, Change(priority=7), ids[1])
        finish(database_url, first)

        assert ids_of(first) + in_turn(leader, database_url, 2) == ids


def test_a_job_moved_to_an_ordered_queue_is_ordered_by_its_id(database_url: str) -> None:
    (moved,) = stage(database_url, queue="other", key="a")
    ids = stage(database_url, 2, key="a")
    with without_sweeps(database_url) as leader:
        first = leader.admit_all(1)
        move(database_url, Change(queue=QUEUE), moved)
        finish(database_url, first)

        assert ids_of(first) + in_turn(leader, database_url, 2) == [ids[0], moved, ids[1]]


def test_a_retry_that_is_moved_to_an_ordered_queue_holds_its_key(database_url: str) -> None:
    ids = stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE)) as leader:
        leader.admit_all(2)
    query(database_url, "UPDATE inflight_jobs SET queue = 'other'")
    retry_later(database_url, ids[:1], seconds=-1)
    retry_later(database_url, ids[1:], seconds=-60)
    staged = stage(database_url, 2, key="a")
    again: list[int] = []
    with without_sweeps(database_url) as leader:
        first = leader.admit_all(1)
        move(database_url, Change(queue=QUEUE), *ids)
        finish(database_url, first)
        for _ in ids:
            assert leader.settle(0.1) == []
            again += wait_until(lambda: [leader.queue.look(), *leader.redeliver(1)][1:])
            finish(database_url, again[-1:])

        assert (ids_of(first), again, in_turn(leader, database_url, 1)) == (staged[:1], ids, staged[1:])


@pytest.mark.parametrize("seconds", [60, -1])
def test_a_waiting_retry_does_not_overtake_an_earlier_due_job(database_url: str, seconds: float) -> None:
    early, late, last = stage(database_url, 3, key="a")
    query(database_url, "UPDATE staged_jobs SET scheduled_at = now() + interval '1 h' WHERE id = %s", early)
    with without_sweeps(database_url) as leader:
        assert ids_of(leader.admit_all(1)) == [late]
        retry_later(database_url, [late], seconds=seconds)
        assert leader.settle(0.1) == []
        query(
            database_url,
            "UPDATE staged_jobs SET scheduled_at = now() - interval '1 s', matured_at = now() WHERE id = %s",
            early,
        )

        assert leader.redeliver(1) == []
        assert ids_of(leader.admit_all(1)) == [early]
        finish(database_url, [early])
        assert leader.settle(0.1) == []
        retry_later(database_url, [late], seconds=-1)
        assert wait_until(lambda: [leader.queue.look(), *leader.redeliver(1)][1:]) == [late]
        finish(database_url, [late])
        assert ids_of(leader.admit_all(1)) == [last]


def test_a_waiting_retry_holds_its_key_when_the_earlier_job_is_gone_meanwhile(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_of_keys, found = keyed.first_of_keys, []

    def cancel_afterwards(*arguments: Any) -> dict[str, keyed.First]:
        first = first_of_keys(*arguments)
        found.append(first["a"].id)
        query(database_url, "DELETE FROM staged_jobs WHERE id = %s", early)
        return first

    early, late, last = stage(database_url, 3, key="a")
    query(database_url, "UPDATE staged_jobs SET scheduled_at = now() + interval '1 h' WHERE id = %s", early)
    with without_sweeps(database_url) as leader:
        retry_later(database_url, leader.admit_all(1), seconds=60)
        assert leader.settle(0.1) == []
        due = "UPDATE staged_jobs SET scheduled_at = now() - interval '1 s', matured_at = now() WHERE id = %s"
        query(database_url, due, early)
        wait_until(leader.queue.look)
        monkeypatch.setattr(keyed, "first_of_keys", cancel_afterwards)
        # As after meeting a lock: each statement has its own snapshot.
        with postgres.transaction(leader.connection, IsolationLevel.READ_COMMITTED):
            assert leader.queue.select(10, skip_locked=True) == []
        assert found == [early, last]
        assert query(database_url, "SELECT id FROM inflight_jobs") == [(late,)]


def test_a_key_continues_when_the_retry_that_holds_it_is_gone(database_url: str) -> None:
    ids = stage(database_url, 2, key="a")
    with admitting(database_url, ORDERED) as leader:
        retry_later(database_url, leader.admit_all(1), seconds=60)
        assert leader.settle(0.1) == []
        query(database_url, "DELETE FROM inflight_jobs")

        assert ids_of(leader.admit_all(1)) == ids[1:]


def test_held_keys_are_checked_in_slices_between_batches(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[TransactionStatus, int]] = []
    held_keys = keyed.held_keys

    def note(connection: Any, queue: str, keys: Collection[str], **options: Any) -> dict[str, int | None]:
        asked.append((connection.info.transaction_status, len(keys)))
        return held_keys(connection, queue, list(keys), **options)

    monkeypatch.setattr(keyed, "held_keys", note)
    monkeypatch.setattr(ordering, "_SLICE", 3)
    for number in range(10):
        stage(database_url, 2, key=f"k{number}")
    with admitting(database_url, ORDERED) as leader:
        bury(database_url, leader.admit_all(10))
        wait_until(lambda: leader.admit() or len(leader.queue.allowances.held) == 10)
        asked.clear()
        leader.settle(0.1)
        wait_until(lambda: leader.admit() or sum(number for _, number in asked) >= 20)

        assert {status for status, _ in asked} == {TransactionStatus.IDLE}
        assert max(number for _, number in asked) <= 3
        query(database_url, "DELETE FROM dead_jobs WHERE key IN ('k3', 'k7')")
        assert {row.key for row in leader.admit_all(2)} == {"k3", "k7"}


# Threads that stage, customers, and events of each thread.
THREADS, CUSTOMERS, EVENTS = 8, 40, 150


def test_events_staged_under_a_customer_row_lock_start_in_order(
    database_url: str,
) -> None:
    query(database_url, "CREATE TABLE customers (id integer PRIMARY KEY)")
    query(database_url, "INSERT INTO customers SELECT generate_series(1, %s)", CUSTOMERS)
    begun = defaultdict[str | None, list[int]](list)
    with (
        staging(lambda number: stage_events(database_url, number)),
        admitting(database_url, ORDERED) as leader,
    ):
        while sum(map(len, begun.values())) < THREADS * EVENTS:
            rows = leader.admit_all(1)
            for row in rows:
                begun[row.key].append(row.id)
            finish(database_url, rows)

    assert dict(begun) == {key: sorted(ids) for key, ids in begun.items()}
    assert ids_in(database_url, "staged_jobs") == []


@contextmanager
def staging(work: Callable[[int], None]) -> Iterator[None]:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(PATIENCE_SECONDS)


def stage_events(database_url: str, number: int) -> None:
    """Stage events of customers, each behind the lock of the customer's row, in transactions of a few milliseconds."""
    chance = random.Random(number)
    with psycopg.connect(database_url) as connection:
        for _ in range(EVENTS):
            customer = chance.randint(1, CUSTOMERS)
            connection.execute("SELECT FROM customers WHERE id = %s FOR UPDATE", [customer])
            connection.execute(
                "INSERT INTO staged_jobs (job_name, queue, key, priority) VALUES ('m.f', %s, %s, %s)",
                [QUEUE, str(customer), chance.randrange(2)],
            )
            connection.execute("SELECT pg_sleep(%s)", [chance.random() * 0.01])
            connection.commit()
