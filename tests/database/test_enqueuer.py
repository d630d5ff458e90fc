from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from drain import stage
from drain.enqueuer import pusher
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.redelivery import Redelivery
from drain.errors import UnavailableError
from drain.tables import lanes, staged
from drain.wire import Producer
from tests.helpers import (
    ids_in,
    new_enqueuer,
    pushed,
    pushed_jobs,
    query,
    read_by,
    stage_jobs,
)

PAST = datetime(2020, 1, 1, tzinfo=UTC)
FUTURE = datetime(2100, 1, 1, tzinfo=UTC)


def come_due(database_url: str, job_id: int) -> None:
    query(database_url, "UPDATE staged_jobs SET scheduled_at = now() WHERE id = %s", job_id)


def progress(database_url: str) -> tuple[int, int]:
    ((last_delivery, pushed_up_to),) = query(
        database_url, "SELECT l.last_value, p.last_value FROM drain_last_delivery l, drain_pushed_up_to p"
    )
    return last_delivery, pushed_up_to


def test_a_job_is_pushed_after_the_commit_and_never_before(database_url: str, redis_url: str) -> None:
    with new_enqueuer(database_url, redis_url) as enqueuer, psycopg.connect(database_url) as application:
        job_id = stage(application, "m.f")
        assert enqueuer.drain() == 0
        assert pushed(redis_url) == []

        application.commit()
        assert enqueuer.drain() == 1
        assert pushed_jobs(redis_url) == ids_in(database_url, "inflight_jobs") == [job_id]
        assert enqueuer.drain() == 0


def test_a_job_that_was_rolled_back_is_never_pushed(database_url: str, redis_url: str) -> None:
    with new_enqueuer(database_url, redis_url) as enqueuer, psycopg.connect(database_url) as application:
        stage(application, "m.f")
        application.rollback()

        assert enqueuer.drain() == 0
        assert pushed(redis_url) == []


def test_a_lower_id_that_commits_later_is_neither_lost_nor_pushed_twice(
    database_url: str, redis_url: str
) -> None:
    with new_enqueuer(database_url, redis_url) as enqueuer, psycopg.connect(database_url) as slow:
        lower = stage(slow, "m.f")
        (higher,) = stage_jobs(database_url)
        assert lower < higher
        enqueuer.drain()
        assert pushed_jobs(redis_url) == [higher]

        slow.commit()
        enqueuer.drain()
        enqueuer.drain()

        assert pushed_jobs(redis_url) == [higher, lower]
        assert ids_in(database_url, "inflight_jobs") == [lower, higher]


@pytest.mark.parametrize("forward_queues", [frozenset(), frozenset({"default"})], ids=["tracked", "forward"])
def test_a_lower_id_that_commits_while_a_batch_is_open_is_neither_lost_nor_pushed_twice(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, forward_queues: frozenset[str]
) -> None:
    with (
        new_enqueuer(database_url, redis_url, forward_queues=forward_queues) as enqueuer,
        psycopg.connect(database_url) as slow,
    ):
        lower = stage(slow, "m.f")
        (higher,) = stage_jobs(database_url)
        for leave in ("move", "delete_forwarded"):
            monkeypatch.setattr(staged, leave, after(slow.commit, getattr(staged, leave)))

        enqueuer.run_once()
        assert ids_in(database_url, "staged_jobs") == [lower]
        enqueuer.drain()

    assert pushed_jobs(redis_url) == [higher, lower]
    assert ids_in(database_url, "staged_jobs") == []


def after(first: Any, then: Any) -> Any:
    def both(*given: Any, **options: Any) -> Any:
        first()
        return then(*given, **options)

    return both


@pytest.mark.parametrize("forward_queues", [frozenset(), frozenset({"default"})], ids=["tracked", "forward"])
def test_a_job_that_is_withdrawn_while_its_batch_is_open_is_not_pushed(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, forward_queues: frozenset[str]
) -> None:
    withdrawn, kept = stage_jobs(database_url, 2)

    def withdraw() -> None:
        query(database_url, "DELETE FROM staged_jobs WHERE id = %s", withdrawn)

    for leave in ("move", "delete_forwarded"):
        monkeypatch.setattr(staged, leave, after(withdraw, getattr(staged, leave)))
    with new_enqueuer(database_url, redis_url, forward_queues=forward_queues) as enqueuer:
        enqueuer.drain()

    assert pushed_jobs(redis_url) == [kept]


def test_lower_priorities_are_pushed_first_and_equal_ones_in_the_order_of_their_ids(
    database_url: str, redis_url: str
) -> None:
    ids = [stage_jobs(database_url, priority=priority)[0] for priority in (5, 0, -1, 0, 5, -1)]

    with new_enqueuer(database_url, redis_url, batch_size=2) as enqueuer:
        assert enqueuer.drain() == 6

    assert pushed_jobs(redis_url) == [ids[2], ids[5], ids[1], ids[3], ids[0], ids[4]]


def test_jobs_go_to_the_lists_of_their_queues(database_url: str, redis_url: str) -> None:
    (mail,) = stage_jobs(database_url, queue="mail")
    (default,) = stage_jobs(database_url)

    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()

    assert (pushed_jobs(redis_url, "mail"), pushed_jobs(redis_url)) == ([mail], [default])


@pytest.mark.parametrize("forward_queues", [frozenset(), frozenset({"default"})], ids=["tracked", "forward"])
def test_a_scheduled_job_waits_until_it_is_due(
    database_url: str, redis_url: str, forward_queues: frozenset[str]
) -> None:
    (scheduled,) = stage_jobs(database_url, run_at=FUTURE)
    (now,) = stage_jobs(database_url)
    (belated,) = stage_jobs(database_url, run_at=PAST)

    with new_enqueuer(database_url, redis_url, forward_queues=forward_queues) as enqueuer:
        enqueuer.drain()
        assert pushed_jobs(redis_url) == [now, belated]
        assert ids_in(database_url, "staged_jobs") == [scheduled]

        come_due(database_url, scheduled)
        enqueuer.drain()
        assert pushed_jobs(redis_url) == [now, belated, scheduled]


def test_a_scheduled_job_of_a_better_priority_overtakes_once_it_is_due(
    database_url: str, redis_url: str
) -> None:
    (urgent,) = stage_jobs(database_url, run_at=FUTURE, priority=-1)
    others = stage_jobs(database_url, 3)
    come_due(database_url, urgent)

    with new_enqueuer(database_url, redis_url, batch_size=2) as enqueuer:
        enqueuer.drain()

    assert pushed_jobs(redis_url) == [urgent, *others]


def test_many_scheduled_jobs_come_due_in_order(database_url: str, redis_url: str) -> None:
    ids = stage_jobs(database_url, 10_001, run_at=FUTURE)
    query(database_url, "UPDATE staged_jobs SET scheduled_at = now()")

    with new_enqueuer(database_url, redis_url) as enqueuer:
        assert enqueuer.drain() == len(ids)

    assert pushed_jobs(redis_url) == ids


@pytest.mark.parametrize("forward_queues", [frozenset(), frozenset({"default"})], ids=["tracked", "forward"])
def test_an_expired_job_is_dead_and_the_others_are_pushed(
    database_url: str, redis_url: str, forward_queues: frozenset[str]
) -> None:
    (first,) = stage_jobs(database_url, expires_at=FUTURE)
    (expired,) = stage_jobs(database_url, expires_at=PAST)
    (last,) = stage_jobs(database_url)

    with new_enqueuer(database_url, redis_url, forward_queues=forward_queues) as enqueuer:
        assert enqueuer.drain() == 3

    assert pushed_jobs(redis_url) == [first, last]
    assert query(database_url, "SELECT id, reason FROM dead_jobs") == [(expired, "expired")]


def test_a_locked_row_does_not_block_the_others(database_url: str, redis_url: str) -> None:
    ids = stage_jobs(database_url, 3)
    with new_enqueuer(database_url, redis_url) as enqueuer, psycopg.connect(database_url) as somebody:
        enqueuer.connection.execute("SET lock_timeout = '10ms'")
        somebody.execute("SELECT FROM staged_jobs WHERE id = %s FOR UPDATE", [ids[1]])
        enqueuer.drain()
        assert pushed_jobs(redis_url) == [ids[0], ids[2]]

        somebody.rollback()
        enqueuer.drain()
        assert pushed_jobs(redis_url) == [ids[0], ids[2], ids[1]]


def test_a_job_moves_in_flight_with_all_its_columns(database_url: str, redis_url: str) -> None:
    at = datetime.now(UTC) - timedelta(minutes=1)
    stage_jobs(
        database_url,
        job="shop.jobs.send",
        queue="mail",
        priority=3,
        run_at=at,
        expires_at=FUTURE,
        tag="shop.order",
        max_attempts=4,
        timeout_seconds=5,
        context={"trace": "abc"},
    )
    staged_row = "SELECT to_jsonb(staged_jobs) - 'matured_at' - 'starts_at' FROM staged_jobs"
    ((before,),) = query(database_url, staged_row)

    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()

    ((row,),) = query(database_url, "SELECT to_jsonb(inflight_jobs) FROM inflight_jobs")
    assert {column: row[column] for column in before} == before


def test_a_tracked_job_is_committed_before_it_is_pushed(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = stage_jobs(database_url, 3)
    seen_at_each_push: list[list[int]] = []
    push = Producer.push

    def look_and_push(*given: Any) -> Any:
        seen_at_each_push.append(ids_in(database_url, "inflight_jobs"))
        return push(*given)

    monkeypatch.setattr(Producer, "push", look_and_push)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()

    assert seen_at_each_push == [ids]


def refuse(*_: Any) -> None:
    raise UnavailableError("Redis is away")


def test_jobs_moved_but_not_pushed_are_pushed_by_the_next_leader(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = stage_jobs(database_url, 5)
    with monkeypatch.context() as patch, new_enqueuer(database_url, redis_url, batch_size=2) as enqueuer:
        patch.setattr(Producer, "push", refuse)
        with pytest.raises(UnavailableError):
            enqueuer.drain()
    assert pushed(redis_url) == []
    assert progress(database_url) == (4, 0)

    with new_enqueuer(database_url, redis_url, batch_size=2) as successor:
        assert Redelivery(successor).recover() == 4
        successor.drain()

    assert pushed_jobs(redis_url) == ids
    assert progress(database_url) == (9, 9)


def test_a_new_leader_continues_the_delivery_numbers(database_url: str, redis_url: str) -> None:
    for _ in range(2):
        stage_jobs(database_url, 3)
        with new_enqueuer(database_url, redis_url) as enqueuer:
            assert Redelivery(enqueuer).recover() == 0
            enqueuer.drain()

    deliveries = query(database_url, "SELECT delivery FROM inflight_jobs ORDER BY id")
    assert deliveries == [(number,) for number in range(1, 7)]
    assert progress(database_url) == (6, 6)


def test_a_batch_is_moved_while_the_one_before_is_being_pushed(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The push of the first batch ends only after the second batch has been taken."""
    from threading import Event

    stage_jobs(database_url, 2)
    second_batch_taken = Event()
    push, take = Producer.push, lanes.read_due

    def push_last(*given: Any) -> Any:
        assert second_batch_taken.wait(10)
        return push(*given)

    taken: list[Any] = []

    def take_and_tell(*given: Any, **options: Any) -> Any:
        taken.append(take(*given, **options))
        if len(taken) == 2:
            second_batch_taken.set()
        return taken[-1]

    # A small batch would be pushed by the leader's own thread.
    monkeypatch.setattr(pusher, "_MOST_AT_ONCE", 0)
    monkeypatch.setattr(Producer, "push", push_last)
    read_by(monkeypatch, take_and_tell)
    with new_enqueuer(database_url, redis_url, batch_size=1) as enqueuer:
        drained = enqueuer.drain()

    assert drained == 2
    assert len(pushed(redis_url)) == 2


def test_a_drain_can_be_stopped_after_the_current_batch(database_url: str, redis_url: str) -> None:
    ids = stage_jobs(database_url, 5)

    with new_enqueuer(database_url, redis_url, batch_size=2) as enqueuer:
        assert enqueuer.drain(keep_on=lambda: False) == 2

    assert pushed_jobs(redis_url) == ids[:2]
    assert ids_in(database_url, "staged_jobs") == ids[2:]


def test_a_leader_whose_connection_is_cut_commits_nothing_and_the_next_one_drains_it(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = stage_jobs(database_url, 3)

    def cut(enqueuer: Enqueuer) -> None:
        backend = enqueuer.connection.info.backend_pid
        query(database_url, "SELECT pg_terminate_backend(%s, 5000)", backend)

    with new_enqueuer(database_url, redis_url) as enqueuer, monkeypatch.context() as patch:
        patch.setattr(staged, "move", after(lambda: cut(enqueuer), staged.move))
        with pytest.raises(psycopg.OperationalError):
            enqueuer.drain()
    assert ids_in(database_url, "staged_jobs") == ids

    with new_enqueuer(database_url, redis_url) as successor:
        successor.drain()
    assert pushed_jobs(redis_url) == ids
