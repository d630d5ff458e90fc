"""Admission while something else changes: retries that go away, pauses, dead jobs, queues of jobs."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from drain import queues
from drain.admission import allowances, arrivals, retries
from drain.admission.keyed_queue import RuledQueue
from drain.admission.rules import Rate, Rules
from drain.tables import keyed, running
from drain.tables.dead import Selection, revive
from tests.admitting import QUEUE, Leader, admitting, bury, finish, ids_of, retry_later, stage
from tests.helpers import new_enqueuer, query, wait_until


def looked_at(leader: Leader) -> RuledQueue:
    leader.queue.look()
    return leader.queue


def redelivered(leader: Leader) -> list[int]:
    """Retries that are delivered again, once there are any."""

    def look() -> list[int]:
        leader.queue.look()
        return leader.redeliver()

    return wait_until(look)


def test_a_key_continues_after_the_retry_with_a_reserved_token_is_gone(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Far longer than the 0.2 s for which nothing may be admitted, on a slow machine too.
    monkeypatch.setattr(allowances, "_KEPT_SECONDS", 3.0)
    stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE, rate_per_key=Rate.parse("10/s"), burst=1)) as leader:
        retry_later(database_url, leader.admit_all(1))
        assert leader.redeliver() == []
        assert leader.settle(0.2) == []
        query(database_url, "DELETE FROM inflight_jobs")

        assert ids_of(leader.admit_all(1)) == [2]


def test_no_slot_is_reserved_for_a_retry_whose_key_is_full(database_url: str) -> None:
    stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE, running=2, running_per_key=1)) as leader:
        retry_later(database_url, leader.admit_all(1))
        leader.admit_all(1)
        assert leader.redeliver() == []
        stage(database_url, 1, key="b")

        assert ids_of(leader.settle(0.2, least=1)) == [3]


def test_a_slow_search_for_due_retries_is_not_repeated_each_time(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = []
    search = running.due_retries

    def count(*arguments: object, **options: object) -> list[tuple[int, str]]:
        searches.append(arguments)
        return search(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(retries, "_PAUSE", 1_000_000)
    monkeypatch.setattr(running, "due_retries", count)
    stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE, running_per_key=1)) as leader:
        retry_later(database_url, leader.admit_all(1))
        leader.admit_all(1)
        for _ in range(5):
            assert leader.redeliver() == []

    assert len(searches) == 2


@pytest.mark.parametrize("ordered", [False, True])
def test_keys_take_turns_while_pauses_of_other_keys_come_and_go(database_url: str, ordered: bool) -> None:
    for key in "abc":
        stage(database_url, 10, key=key)
    begun = []
    with admitting(database_url, Rules(QUEUE, fair=True, ordered=ordered)) as leader:
        for number in range(6):
            leader.queue.pause([], {f"other {number}": None})
            begun += leader.admit_all(1, room=1)
            finish(database_url, begun[-1:])

    assert Counter(row.key for row in begun) == {"a": 2, "b": 2, "c": 2}


def test_changed_key_pauses_take_effect_among_unchanged_ones(database_url: str) -> None:
    for key in "abc":
        stage(database_url, 1, key=key)
    with admitting(database_url, Rules(QUEUE, running_per_key=1)) as leader:
        later = datetime.now(UTC) + timedelta(hours=1)
        leader.queue.pause([], {"a": None, "b": later, "c": later})
        assert leader.settle(0.1) == []
        leader.queue.pause([], {"a": later, "b": later, "c": datetime.now(UTC) + timedelta(seconds=0.1)})
        third = leader.admit_all(1)
        leader.queue.pause([], {"b": later})
        first = leader.admit_all(1)
        leader.queue.pause([], {})
        second = leader.admit_all(1)

    assert [rows[0].key for rows in (first, second, third)] == ["a", "b", "c"]


def test_one_drain_finds_every_key_of_a_large_ordered_queue(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "_SLICE", 3)
    with psycopg.connect(database_url) as connection:
        queues.set(connection, "default", ordered=True)
    query(
        database_url,
        "INSERT INTO staged_jobs (job_name, key) SELECT 'm.f', 'key ' || number FROM generate_series(1, 10) AS number",
    )
    with new_enqueuer(database_url, redis_url) as enqueuer:
        assert enqueuer.drain() == 10


def test_a_job_that_died_under_an_earlier_leader_goes_first_when_revived(database_url: str) -> None:
    stage(database_url, 3, key="a")
    query(database_url, "UPDATE staged_jobs SET priority = 5 WHERE id = 1")
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        bury(database_url, leader.admit_all(1))
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        assert leader.settle(0.1) == []
        # The next sweep of many keys comes to this one later.
        leader.queue._streams._arrivals._sweep_at = float("inf")
        with psycopg.connect(database_url) as connection:
            revive(connection, Selection(ids=(1,)))

        assert ids_of(leader.admit_all(1)) == [1]


def test_a_row_moved_to_another_queue_before_its_lock_stays_staged(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage(database_url, 1, key="a")
    lock = keyed.lock

    def lock_late(*arguments: Any) -> set[int]:
        query(database_url, "UPDATE staged_jobs SET queue = 'elsewhere'")
        return lock(*arguments)

    monkeypatch.setattr(keyed, "lock", lock_late)
    with admitting(database_url, Rules(QUEUE, running_per_key=1)) as leader:
        leader.queue.look()
        with leader.connection.transaction():
            assert leader.queue.select(10, skip_locked=True) == []


@pytest.mark.parametrize("ordered", [False, True])
def test_a_moved_job_takes_no_slot_in_its_former_queue(database_url: str, ordered: bool) -> None:
    stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE, running_per_key=1, ordered=ordered)) as leader:
        assert ids_of(leader.admit_all(1)) == [1]
        # Called back, moved and delivered again, between two looks of the leader.
        query(database_url, "UPDATE inflight_jobs SET queue = 'elsewhere'")

        assert ids_of(leader.admit_all(1)) == [2]


def test_an_ordered_key_continues_without_waiting_for_a_sweep(database_url: str) -> None:
    stage(database_url, 5, key="a")
    order = []
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        for _ in range(5):
            order += leader.admit_all(1)
            leader.queue._streams._arrivals._sweep_at = float("inf")
            finish(database_url, order[-1:])

    assert ids_of(order) == [1, 2, 3, 4, 5]


def test_an_ordered_key_continues_when_its_paused_first_job_is_gone(database_url: str) -> None:
    stage(database_url, 1, key="a", job_name="m.paused")
    stage(database_url, 1, key="a")
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        leader.queue.pause(["m.paused"], {})
        assert leader.settle(0.1) == []
        query(database_url, "DELETE FROM staged_jobs WHERE id = 1")

        assert ids_of(leader.admit_all(1)) == [2]


@pytest.mark.parametrize("limit", [1, 100])
def test_the_lowest_due_retry_of_an_ordered_key_goes_first(database_url: str, limit: int) -> None:
    stage(database_url, 4, key="a")
    with admitting(database_url, Rules(QUEUE)) as leader:
        ids = ids_of(leader.admit_all(4))
    retry_later(database_url, ids[1:], seconds=-1.0)
    retry_later(database_url, ids[:1])
    again = []
    with admitting(database_url, Rules(QUEUE, ordered=True)) as leader:
        for _ in ids:
            leader.queue._look_at_running()
            again += leader.redeliver(limit)
            finish(database_url, again[-1:])
            leader.queue._retries._next_at = 0.0
            wait_until(lambda: not looked_at(leader)._running.total)

    assert again == ids


def test_a_redelivered_retry_takes_a_slot(database_url: str) -> None:
    stage(database_url, 3, key="a")
    stage(database_url, 3, key="b")
    with admitting(database_url, Rules(QUEUE, running_per_key=1)) as leader:
        first = ids_of(leader.admit_all(2))
        retry_later(database_url, first)
        assert redelivered(leader) == first
        assert leader.settle(0.2) == []
        finish(database_url, first)
        assert ids_of(leader.admit_all(2)) == [2, 5]


def test_a_redelivered_retry_takes_a_token(database_url: str) -> None:
    first = stage(database_url, 2, key="a")
    with admitting(database_url, Rules(QUEUE, rate=Rate.parse("4/h"), burst=4)) as leader:
        assert ids_of(leader.admit_all(2)) == first
        retry_later(database_url, first)
        assert redelivered(leader) == first
        finish(database_url, first)
        stage(database_url, 2, key="a")
        assert leader.settle(0.2) == []
