"""What a session that holds an old snapshot does to the drain: nothing."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from drain import metrics, stage
from drain.config import Settings
from drain.database import postgres
from drain.enqueuer import batches, housekeeping
from drain.enqueuer.cursor import ScanCursor
from drain.enqueuer.daemon import Daemon
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.housekeeping import PartitionTruncator
from drain.enqueuer.pacer import Pacer
from drain.tables import lanes, staged
from tests.helpers import (
    ask,
    environment,
    free_port,
    ids_in,
    leading,
    new_enqueuer,
    pushed_jobs,
    query,
    read_by,
    stage_jobs,
    wait_until,
)

READY = tuple(f"staged_jobs_ready_{turn}" for turn in range(3))
# Ages in seconds of rows that stand in three different partitions, if they are counted from one moment: by the time of
# each statement, two of them may stand in the same partition.
ONE_OF_EACH_TURN = (0, 5, 10)
# Longer than all three turns together.
A_ROUND_SECONDS = 30
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.fixture
def held_snapshot(database_url: str) -> Iterator[psycopg.Connection]:
    """A session that began before anything was staged, with a snapshot and a transaction id."""
    with psycopg.connect(database_url) as report:
        report.isolation_level = IsolationLevel.REPEATABLE_READ
        report.execute("SELECT pg_current_xact_id()")
        yield report


@pytest.fixture
def small_partitions_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "_LARGER_THAN_BYTES", 0)


@pytest.fixture
def without_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a sweep that was slow: none is due until a scan has caught up."""
    monkeypatch.setattr(Pacer, "is_due", lambda _: False)


def partition_of(database_url: str, job_id: int) -> str:
    ((name,),) = query(database_url, "SELECT tableoid::regclass::text FROM staged_jobs WHERE id = %s", job_id)
    return str(name)


def stage_at(database_url: str, *seconds_ago: float, count: int = 1) -> list[int]:
    """Stage jobs, this number at each of these times before one and the same moment."""
    rows = query(
        database_url,
        "INSERT INTO staged_jobs (job_name, staged_at, scheduled_at) SELECT 'm.f', at, at "
        "FROM unnest(%s::float8[]) WITH ORDINALITY AS age (seconds, place), generate_series(1, %s), "
        "LATERAL (SELECT now() - make_interval(secs => age.seconds)) AS staged (at) ORDER BY place RETURNING id",
        list(seconds_ago),
        count,
    )
    return [id_ for (id_,) in rows]


def truncate_if_empty(database_url: str, partition: str) -> bool:
    ((truncated,),) = query(database_url, "SELECT drain_truncate_if_empty(%s)", partition)
    return bool(truncated)


def size(database_url: str, *partitions: str) -> int:
    ((size,),) = query(
        database_url,
        "SELECT sum(pg_relation_size(name::regclass))::bigint FROM unnest(%s::text[]) AS name",
        list(partitions or READY),
    )
    return int(size)


def pages_read(
    enqueuer: Enqueuer, after: staged.Place, *, kind: int = lanes.URGENT, statement: str = lanes.READ_DUE
) -> int:
    """How many pages a look goes through that finds nothing."""
    parameters = {
        "kinds": f"{{{kind}}}",
        "queues": "{default}",
        "limits": "{100}",
        "leave": "{}",
        "priorities": f"{{{after[0]}}}",
        "ids": f"{{{after[1]}}}",
    }
    explain = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement
    row = enqueuer.connection.execute(explain.encode(), parameters).fetchone()
    assert row is not None
    return int(row[0][0]["Plan"]["Shared Hit Blocks"] + row[0][0]["Plan"]["Shared Read Blocks"])


def test_drained_rows_free_their_space_even_while_a_snapshot_is_held(
    database_url: str, redis_url: str, held_snapshot: psycopg.Connection, small_partitions_too: None
) -> None:
    before = metrics.TRUNCATED._value.get()
    with new_enqueuer(database_url, redis_url) as enqueuer:
        stage_at(database_url, *ONE_OF_EACH_TURN, count=2_000)
        assert enqueuer.drain() == 6_000
        query(database_url, "VACUUM staged_jobs")
        assert min(size(database_url, partition) for partition in READY) > 100_000

        def all_are_empty() -> bool:
            PartitionTruncator(enqueuer.connection).run_once()
            return size(database_url) == 0

        wait_until(all_are_empty, A_ROUND_SECONDS)
    assert metrics.TRUNCATED._value.get() == before + 3


def test_a_batch_does_not_read_past_previously_drained_rows(
    database_url: str, redis_url: str, held_snapshot: psycopg.Connection
) -> None:
    with new_enqueuer(database_url, redis_url) as enqueuer:
        (last, *_) = reversed(stage_jobs(database_url, 10_000))
        enqueuer.drain()

        assert pages_read(enqueuer, staged.START) > 100
        assert pages_read(enqueuer, (0, last)) < 20


def test_measuring_the_lag_does_not_read_past_drained_rows(
    database_url: str, redis_url: str, held_snapshot: psycopg.Connection
) -> None:
    with new_enqueuer(database_url, redis_url) as enqueuer:
        (last, *_) = reversed(stage_jobs(database_url, 10_000))
        enqueuer.drain()

        assert pages_read(enqueuer, staged.START, statement=lanes.OLDEST_DUE) > 100
        assert pages_read(enqueuer, (0, last), statement=lanes.OLDEST_DUE) < 20


@pytest.mark.parametrize("second", range(0, 60, 3))
def test_the_idle_partition_is_neither_the_current_nor_the_next_one(database_url: str, second: int) -> None:
    now = datetime(2026, 11, 21, 12, 34, second, 600_000, tzinfo=UTC)
    ((idle,),) = query(database_url, f"SELECT {staged.IDLE_PARTITION.format(now='%s::timestamptz')}", now)
    ids: list[int] = []
    for staged_at in (now, now + timedelta(seconds=5)):
        ((id_,),) = query(
            database_url,
            "INSERT INTO staged_jobs (job_name, staged_at, scheduled_at) VALUES ('m.f', %s, %s) RETURNING id",
            staged_at,
            staged_at,
        )
        ids.append(id_)

    busy = {partition_of(database_url, id_) for id_ in ids}

    assert busy | {idle} == set(READY)
    assert idle not in busy


def test_a_small_partition_is_left_to_vacuum(database_url: str, redis_url: str) -> None:
    with new_enqueuer(database_url, redis_url) as enqueuer:
        stage_at(database_url, *ONE_OF_EACH_TURN, count=100)
        enqueuer.drain()
        before = size(database_url)

        assert staged.truncate_idle(enqueuer.connection, before) == 0
        assert staged.truncate_idle(enqueuer.connection, 0) == 1


def test_a_partition_with_a_row_is_not_truncated(database_url: str) -> None:
    (job_id,) = stage_jobs(database_url)

    assert not truncate_if_empty(database_url, partition_of(database_url, job_id))
    assert ids_in(database_url, "staged_jobs") == [job_id]


def test_a_row_that_is_not_committed_yet_keeps_its_partition(database_url: str, redis_url: str) -> None:
    with new_enqueuer(database_url, redis_url) as enqueuer, psycopg.connect(database_url) as application:
        job_id = stage(application, "m.f")
        ((partition,),) = application.execute("SELECT tableoid::regclass::text FROM staged_jobs").fetchall()
        assert not truncate_if_empty(database_url, partition)

        application.commit()
        assert not truncate_if_empty(database_url, partition)
        assert enqueuer.drain() == 1

    assert pushed_jobs(redis_url) == [job_id]
    assert truncate_if_empty(database_url, partition)


def test_a_row_committed_just_before_the_lock_is_seen(database_url: str) -> None:
    """The function waits between its first look and the lock, and meanwhile a row is committed."""
    ((source,),) = query(database_url, "SELECT pg_get_functiondef('drain_truncate_if_empty'::regproc)")
    look, lock = "IF empty THEN", "IF empty THEN PERFORM pg_advisory_xact_lock_shared(1);"
    assert look in source
    query(database_url, source.replace(look, lock, 1))
    (job_id,) = stage_jobs(database_url)
    partition = partition_of(database_url, job_id)
    query(database_url, "DELETE FROM staged_jobs")

    with psycopg.connect(database_url) as gate, psycopg.connect(database_url, autocommit=True) as leader:
        gate.execute("SELECT pg_advisory_xact_lock(1)")
        leader.pgconn.send_query(f"SELECT drain_truncate_if_empty('{partition}')".encode())
        wait_until(lambda: query(database_url, "SELECT FROM pg_locks WHERE NOT granted AND objid = 1"))
        query(
            database_url,
            "INSERT INTO staged_jobs (job_name, staged_at, scheduled_at) SELECT 'm.late', at, at FROM "
            "generate_series(now(), now() - interval '10 seconds', '-5 seconds') AS staged (at)",
        )
        gate.rollback()
        results = []
        while (result := leader.pgconn.get_result()) is not None:
            results.append(result.get_value(0, 0))

    assert results == [b"f"]
    assert len(ids_in(database_url, "staged_jobs")) == 3


def test_a_snapshot_older_than_the_lock_is_refused(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        with pytest.raises(psycopg.errors.RaiseException, match="read committed"):
            connection.execute("SELECT drain_truncate_if_empty('staged_jobs_ready_0')")


def test_the_leader_truncates_under_any_default_isolation(
    database_url: str, redis_url: str, small_partitions_too: None
) -> None:
    ((name,),) = query(database_url, "SELECT current_database()")
    query(database_url, f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    with new_enqueuer(database_url, redis_url) as enqueuer:
        stage_at(database_url, 5, count=10)
        enqueuer.drain()
        wait_until(lambda: PartitionTruncator(enqueuer.connection).run_once(), A_ROUND_SECONDS)


def test_truncation_does_not_wait_for_a_dump_that_locked_the_table(
    database_url: str, redis_url: str, held_snapshot: psycopg.Connection
) -> None:
    (job_id,) = stage_jobs(database_url)
    partition = partition_of(database_url, job_id)
    held_snapshot.execute("LOCK TABLE staged_jobs IN ACCESS SHARE MODE")
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
        # Who waited for the lock would be ended by the first, and not be told that the lock cannot be had.
        enqueuer.connection.execute("SET statement_timeout = '2s'; SET lock_timeout = 0")
        truncate = f"SELECT drain_truncate_if_empty('{partition}')"
        assert enqueuer.connection.execute(truncate.encode()).fetchall() == [(False,)]

        ids = stage_jobs(database_url, 3)
        assert enqueuer.drain() == 3
        assert pushed_jobs(redis_url) == [job_id, *ids]

        held_snapshot.rollback()
        assert enqueuer.connection.execute(truncate.encode()).fetchall() == [(True,)]


def test_a_refused_truncation_is_logged_once_and_blocks_nothing(
    database_url: str, redis_url: str, small_partitions_too: None, caplog: pytest.LogCaptureFixture
) -> None:
    query(
        database_url,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not here'; END $$",
    )
    for partition in READY:
        query(database_url, f"CREATE TRIGGER refuse BEFORE TRUNCATE ON {partition} EXECUTE FUNCTION refuse()")
    with new_enqueuer(database_url, redis_url) as enqueuer:
        truncator = PartitionTruncator(enqueuer.connection)

        def refused() -> bool:
            truncator._pacer._due_at = 0.0
            assert truncator.run_once() == 0
            return "not here" in caplog.text

        stage_at(database_url, *ONE_OF_EACH_TURN)
        enqueuer.drain()
        wait_until(refused, A_ROUND_SECONDS)
        refused()
        stage_jobs(database_url, 3)
        assert enqueuer.drain() == 3

    assert caplog.text.count("not here") == 1


@pytest.mark.usefixtures("processes")
def test_the_daemon_truncates_on_its_own(
    database_url: str, redis_url: str, held_snapshot: psycopg.Connection
) -> None:
    port = free_port()
    env = environment(database_url, redis_url, DRAIN_DEPTH="0")
    with leading(env, "--metrics-port", str(port)):
        stage_at(database_url, 5, count=20_000)
        wait_until(lambda: len(pushed_jobs(redis_url)) == 20_000, A_ROUND_SECONDS)
        wait_until(lambda: size(database_url) == 0, A_ROUND_SECONDS)
        wait_until(lambda: "drain_truncated_partitions_total 1.0" in ask(port, "/metrics")[1])


def test_draining_once_truncates_too(database_url: str, redis_url: str, small_partitions_too: None) -> None:
    daemon = Daemon(Settings(database_url=database_url, redis_url=redis_url))
    stage_at(database_url, 5, count=100)
    assert daemon.run_once() == 100

    def is_empty() -> bool:
        daemon.run_once()
        return size(database_url) == 0

    wait_until(is_empty, A_ROUND_SECONDS)


def test_the_daemon_measures_the_lag_from_its_cursors(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[lanes.Lane, staged.Place]] = []

    def ask_and_stop(_: psycopg.Connection, after: Mapping[lanes.Lane, staged.Place]) -> dict[str, float]:
        asked.append(dict(after))
        daemon.stop()
        return {}

    monkeypatch.setattr(lanes, "oldest_due_seconds", ask_and_stop)
    (job_id, _) = stage_jobs(database_url, 2)
    daemon = Daemon(Settings(database_url=database_url, redis_url=redis_url, depth=1))
    daemon.run()

    assert asked[0] == {lanes.Lane(lanes.URGENT, "default"): (0, job_id)}


def test_rows_of_all_partitions_are_drained_in_the_order_of_priority_and_id(
    database_url: str, redis_url: str
) -> None:
    ids = stage_at(database_url, 10, 0, 5, 5, 10, 0)
    assert {partition_of(database_url, id_) for id_ in ids} == set(READY)
    query(database_url, "UPDATE staged_jobs SET priority = -1 WHERE id = ANY (%s)", [ids[3], ids[5]])

    with new_enqueuer(database_url, redis_url, batch_size=2) as enqueuer:
        assert enqueuer.drain() == 6

    assert pushed_jobs(redis_url) == [ids[3], ids[5], ids[0], ids[1], ids[2], ids[4]]


def test_a_scheduled_row_becomes_ready_once_it_is_due(database_url: str) -> None:
    due, later = (stage_jobs(database_url, run_at=FUTURE)[0] for _ in range(2))
    query(database_url, "UPDATE staged_jobs SET scheduled_at = now() WHERE id = %s", due)
    assert partition_of(database_url, due) == partition_of(database_url, later) == "staged_jobs_scheduled"

    with postgres.connect(database_url, "test") as connection:
        assert staged.mature(connection, 10) == 1

    assert partition_of(database_url, due) in READY
    assert partition_of(database_url, later) == "staged_jobs_scheduled"


def test_a_row_postponed_while_it_matures_does_no_harm(database_url: str, redis_url: str) -> None:
    put_off, due = (stage_jobs(database_url, run_at=FUTURE)[0] for _ in range(2))
    query(database_url, "UPDATE staged_jobs SET scheduled_at = now()")
    with new_enqueuer(database_url, redis_url) as enqueuer, psycopg.connect(database_url) as somebody:
        somebody.execute("UPDATE staged_jobs SET scheduled_at = %s WHERE id = %s", [FUTURE, put_off])
        assert enqueuer.drain() == 1

        somebody.commit()
        assert enqueuer.drain() == 0

    assert pushed_jobs(redis_url) == [due]


def test_a_ready_row_postponed_during_its_batch_is_drained_later(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_off, due = stage_jobs(database_url, 2)
    take = lanes.read_due

    def put_off_after(*args: Any, **kwargs: Any) -> Any:
        rows = take(*args, **kwargs)
        monkeypatch.setattr(lanes, "read_due", take)
        query(database_url, "UPDATE staged_jobs SET scheduled_at = %s WHERE id = %s", FUTURE, put_off)
        return rows

    read_by(monkeypatch, put_off_after)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        assert enqueuer.drain() == 1

    assert pushed_jobs(redis_url) == [due]
    assert ids_in(database_url, "staged_jobs_scheduled") == [put_off]


def test_a_row_postponed_just_before_it_is_locked_does_not_end_the_term(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it skips locked rows, the leader finds a row that has left the partition since its snapshot."""
    put_off, due = stage_jobs(database_url, 2)
    gate = "WHERE (SELECT pg_advisory_xact_lock_shared(1)) IS NOT NULL AND "
    monkeypatch.setattr(lanes, "_READ_DUE", lanes._READ_DUE.replace("WHERE ", gate, 1))
    monkeypatch.setattr(batches.Batches, "_skips_locked", lambda _: True)
    with new_enqueuer(database_url, redis_url) as enqueuer, psycopg.connect(database_url) as operator:
        operator.execute("SELECT pg_advisory_xact_lock(1)")
        with ThreadPoolExecutor(1) as thread:
            moved = thread.submit(enqueuer.drain)
            wait_until(lambda: query(database_url, "SELECT FROM pg_locks WHERE NOT granted AND objid = 1"))
            query(database_url, "UPDATE staged_jobs SET scheduled_at = %s WHERE id = %s", FUTURE, put_off)
            operator.rollback()
            assert moved.result() == 1

    assert pushed_jobs(redis_url) == [due]


def test_a_deadlock_with_a_cancellation_does_not_end_the_term(database_url: str, redis_url: str) -> None:
    """A cancellation locks rows by id; the leader deletes them by partition."""
    ids = stage_at(database_url, *ONE_OF_EACH_TURN)
    lower, higher = next(
        (one, two)
        for one, two in combinations(ids, 2)
        if partition_of(database_url, one) > partition_of(database_url, two)
    )
    lock = "SELECT FROM staged_jobs WHERE id = %s FOR UPDATE"
    waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with new_enqueuer(database_url, redis_url) as enqueuer, psycopg.connect(database_url) as operator:
        # The leader looks for the deadlock, and gives way.
        enqueuer.connection.execute("SET deadlock_timeout = '2s'; SET lock_timeout = '60s'")
        operator.execute("SET deadlock_timeout = '60s'")
        operator.execute(lock, [lower])
        with ThreadPoolExecutor(1) as thread:
            moved = thread.submit(enqueuer.drain)
            wait_until(lambda: query(database_url, waiting))
            operator.execute(lock, [higher])
            # Unlocked: the third.
            assert moved.result() == 1
        operator.rollback()
        assert enqueuer.drain() == 2

    assert sorted(pushed_jobs(redis_url)) == ids


def test_a_row_that_commits_behind_the_cursor_is_found(
    database_url: str, redis_url: str, without_sweeps: None
) -> None:
    with new_enqueuer(database_url, redis_url) as enqueuer, psycopg.connect(database_url) as slow:
        late = stage(slow, "m.f")
        (job_id,) = stage_jobs(database_url)
        assert enqueuer.run_once() == 1
        slow.commit()

        assert enqueuer.run_once() == 1
        assert enqueuer.run_once() == 0
        enqueuer.flush()

    assert pushed_jobs(redis_url) == [job_id, late]


def test_a_more_urgent_row_waits_only_for_the_next_sweep(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_enqueuer(database_url, redis_url, batch_size=1) as enqueuer:
        first, second, third = stage_jobs(database_url, 3)
        enqueuer.run_once()
        (urgent,) = stage_jobs(database_url, priority=-1)
        with monkeypatch.context() as patch:
            patch.setattr(ScanCursor, "sweep_is_due", lambda _: False)
            enqueuer.run_once()
        monkeypatch.setattr(ScanCursor, "sweep_is_due", lambda _: True)
        enqueuer.drain()

    assert pushed_jobs(redis_url) == [first, second, urgent, third]


def test_a_row_that_becomes_due_is_found_without_a_sweep(
    database_url: str, redis_url: str, without_sweeps: None
) -> None:
    (scheduled,) = stage_jobs(database_url, run_at=FUTURE)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        (now,) = stage_jobs(database_url)
        assert enqueuer.drain() == 1
        query(database_url, "UPDATE staged_jobs SET scheduled_at = now()")
        assert enqueuer.drain() == 1

    assert pushed_jobs(redis_url) == [now, scheduled]


def test_a_batch_that_is_rolled_back_leaves_the_cursor_before_its_rows(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, without_sweeps: None
) -> None:
    ids = stage_jobs(database_url, 6)
    move = staged.move

    def fail_once(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(staged, "move", move)
        raise psycopg.errors.SerializationFailure

    with new_enqueuer(database_url, redis_url, batch_size=2) as enqueuer:
        enqueuer.run_once()
        monkeypatch.setattr(staged, "move", fail_once)
        enqueuer.run_once()
        assert list(enqueuer.places.values()) == [(0, ids[3])]
        enqueuer.drain()

    assert pushed_jobs(redis_url) == ids


def test_rows_that_cannot_be_moved_are_found_behind_the_cursor_too(
    database_url: str, redis_url: str, without_sweeps: None
) -> None:
    query(database_url, "ALTER TABLE inflight_jobs ADD CONSTRAINT no_poison CHECK (job_name <> 'poison')")
    query(database_url, "ALTER TABLE dead_jobs ADD CONSTRAINT no_worse CHECK (tag <> 'worse')")
    before = stage_jobs(database_url, 3)
    (poison,) = stage_jobs(database_url, job="poison")
    (stuck,) = stage_jobs(database_url, job="poison", tag="worse")
    behind = stage_jobs(database_url, 3)
    with new_enqueuer(database_url, redis_url, batch_size=3) as enqueuer:
        enqueuer.drain()
        assert enqueuer.run_once() == 0

    assert pushed_jobs(redis_url) == before + behind
    assert ids_in(database_url, "dead_jobs") == [poison]
    assert ids_in(database_url, "staged_jobs") == [stuck]


def test_a_row_unlocked_behind_the_cursor_is_found(
    database_url: str, redis_url: str, without_sweeps: None
) -> None:
    ids = stage_jobs(database_url, 3)
    with new_enqueuer(database_url, redis_url) as enqueuer, psycopg.connect(database_url) as somebody:
        enqueuer.connection.execute("SET lock_timeout = '10ms'")
        somebody.execute("SELECT FROM staged_jobs WHERE id = %s FOR UPDATE", [ids[0]])
        enqueuer.drain()
        somebody.rollback()
        assert enqueuer.drain() == 1

    assert pushed_jobs(redis_url) == [*ids[1:], ids[0]]
