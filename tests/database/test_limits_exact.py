"""Limits under many workers and leaders that take over from each other, by a log of all that begins and ends."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from drain.admission.rules import Rules
from tests.admitting import QUEUE, Leader, admitting, stage
from tests.helpers import query, wait_until

KEYS = [f"k{number}" for number in range(6)]
JOBS = {"limited": 240, "ordered": 60}
# Notes each change of the set of running jobs under its transaction. Nothing here waits for another transaction.
WITNESS = """
CREATE TABLE witness (
    number bigint GENERATED ALWAYS AS IDENTITY, xid xid NOT NULL, id bigint, key text, change integer NOT NULL);
CREATE FUNCTION note_running() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before integer := CASE WHEN TG_OP <> 'INSERT' THEN (OLD.next_run_at IS NULL)::integer ELSE 0 END;
    later  integer := CASE WHEN TG_OP <> 'DELETE' THEN (NEW.next_run_at IS NULL)::integer ELSE 0 END;
BEGIN
    IF before <> later THEN
        INSERT INTO witness (xid, id, key, change)
        VALUES (pg_current_xact_id()::xid, coalesce(NEW.id, OLD.id), coalesce(NEW.key, OLD.key), later - before);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER note_running AFTER INSERT OR UPDATE OR DELETE ON inflight_jobs
    FOR EACH ROW EXECUTE FUNCTION note_running();
"""
PICK = (
    "SELECT id FROM inflight_jobs WHERE next_run_at IS NULL ORDER BY random() LIMIT %s FOR UPDATE SKIP LOCKED"
)
ENDS = [
    "DELETE FROM inflight_jobs WHERE id = ANY (%s)",
    "UPDATE inflight_jobs SET next_run_at = clock_timestamp(), attempts = attempts + 1 WHERE id = ANY (%s)",
    "UPDATE inflight_jobs SET lease_expires_at = now() + interval '1 min' WHERE id = ANY (%s)",
]


def work(database_url: str, stop: threading.Event, seed: int, pause: float) -> None:
    """End some of the running jobs after another: most finish, some are tried again, some are only claimed."""
    chance = random.Random(seed)
    with psycopg.connect(database_url, autocommit=True) as connection:
        while not stop.is_set():
            with connection.transaction(force_rollback=chance.random() < 0.1):
                ids = [id_ for (id_,) in connection.execute(PICK, [chance.randrange(1, 5)])]
                connection.execute(chance.choices(ENDS, [6, 1, 3])[0].encode(), [ids])
            stop.wait(pause)


@contextmanager
def working(database_url: str, threads: int, pause: float) -> Iterator[None]:
    stop = threading.Event()
    workers = [
        threading.Thread(target=work, args=(database_url, stop, number, pause)) for number in range(threads)
    ]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        stop.set()
        for worker in workers:
            worker.join()


def lead(leader: Leader, batches: int) -> None:
    """Lead for so many batches, and stop at any point of the last one."""
    for _ in range(batches):
        leader.queue.look()
        leader.redeliver()
        leader.admit(room=random.randrange(1, 40))
        leader.nap()
    if batches % 2:
        leader.queue.look()
        with leader.connection.transaction(force_rollback=batches % 3 == 0):
            ids = [row.id for row in leader.queue.select(20)]
            leader.connection.execute(
                "WITH moved AS (DELETE FROM staged_jobs WHERE id = ANY (%s) RETURNING *) INSERT INTO inflight_jobs "
                "(id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, delivery, key) "
                "SELECT id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, 1, key "
                "FROM moved",
                [ids],
            )


@pytest.mark.parametrize(
    "rules",
    [Rules(QUEUE, running=16, running_per_key=3, fair=True), Rules(QUEUE, ordered=True)],
    ids=["limited", "ordered"],
)
def test_under_many_workers_and_leaders_no_limit_is_ever_exceeded(database_url: str, rules: Rules) -> None:
    query(database_url, WITNESS)
    jobs = JOBS["ordered" if rules.ordered else "limited"]
    for number in range(jobs // 10):
        stage(database_url, 10, key=KEYS[number % len(KEYS)])

    def some_are_left() -> bool:
        return bool(
            query(database_url, "SELECT FROM staged_jobs UNION ALL SELECT FROM inflight_jobs LIMIT 1")
        )

    def lead_for_a_while() -> bool:
        with admitting(database_url, rules) as leader:
            lead(leader, random.randrange(1, 40))
        return not some_are_left()

    with working(database_url, threads=3, pause=0.1 if rules.ordered else 0.02):
        wait_until(lead_for_a_while, 25)
    changes = query(
        database_url,
        "SELECT id, key, change FROM witness ORDER BY pg_xact_commit_timestamp(xid), change, number",
    )
    running: Counter[str] = Counter()
    most_of_a_key = most = 0
    first: dict[str, dict[int, None]] = {key: {} for key in KEYS}
    for id_, key, change in changes:
        first[key].setdefault(id_)
        running[key] += change
        most_of_a_key, most = max(most_of_a_key, running[key]), max(most, running.total())
    begun = sum(change for _, _, change in changes if change > 0)

    assert (most, most_of_a_key) == ((16, 3) if rules.running else (most, 1))
    assert running.total() == 0
    assert begun >= jobs
    if rules.ordered:
        assert all(list(ids) == sorted(ids) for ids in first.values())
