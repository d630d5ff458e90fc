"""Limits of a queue and of its keys: never exceeded, and used."""

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import psycopg
import pytest

from drain.admission import arrivals, keyed_queue
from drain.admission.rules import Rate, Rules
from drain.database.postgres import Connection
from drain.tables import cancellations, claims, leases, running, selections, unique
from drain.tables.dead import Selection, discard, revive
from drain.tables.staged import START
from tests.admitting import (
    QUEUE,
    Leader,
    admitting,
    bury,
    claim,
    finish,
    ids_of,
    retry_later,
    stage,
)
from tests.helpers import ids_in, query, wait_until


def keys_of(rows: object) -> list[str | None]:
    return [row.key for row in rows]  # type: ignore[attr-defined]


def redelivered(leader: Leader, limit: int = 100) -> list[int]:
    """Retries that are delivered again, once there are any."""

    def look() -> list[int]:
        leader.queue.look()
        return leader.redeliver(limit)

    return wait_until(look)


def test_no_more_jobs_of_a_queue_run_than_its_limit(database_url: str) -> None:
    stage(database_url, 10)
    stage(database_url, 10, key="a")
    with admitting(database_url, Rules(QUEUE, running=5)) as leader:
        first = leader.settle(least=5)
        finish(database_url, first[:2])
        second = leader.settle(least=2)

    assert (len(first), len(second)) == (5, 2)


def test_a_key_limit_bounds_running_jobs_but_not_those_without_a_key(database_url: str) -> None:
    stage(database_url, 10, key="a")
    stage(database_url, 1, key="b")
    stage(database_url, 10)
    with admitting(database_url, Rules(QUEUE, running_per_key=3)) as leader:
        first = leader.settle(least=14)
        finish(database_url, [row for row in first if row.key == "a"][1:])
        second = leader.settle(least=2)

    assert Counter(keys_of(first)) == {"a": 3, "b": 1, None: 10}
    assert keys_of(second) == ["a", "a"]


def test_a_waiting_retry_frees_its_slot_and_needs_one_to_run_again(
    database_url: str,
) -> None:
    stage(database_url, 4, key="a")
    with admitting(database_url, Rules(QUEUE, running_per_key=2)) as leader:
        first = leader.settle(least=2)
        retry_later(database_url, first[:1])
        second = leader.settle(least=1)
        while_full = leader.redeliver()
        assert (ids_of(first), len(second), while_full) == ([1, 2], 1, [])

        # The slot is kept for the retry that has waited for it, though another job is staged.
        finish(database_url, second)
        assert leader.settle(0.1) == []
        assert redelivered(leader) == [1]
        assert ids_in(database_url, "staged_jobs") == [4]


def test_retries_of_full_keys_do_not_hide_those_of_others(database_url: str) -> None:
    stage(database_url, 600, key="a")
    stage(database_url, 1, key="b")
    with admitting(database_url, Rules(QUEUE, running_per_key=1)) as leader:
        query(
            database_url,
            "WITH moved AS (DELETE FROM staged_jobs RETURNING *) INSERT INTO inflight_jobs (id, job_name, job_args, "
            "job_kwargs, queue, priority, scheduled_at, staged_at, delivery, key, next_run_at) SELECT id, job_name, "
            "job_args, job_kwargs, queue, priority, scheduled_at, staged_at, id, key, now() FROM moved",
        )
        leader.queue.look()

        assert leader.redeliver(limit=10) == [1, 601]


def test_the_next_leader_counts_what_runs_already(database_url: str) -> None:
    stage(database_url, 10, key="a")
    with admitting(database_url, Rules(QUEUE, running_per_key=3)) as leader:
        first = leader.settle(0.1, least=3)
    query(database_url, "UPDATE inflight_jobs SET lease_expires_at = now() + interval '1 min' WHERE id = 2")
    finish(database_url, first[:1])
    with admitting(database_url, Rules(QUEUE, running_per_key=3)) as leader:
        assert len(leader.settle(least=1)) == 1


def test_changed_rules_take_effect(database_url: str) -> None:
    stage(database_url, 10, key="a")
    with admitting(database_url, Rules(QUEUE, running_per_key=1)) as leader:
        first = leader.settle(0.1, least=1)
        leader.queue.change(Rules(QUEUE, running=4))
        second = leader.settle(0.1, least=3)
        leader.queue.change(Rules(QUEUE, running_per_key=2))
        third = leader.settle(0.1)

    assert (len(first), len(second), len(third)) == (1, 3, 0)


def test_a_batch_that_is_rolled_back_has_admitted_nothing(database_url: str) -> None:
    stage(database_url, 10, key="a")
    stage(database_url, 10, key="b")
    rules = Rules(QUEUE, running_per_key=2, rate=Rate.parse("4/h"), burst=4, fair=True)
    with admitting(database_url, rules) as leader:
        leader.queue.look()
        for _ in range(3):
            with leader.connection.transaction(force_rollback=True):
                assert ids_of(leader.queue.select(1000)) == [1, 11, 2, 12]

        assert ids_of(leader.settle(0.1, least=4)) == [1, 11, 2, 12]


def test_a_row_that_was_selected_and_not_admitted_is_still_due(database_url: str) -> None:
    stage(database_url, 5, key="a")
    with admitting(database_url, Rules(QUEUE, running_per_key=5)) as leader:
        leader.queue.look()
        with leader.connection.transaction():
            rows = leader.queue.select(3)
        leader.queue.admitted([])

        assert ids_of(leader.settle(0.1, least=5)) == [1, 2, 3, 4, 5]
    assert ids_of(rows) == [1, 2, 3]


def test_a_row_set_aside_comes_back_without_blocking_the_others(database_url: str) -> None:
    stage(database_url, 3, key="a")
    with admitting(database_url, Rules(QUEUE, running_per_key=1)) as leader:
        leader.queue.look()
        with leader.connection.transaction():
            rows = leader.queue.select(3)
        leader.queue.set_aside(rows)
        leader.queue.admitted([])
        order = []
        for _ in range(3):
            admitted = leader.admit_all(1)
            order += ids_of(admitted)
            finish(database_url, admitted)

    assert (ids_of(rows), order[0], sorted(order)) == ([1], 2, [1, 2, 3])


def test_a_row_that_disappeared_meanwhile_is_not_selected(database_url: str) -> None:
    stage(database_url, 8, key="a")
    with admitting(database_url, Rules(QUEUE, running_per_key=100)) as leader:
        assert ids_of(leader.admit(2)) == [1, 2]
        query(database_url, "DELETE FROM staged_jobs WHERE id IN (3, 4)")
        query(database_url, "UPDATE staged_jobs SET queue = 'elsewhere' WHERE id IN (5, 6)")

        assert ids_of(leader.settle(0.1, least=2)) == [7, 8]


def test_urgent_and_late_committed_rows_are_found(database_url: str) -> None:
    with (
        psycopg.connect(database_url) as late,
        admitting(database_url, Rules(QUEUE, running_per_key=1)) as leader,
    ):
        late.execute("INSERT INTO staged_jobs (job_name, queue, key) VALUES ('m.f', %s, 'a')", [QUEUE])
        stage(database_url, 100, key="a")
        finish(database_url, leader.admit_all(1))
        late.commit()
        urgent = stage(database_url, 1, key="a", priority=-5)
        found: list[int] = []
        for _ in range(60):
            rows = leader.settle(0.02)
            found += ids_of(rows)
            finish(database_url, rows)
            if {1, *urgent} <= set(found):
                break

    assert {1, *urgent} <= set(found)
    assert len(found) < 60


def test_rows_locked_by_another_session_are_skipped(database_url: str) -> None:
    stage(database_url, 3, key="a")
    with (
        psycopg.connect(database_url) as other,
        admitting(database_url, Rules(QUEUE, running_per_key=1)) as leader,
    ):
        other.execute("SELECT FROM staged_jobs WHERE id = 1 FOR UPDATE")
        leader.queue.look()
        with leader.connection.transaction():
            assert leader.queue.select(10, skip_locked=True) == []
        with leader.connection.transaction():
            assert ids_of(leader.queue.select(10, skip_locked=True)) == [2]


@pytest.mark.parametrize("for_keys", [False, True])
def test_pauses_of_names_and_keys_hold_until_they_are_taken_back(database_url: str, for_keys: bool) -> None:
    stage(database_url, 3, key="a")
    stage(database_url, 3, key="b")
    stage(database_url, 3, key="b", job_name="m.g")
    stage(database_url, 3, job_name="m.h")
    stage(database_url, 3)
    rules = Rules(QUEUE, running=100, running_per_key=50 if for_keys else None)
    with admitting(database_url, rules) as leader:
        now = datetime.now(UTC)
        leader.queue.pause(["m.h"], {"a": now + timedelta(hours=1)}, [("b", "m.g")])
        first = leader.settle(0.1, least=6)
        leader.queue.pause(["m.h"], {"a": now + timedelta(seconds=0.5)}, [("b", "m.g")])
        later = leader.admit_all(3)
        leader.queue.pause([], {})
        last = leader.settle(0.1, least=6)

    assert Counter(keys_of(first)) == {"b": 3, None: 3}
    assert keys_of(later) == ["a"] * 3
    assert Counter(row.job_name for row in last) == {"m.g": 3, "m.h": 3}


def test_a_key_never_starts_more_jobs_than_its_rate_allows(database_url: str) -> None:
    stage(database_url, 30, key="a")
    stage(database_url, 2, key="b")
    with admitting(database_url, Rules(QUEUE, rate_per_key=Rate.parse("20/s"), burst=4)) as leader:
        first = leader.admit()
        claim(database_url, first)
        for _ in range(6):
            claim(database_url, leader.admit_all(1))

        assert Counter(keys_of(first)) == {"a": 4, "b": 2}
    begun = [
        at.timestamp()
        for (at,) in query(
            database_url, "SELECT moved_at FROM inflight_jobs WHERE key = 'a' ORDER BY moved_at"
        )
    ]
    assert all(number + 1 <= 4 + (at - begun[0]) * 20 + 0.2 for number, at in enumerate(begun))


def test_the_next_leader_exceeds_no_rate(database_url: str) -> None:
    stage(database_url, 30, key="a")
    stage(database_url, 30, key="b")
    stage(database_url, 30, key="c")
    rules = Rules(QUEUE, rate_per_key=Rate.parse("6/h"), burst=6)
    with admitting(database_url, rules) as leader:
        leader.queue.pause([], {"b": None, "c": None})
        first = leader.settle(0.1, least=6)
    finish(database_url, first[:2])
    bury(database_url, first[2:3])
    with admitting(database_url, rules) as leader:
        leader.queue.pause([], {"c": None})
        second = leader.settle(0.1, least=6)
    claim(database_url, [*first[3:], *second])
    for table in ("inflight_jobs", "finished_jobs"):
        query(
            database_url,
            f"UPDATE {table} SET moved_at = now() - interval '2 hours', "
            "claimed_at = now() - interval '2 hours'",
        )
    with admitting(database_url, rules) as leader:
        third = leader.settle(0.1, least=17)

    assert keys_of(first) == ["a"] * 6
    assert keys_of(second) == ["b"] * 6
    # One of a's has died a moment ago.
    assert Counter(keys_of(third)) == {"a": 5, "b": 6, "c": 6}


def test_the_next_leader_exceeds_no_rate_after_old_jobs_were_dropped(database_url: str) -> None:
    stage(database_url, 60)
    # A bucket that fills within forty days: three tokens have come since the last day that was dropped.
    rules = Rules(QUEUE, rate=Rate.parse("1/d"), burst=40)
    with admitting(database_url, rules) as leader:
        first = leader.settle(least=40)
    finish(database_url, first)
    drop = "DELETE FROM finished_jobs; UPDATE drain_state SET dropped_before = (now() AT TIME ZONE 'UTC')::date - 3"
    with psycopg.connect(database_url) as connection:
        connection.execute(drop)
    with admitting(database_url, rules) as leader:
        assert len(leader.settle(0.1, least=3)) == 3


def test_the_rate_of_a_queue_is_shared_by_its_keys(database_url: str) -> None:
    for key in "abc":
        stage(database_url, 10, key=key)
    with admitting(database_url, Rules(QUEUE, rate=Rate.parse("12/min"), burst=6, fair=True)) as leader:
        assert Counter(keys_of(leader.settle(0.1, least=6))) == {"a": 2, "b": 2, "c": 2}
        assert leader.queue.next_look_at > 0


@pytest.mark.parametrize(
    "rules",
    [Rules(QUEUE, running=1), Rules(QUEUE, running_per_key=1), Rules(QUEUE, rate=Rate.parse("1/d"), burst=1)],
)
def test_a_blocked_queue_is_polled_less_and_less_often(database_url: str, rules: Rules) -> None:
    stage(database_url, 2, key="a")
    with admitting(database_url, rules) as leader:
        claim(database_url, leader.admit_all(1))
        leader.settle(0)
        leader.queue._changed_at -= 100
        leader.queue.look()
        assert leader.queue.next_look_at > monotonic() + 0.9 * keyed_queue._LONGEST_NAP_SECONDS


def test_a_sweep_continues_in_a_blocked_queue(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "_SLICE", 2)
    for key in "abcde":
        stage(database_url, 2, key=key)
    with admitting(database_url, Rules(QUEUE, running_per_key=1)) as leader:
        claim(database_url, leader.admit_all(5))
        leader.settle(0)
        streams, rests = leader.queue._streams, []
        for _ in range(6):
            leader.queue.look()
            rests.append(streams.next_look_at(float("inf")) == float("inf"))
            wait_until(lambda: monotonic() >= streams._arrivals.next_look_at)
    # Each sweep takes three looks.
    assert sum(rests) == 2


def test_a_sweep_continues_after_its_rows_were_admitted(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `drain dead retry` of many keys: no hint finds them, and between slices no stream is known."""
    monkeypatch.setattr(arrivals, "_SLICE", 2)
    with admitting(database_url, Rules(QUEUE, running_per_key=1)) as leader:
        leader.settle(0)
        arrived = leader.queue._streams._arrivals
        arrived._last_id = 1_000_000
        for key in "abcdef":
            stage(database_url, 1, key=key)
        arrived._sweep_at = 0.0
        assert len(leader.admit()) == 2
        assert not arrived.is_between_sweeps
        assert arrived.next_look_at == arrived._sweep_at


def test_keys_take_turns_by_weight(database_url: str) -> None:
    for key in "abc":
        stage(database_url, 300, key=key)
    rules = Rules(QUEUE, running=60, fair=True, weights={"a": 4})
    with admitting(database_url, rules) as leader:
        counts = Counter[str | None]()
        for _ in range(6):
            rows = leader.admit_all(60)
            counts.update(keys_of(rows))
            finish(database_url, rows)

    assert counts == {"a": 240, "b": 60, "c": 60}


def test_a_million_jobs_of_one_key_delay_another_key_by_one_round_at_most(database_url: str) -> None:
    stage(database_url, 3000, key="a")
    with admitting(database_url, Rules(QUEUE, running=10, fair=True)) as leader:
        finish(database_url, leader.admit_all(10))
        stage(database_url, 1, key="b")
        stage(database_url, 1)
        following = leader.admit_all(3)

    assert {"b", None} <= set(keys_of(following))


def test_without_fairness_keys_go_in_the_order_of_their_first_jobs(database_url: str) -> None:
    for key in ("b", "a", "c"):
        stage(database_url, 2, key=key, priority=1)
    stage(database_url, 1, key="c", priority=0)
    with admitting(database_url, Rules(QUEUE, running_per_key=5)) as leader:
        assert ids_of(leader.admit_all(7)) == [7, 1, 2, 3, 4, 5, 6]


def test_a_waiting_job_rises_in_priority(database_url: str) -> None:
    earlier = datetime.now(UTC) - timedelta(minutes=3, seconds=30)
    stage(database_url, 2, priority=3, staged_at=earlier, scheduled_at=earlier)
    stage(database_url, 2, priority=3)
    stage(database_url, 2, priority=0, key="a")
    stage(database_url, 2, priority=1)
    with admitting(database_url, Rules(QUEUE, running=8, aging_seconds=60)) as leader:
        assert ids_of(leader.admit_all(8)) == [1, 2, 5, 6, 7, 8, 3, 4]


def ordered(leader: Leader, database_url: str, count: int) -> list[int]:
    """Ids in the order in which jobs are admitted, each finished before the next."""
    ids: list[int] = []
    while len(ids) < count:
        rows = leader.admit_all(1)
        assert len(rows) == len({row.key for row in rows})
        ids += ids_of(rows)
        finish(database_url, rows)
    return ids


def test_the_jobs_of_a_key_run_one_at_a_time_in_the_order_of_their_ids(database_url: str) -> None:
    for priority in (5, 0, 5, -5, 1):
        stage(database_url, 2, key="a", priority=priority)
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        assert ordered(leader, database_url, 10) == list(range(1, 11))


def test_a_waiting_retry_holds_its_key(database_url: str) -> None:
    stage(database_url, 2, key="a")
    stage(database_url, 1, key="b")
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        first = leader.settle(0.1, least=2)
        retry_later(database_url, [1], seconds=0.3)
        assert leader.settle(0.2) == []
        again = redelivered(leader)
        assert leader.settle(0.2) == []
        finish(database_url, [1])
        second = leader.settle(0.1, least=1)

    assert (ids_of(first), again, ids_of(second)) == ([1, 3], [1], [2])


def test_a_waiting_retry_holds_its_key_under_the_next_leader_too(database_url: str) -> None:
    ids = stage(database_url, 2, key="a") + stage(database_url, 1, key="b")
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        leader.settle(0.1, least=2)
    retry_later(database_url, ids[:1], seconds=60)
    finish(database_url, ids[2:])
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        assert leader.settle(0.2) == []
    assert ids_in(database_url, "staged_jobs") == [ids[1]]


@pytest.mark.parametrize("limit", [1, 100])
def test_a_retry_that_is_not_due_holds_only_its_own_key(database_url: str, limit: int) -> None:
    ids = stage(database_url, 2, key="a") + stage(database_url, 1, key="b")
    with admitting(database_url, Rules(QUEUE)) as leader:
        leader.settle(0.1, least=3)
    retry_later(database_url, ids[:1], seconds=60)
    retry_later(database_url, ids[1:])
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        leader.settle(0.1)
        assert redelivered(leader, limit) == ids[2:]


@pytest.mark.parametrize("by_a_leader", ["the same", "the next"])
def test_a_dead_job_holds_its_key_until_it_is_revived(database_url: str, by_a_leader: str) -> None:
    stage(database_url, 3, key="a")
    stage(database_url, 1, key="b")
    rules = Rules(QUEUE, ordered=True)
    with admitting(database_url, rules) as leader:
        assert ids_of(leader.settle(0.1, least=2)) == [1, 4]
        bury(database_url, [1])
        assert leader.settle(0.2) == []
        if by_a_leader == "the same":
            revive_dead(database_url)
            assert ordered(leader, database_url, 3) == [1, 2, 3]
    if by_a_leader == "the next":
        with admitting(database_url, rules) as leader:
            assert leader.settle(0.2) == []
            query(database_url, "UPDATE dead_jobs SET reason = 'cancelled'")
            assert ordered(leader, database_url, 2) == [2, 3]


def revive_dead(database_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        revive(connection, Selection())


def test_a_job_revived_between_two_polls_runs_first(database_url: str) -> None:
    stage(database_url, 3, key="a")
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        leader.settle(0.1, least=1)
        bury(database_url, [1])
        revive_dead(database_url)

        assert ordered(leader, database_url, 3) == [1, 2, 3]


def test_a_dead_job_holds_nothing_if_the_queue_skips_dead_jobs(database_url: str) -> None:
    stage(database_url, 3, key="a")
    with admitting(database_url, Rules(QUEUE, ordered=True, on_dead="skip")) as leader:
        leader.settle(0.1, least=1)
        bury(database_url, [1])

        assert ordered(leader, database_url, 2) == [2, 3]


def test_an_expired_staged_job_holds_its_key(database_url: str) -> None:
    stage(database_url, 1, key="a", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        assert leader.settle(0.3) == []
        with closing(psycopg.connect(database_url, autocommit=True)) as connection:
            discard(connection, Selection())

        assert ordered(leader, database_url, 2) == [2, 3]


def test_a_paused_name_holds_later_jobs_in_an_ordered_queue(database_url: str) -> None:
    stage(database_url, 1, key="a", job_name="m.g", priority=7)
    stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        leader.queue.pause(["m.g"], {})
        assert leader.settle(0.2) == []
        leader.queue.pause([], {})

        assert ordered(leader, database_url, 3) == [1, 2, 3]


def test_all_keys_are_served_even_beyond_the_number_tracked(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drain.admission.streams.MOST_STREAMS", 6)
    monkeypatch.setattr("drain.admission.arrivals._SLICE", 3)
    for number in range(20):
        stage(database_url, 2, key=f"k{number}")
    with admitting(database_url, Rules(QUEUE, rate_per_key=Rate.parse("1/d"), fair=True)) as leader:
        rows = leader.admit_all(20) + leader.settle(0.1)

    assert len(rows) == len(set(keys_of(rows))) == 20


def test_admitted_rows_are_not_rescanned_while_a_snapshot_is_held(database_url: str) -> None:
    stage(database_url, 3000, key="a")
    with (
        psycopg.connect(database_url) as other,
        admitting(database_url, Rules(QUEUE, running=5000)) as leader,
    ):
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT pg_current_xact_id()")
        leader.queue.pause([], {"z": None})
        leader.admit_all(2900, room=290)
        source = leader.queue._streams._source
        before = buffers(leader)
        with leader.connection.transaction():
            assert len(source.read([("a", source.cursors["a"], 8)])[0]) == 8
        from_the_cursor = buffers(leader) - before
        with leader.connection.transaction():
            assert len(source.read([("a", START, 8)])[0]) == 8

        assert from_the_cursor * 5 < buffers(leader) - before


def buffers(leader: Leader) -> int:
    """Blocks of staged rows and their indexes that have been read so far."""
    leader.connection.execute("SELECT pg_stat_force_next_flush()")
    ((blocks,),) = leader.connection.execute(
        "SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read) FROM pg_statio_user_tables "
        "WHERE relname LIKE 'staged_jobs_ready_%'"
    ).fetchall()
    return int(blocks)


@pytest.mark.parametrize(
    "rules",
    [
        Rules(QUEUE, running=1, fair=True),
        Rules(QUEUE, running=1, running_per_key=1),
        Rules(QUEUE, rate=Rate(50, 1.0), burst=1),
    ],
    ids=["fair", "one of a key", "rate"],
)
def test_due_retries_and_staged_jobs_take_turns_for_a_slot(database_url: str, rules: Rules) -> None:
    stage(database_url, 20, key="a")
    stage(database_url, 10, key="b")
    in_flight(database_url, "id <= 10", "now()")
    retries, staged = 0, 0
    with admitting(database_url, rules) as leader:
        for _ in range(12):

            def begun() -> list[int]:
                leader.queue.look()
                return leader.redeliver() or ids_of(leader.admit())

            ids = wait_until(begun)
            retries += min(ids) <= 10
            staged += min(ids) > 10
            retry_later(database_url, ids)
    assert (retries, staged) == (6, 6)


def in_flight(database_url: str, which: str, next_run_at: str) -> None:
    """Move staged jobs to where they wait for their next attempt."""
    query(
        database_url,
        f"WITH moved AS (DELETE FROM staged_jobs WHERE {which} RETURNING *) INSERT INTO inflight_jobs (id, job_name, "
        "job_args, job_kwargs, queue, priority, scheduled_at, staged_at, delivery, key, next_run_at) SELECT id, "
        "job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, id, key, "
        f"{next_run_at} FROM moved",
    )


def test_a_due_retry_starts_despite_many_keys_held_by_later_jobs(database_url: str) -> None:
    for number in range(450):
        stage(database_url, 2, key=f"k{number}")
    (last,) = stage(database_url, 1, key="z")
    (staged,) = stage(database_url, 1, key="new")
    in_flight(database_url, f"id < {last} AND id % 2 = 1", "now() + interval '10 min'")
    in_flight(database_url, f"id <= {last}", "now() - interval '1 s' * (id % 2)")
    query(database_url, "UPDATE inflight_jobs SET next_run_at = now() WHERE key = 'z'")
    with admitting(database_url, Rules(QUEUE, running=1, ordered=True)) as leader:
        assert redelivered(leader, limit=1) == [last]
        finish(database_url, [last])
        assert ids_of(leader.admit_all(1)) == [staged]


def test_turns_continue_after_a_rule_change(database_url: str) -> None:
    for key in "abcdefghij":
        stage(database_url, 10, key=key)
    served: Counter[str | None] = Counter()
    with admitting(database_url, Rules(QUEUE, running=1, fair=True)) as leader:
        for number in range(20):
            rows = leader.admit_all(1)
            served.update(keys_of(rows))
            finish(database_url, rows)
            if number % 2:
                leader.queue.change(Rules(QUEUE, running=1, fair=True, weights={"other": number + 1}))
            else:
                leader.queue.pause([f"name{number}"], {})
    assert set(served.values()) == {2}


RATES = [{"rate": Rate(50, 1.0), "burst": 2}, {"rate_per_key": Rate(50, 1.0), "burst": 2}]


@pytest.mark.parametrize("rule", RATES, ids=["queue", "key"])
def test_jobs_that_wait_for_a_worker_keep_their_tokens(database_url: str, rule: dict[str, Any]) -> None:
    ids = stage(database_url, 6, key="a")
    with admitting(database_url, Rules(QUEUE, **rule)) as leader:
        waiting = leader.admit_all(2)
        assert leader.settle(0.2) == []
        finish(database_url, waiting)
        assert ids_of(leader.admit_all(2)) == ids[2:4]
        assert leader.settle(0.2) == []


@pytest.mark.parametrize("rule", RATES, ids=["queue", "key"])
def test_a_leader_that_polls_on_time_uses_the_full_rate(database_url: str, rule: dict[str, Any]) -> None:
    ids = stage(database_url, 12, key="a")
    admitted: list[int] = []
    with admitting(database_url, Rules(QUEUE, **rule)) as leader:

        def look() -> bool:
            if monotonic() >= leader.queue.next_look_at and leader.queue.look():
                rows = leader.admit()
                finish(database_url, rows)
                admitted.extend(ids_of(rows))
            return len(admitted) == len(ids)

        wait_until(look)
    assert admitted == ids


def die_and_revive(database_url: str, ids: list[int]) -> None:
    bury(database_url, ids)
    query(database_url, "UPDATE dead_jobs SET fencing_token = 1 RETURNING id")
    with psycopg.connect(database_url) as connection:
        assert revive(connection, Selection(tuple(ids))) == len(ids)


@pytest.mark.parametrize(
    "end",
    [lambda *_: None, finish, retry_later, bury, die_and_revive],
    ids=["run", "finish", "fail", "die", "come back"],
)
@pytest.mark.parametrize("rule", RATES, ids=["queue", "key"])
def test_jobs_that_waited_for_a_worker_count_from_their_claim(
    database_url: str, rule: dict[str, Any], end: Callable[..., None]
) -> None:
    slow = {**rule, next(iter(rule)): Rate(2, 60.0)}
    with admitting(database_url, Rules(QUEUE, **slow)) as leader:
        waiting = stage(database_url, 2, key="a")
        assert ids_of(leader.admit_all(2)) == waiting
        rates = leader.queue.allowances.rates
        for buckets in filter(None, (rates.bucket, rates.key_buckets)):
            # As if the deliveries were longer ago than a bucket takes to become full.
            buckets._full_at = {key: at - 100 for key, at in buckets._full_at.items()}
        claim(database_url, waiting)
        end(database_url, waiting)
        stage(database_url, 2, key="a")
        assert leader.settle(0.1) == []


def test_keys_whose_jobs_wait_for_a_worker_cost_nothing_until_one_is_claimed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        for key in "abc":
            stage(database_url, key=key)
    with admitting(database_url, Rules(QUEUE, rate_per_key=Rate.parse("1000/s"), burst=1)) as leader:
        waiting = ids_of(leader.admit_all(3))
        leader.settle()
        looked_at: list[str] = []
        with monkeypatch.context() as watched:
            watched.setattr(leader.queue._streams, "_put_off", looked_at.append)
            leader.settle()
        assert looked_at == []
        claim(database_url, waiting[:1])
        assert keys_of(leader.settle(least=1)) == ["a"]


@pytest.mark.parametrize("rule", RATES, ids=["queue", "key"])
def test_other_rules_at_the_same_rate_do_not_refill_the_bucket(
    database_url: str, rule: dict[str, Any]
) -> None:
    slow = {**rule, next(iter(rule)): Rate(2, 3600.0)}
    stage(database_url, 4, key="a")
    with admitting(database_url, Rules(QUEUE, **slow)) as leader:
        finish(database_url, leader.admit_all(2))
        # What a leader cannot count: a job that was moved.
        query(database_url, "UPDATE finished_jobs SET queue = 'other'")
        leader.queue.change(Rules(QUEUE, **slow, running=100))
        assert leader.settle(0.1) == []
        # As after waiting deliveries have been called back.
        leader.queue.count_again()
        assert leader.settle(0.1) == []


@pytest.mark.parametrize("rule", RATES, ids=["queue", "key"])
def test_a_returned_claim_takes_a_token_again(database_url: str, rule: dict[str, Any]) -> None:
    row = {name: str(value) for name, value in rule.items()}
    query(
        database_url,
        f"INSERT INTO queues (queue, {', '.join(row)}) VALUES (%s, %s, %s)",
        QUEUE,
        *row.values(),
    )
    stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE, **rule)) as leader:
        ids = ids_of(leader.admit_all(2))
        deliveries = dict(query(database_url, "SELECT id, delivery FROM inflight_jobs"))
        claimed = claims.claim_many(
            leader.connection, deliveries, worker="w", limits={}, queue=QUEUE, alone=False, again=False
        )
        assert [each.id for each in leases.release(leader.connection, claimed)] == ids
        unclaimed, _ = running.unclaimed(leader.connection, QUEUE, 0)
        assert unclaimed == {}
        assert redelivered(leader)[0] == ids[0]


@pytest.mark.parametrize("rule", RATES, ids=["queue", "key"])
@pytest.mark.parametrize(
    "state",
    [
        "lease_expires_at = now() + interval '1 h', attempts = 1, batched = true",
        "lease_expires_at = NULL, next_run_at = now(), batched = true",
        "lease_expires_at = NULL, next_run_at = now(), attempts = 0",
    ],
    ids=["second claim", "lost with its worker", "deferred"],
)
def test_a_new_leader_counts_each_claim(database_url: str, rule: dict[str, Any], state: str) -> None:
    slow = {**rule, next(iter(rule)): Rate(2, 3600.0)}
    (first, _) = stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE)) as leader:
        assert ids_of(leader.admit(1)) == [first]
    changed = f"UPDATE inflight_jobs SET {state}, claimed_at = now(), fencing_token = 2 RETURNING id"
    query(database_url, changed)
    with admitting(database_url, Rules(QUEUE, **slow)) as leader:
        assert leader.settle(0.1) == []


def cancel_all(connection: Connection, ids: list[int]) -> None:
    cancellations.cancel_inflight(connection, selections.Selection(tuple(ids)))


def give_way(connection: Connection, ids: list[int]) -> None:
    unique.supersede_in_flight(connection, dict.fromkeys(ids, 1000000))


BEGUN = "claimed_at = now(), claimed_by = 'w', next_run_at = now() + interval '1 h', fencing_token = 1"


@pytest.mark.parametrize("rule", RATES, ids=["queue", "key"])
@pytest.mark.parametrize("end", [cancel_all, give_way])
@pytest.mark.parametrize("attempts", [1, 0], ids=["failed", "deferred"])
@pytest.mark.parametrize("then", ["another leader", "another rate"])
def test_attempts_of_later_cancelled_or_superseded_jobs_count(
    database_url: str,
    rule: dict[str, Any],
    end: Callable[[Connection, list[int]], None],
    attempts: int,
    then: str,
) -> None:
    slow = Rules(QUEUE, **{**rule, next(iter(rule)): Rate(2, 3600.0)})
    stage(database_url, 6, key="a")
    with admitting(database_url, slow) as leader:
        ids = ids_of(leader.admit_all(2))
        query(
            database_url,
            f"UPDATE inflight_jobs SET {BEGUN}, attempts = {attempts} WHERE id = ANY (%s) RETURNING id",
            ids,
        )
        end(leader.connection, ids)
        if then == "another rate":
            leader.queue.change(Rules(QUEUE, **{**rule, next(iter(rule)): Rate(3, 3600.0)}))
            assert leader.settle(0.1) == []
    if then == "another leader":
        with admitting(database_url, slow) as leader:
            assert leader.settle(0.1) == []


@pytest.mark.parametrize("end", [cancel_all, give_way])
def test_jobs_cancelled_or_superseded_before_their_start_take_no_token(
    database_url: str, end: Callable[[Connection, list[int]], None]
) -> None:
    rules = Rules(QUEUE, rate=Rate(2, 3600.0), burst=3)
    (first, *ids) = stage(database_url, 7, key="a")
    with admitting(database_url, rules) as leader:
        # A token is missing from here on.
        assert ids_of(leader.admit(1)) == [first]
        finish(database_url, [first])
        end(leader.connection, ids_of(leader.admit_all(2)))
        assert ids_of(leader.admit_all(2)) == ids[2:4]
        end(leader.connection, ids[2:4])
    with admitting(database_url, rules) as leader:
        assert ids_of(leader.admit_all(2)) == ids[4:]


def test_a_rate_change_keeps_tokens_spent_by_deleted_jobs(database_url: str) -> None:
    ids = stage(database_url, 8)
    with admitting(database_url, Rules(QUEUE, rate=Rate(20, 3600.0), burst=4)) as leader:
        bury(database_url, leader.admit_all(4))
        assert leader.settle(0.1) == []
        query(database_url, "DELETE FROM dead_jobs RETURNING id")
        leader.queue.change(Rules(QUEUE, rate=Rate(19, 3600.0), burst=4))
        assert leader.settle(0.1) == []
        leader.queue.change(Rules(QUEUE, rate=Rate(200, 1.0), burst=4))
        assert ids_of(leader.admit_all(4)) == ids[4:]
