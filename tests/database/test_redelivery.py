from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
from redis import Redis

from drain.enqueuer import lost_deliveries, redelivery, renumbering
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.redelivery import LOST_AFTER_SECONDS, Redelivery
from drain.errors import UnavailableError
from drain.tables import changes, claims, finishes, outcomes
from drain.tables.changes import Change
from drain.tables.claims import Claim
from drain.tables.selections import Selection
from drain.wire import Producer
from tests.helpers import ids_in, new_enqueuer, pushed, pushed_jobs, query, stage_jobs

AGO, AHEAD = timedelta(minutes=-1), timedelta(minutes=1)


class Clock:
    """The time by which redelivery measures how long something is suspicious."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (lost_deliveries, redelivery):
        monkeypatch.setattr(module, "monotonic", clock)
    return clock


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as connected:
        yield connected


@contextmanager
def new_leader(database_url: str, redis_url: str) -> Iterator[tuple[Enqueuer, Redelivery]]:
    """A leader that has just begun, as the daemon makes it, and which drained what was there."""
    with new_enqueuer(database_url, redis_url) as enqueuer:
        redelivery = Redelivery(enqueuer)
        redelivery.recover()
        enqueuer.drain()
        yield enqueuer, redelivery


def claim(database_url: str, job_id: int) -> Claim | None:
    with psycopg.connect(database_url) as connection:
        return claims.claim(connection, job_id, worker="test", limits={})


def fail(database_url: str, claimed: Claim | None, wait: timedelta) -> None:
    assert claimed is not None
    error = {"type": "E", "message": "m", "traceback": "t"}
    with psycopg.connect(database_url) as connection:
        wait_seconds = wait.total_seconds()
        assert outcomes.retry_later(connection, claimed, wait_seconds, error)


def end_lease(database_url: str, job_id: int, when: timedelta) -> None:
    query(database_url, "UPDATE inflight_jobs SET lease_expires_at = now() + %s WHERE id = %s", when, job_id)


def test_jobs_waiting_in_their_list_are_left_there(database_url: str, redis_url: str, clock: Clock) -> None:
    ids = stage_jobs(database_url, 3)
    with new_leader(database_url, redis_url) as (_, redelivery):
        for _ in range(3):
            assert redelivery.run_once() == 0
            clock.now += 3600

    assert pushed_jobs(redis_url) == ids


def test_a_redis_that_lost_its_data_gets_all_waiting_jobs_at_once(
    database_url: str, redis_url: str, client: Redis
) -> None:
    first, claimed, last = stage_jobs(database_url, 3)
    (mail,) = stage_jobs(database_url, queue="mail")
    with new_leader(database_url, redis_url) as (_, redelivery):
        assert claim(database_url, claimed)
        client.flushall()

        assert redelivery.run_once() == 3
        assert (pushed_jobs(redis_url), pushed_jobs(redis_url, "mail")) == ([first, last], [mail])
        assert client.exists(*(f"rq:job:{rq_id}" for rq_id in pushed(redis_url))) == 2
        assert redelivery.run_once() == 0


def test_a_redis_emptied_without_a_leader_is_refilled_by_the_next_one(
    database_url: str, redis_url: str, client: Redis
) -> None:
    ids = stage_jobs(database_url, 3)
    with new_leader(database_url, redis_url):
        pass
    client.flushall()

    with new_leader(database_url, redis_url) as (_, successor):
        successor.run_once()

    assert pushed_jobs(redis_url) == ids


def test_a_new_leader_repeats_no_push_to_an_intact_redis(database_url: str, redis_url: str) -> None:
    ids = stage_jobs(database_url, 3)
    for _ in range(3):
        with new_leader(database_url, redis_url) as (_, redelivery):
            assert redelivery.run_once() == 0

    assert pushed_jobs(redis_url) == ids


def test_jobs_popped_but_not_claimed_are_pushed_again_after_a_grace(
    database_url: str, redis_url: str, client: Redis, clock: Clock
) -> None:
    ids = stage_jobs(database_url, 2)
    with new_leader(database_url, redis_url) as (_, redelivery):
        client.delete("rq:queue:default")
        assert redelivery.run_once() == 0
        clock.now += LOST_AFTER_SECONDS - 1
        assert redelivery.run_once() == 0
        clock.now += 1

        assert redelivery.run_once() == 2
        assert pushed_jobs(redis_url) == ids
        assert redelivery.run_once() == 0


def test_a_lost_job_is_pushed_again_without_those_behind_it(
    database_url: str, redis_url: str, client: Redis, clock: Clock
) -> None:
    lost, *waiting = stage_jobs(database_url, 3)
    with new_leader(database_url, redis_url) as (_, redelivery):
        client.lpop("rq:queue:default")
        redelivery.run_once()
        clock.now += LOST_AFTER_SECONDS

        assert redelivery.run_once() == 1

    assert pushed_jobs(redis_url) == [*waiting, lost]


def test_each_job_that_was_lost_has_its_own_grace(
    database_url: str, redis_url: str, client: Redis, clock: Clock
) -> None:
    first, second, waiting = stage_jobs(database_url, 3)
    with new_leader(database_url, redis_url) as (_, redelivery):
        client.lpop("rq:queue:default")
        redelivery.run_once()
        clock.now += LOST_AFTER_SECONDS - 1
        client.lpop("rq:queue:default")
        redelivery.run_once()
        clock.now += 1

        assert redelivery.run_once() == 1
        assert pushed_jobs(redis_url) == [waiting, first]
        redelivery.run_once()
        clock.now += LOST_AFTER_SECONDS
        assert redelivery.run_once() == 1
        assert pushed_jobs(redis_url) == [waiting, first, second]


def test_a_job_claimed_within_the_grace_period_is_left_alone(
    database_url: str, redis_url: str, client: Redis, clock: Clock
) -> None:
    first, second = stage_jobs(database_url, 2)
    with new_leader(database_url, redis_url) as (_, redelivery):
        client.lpop("rq:queue:default")
        redelivery.run_once()
        assert claim(database_url, first)
        client.lpop("rq:queue:default")
        clock.now += LOST_AFTER_SECONDS

        # The second one's own grace begins only now.
        assert redelivery.run_once() == 0
        assert claim(database_url, second)
        clock.now += LOST_AFTER_SECONDS
        assert redelivery.run_once() == 0

    assert pushed(redis_url) == []


@pytest.mark.parametrize("foreign", ["0b9fb1f4-92e3-4b1a-8bd4-7a6d8a9f2c11", "another-database-7-900"])
def test_a_foreign_job_at_the_head_of_a_list_hides_no_waiting_job(
    database_url: str, redis_url: str, client: Redis, clock: Clock, foreign: str
) -> None:
    ids = stage_jobs(database_url, 2)
    with new_leader(database_url, redis_url) as (_, redelivery):
        client.lpush("rq:queue:default", foreign)
        for _ in range(3):
            assert redelivery.run_once() == 0
            clock.now += 3600

    assert pushed_jobs(redis_url) == ids


@pytest.mark.parametrize("foreign", [1, 200])
def test_a_job_lost_behind_foreign_ones_is_repushed_when_those_are_popped(
    database_url: str, redis_url: str, client: Redis, clock: Clock, foreign: int
) -> None:
    lost, waiting = stage_jobs(database_url, 2)
    with new_leader(database_url, redis_url) as (_, redelivery):
        client.lpop("rq:queue:default")
        client.lpush("rq:queue:default", *["somebody-else"] * foreign)
        total = redelivery.run_once()
        clock.now += LOST_AFTER_SECONDS
        total += redelivery.run_once()

        client.lpop("rq:queue:default", foreign)
        total += redelivery.run_once()
        clock.now += LOST_AFTER_SECONDS
        assert total + redelivery.run_once() == 1

    assert pushed_jobs(redis_url) == [waiting, lost]


@pytest.mark.parametrize("foreign", [1, 49, 50, 200])
@pytest.mark.parametrize("lost", [1, 2], ids=["one of two", "both"])
def test_a_lost_job_is_pushed_again_despite_foreign_ones_left_in_its_list(
    database_url: str, redis_url: str, client: Redis, clock: Clock, foreign: int, lost: int
) -> None:
    ids = stage_jobs(database_url, 2)
    with new_leader(database_url, redis_url) as (_, redelivery):
        client.lpop("rq:queue:default", lost)
        client.lpush("rq:queue:default", *["somebody-else"] * foreign)
        redelivery.run_once()
        clock.now += LOST_AFTER_SECONDS
        assert redelivery.run_once() == lost
    assert pushed_jobs(redis_url) == ids[lost:] + ids[:lost]


def test_nothing_is_pushed_again_to_a_queue_key_that_is_not_a_list(
    database_url: str, redis_url: str, client: Redis, clock: Clock
) -> None:
    stage_jobs(database_url)
    with new_leader(database_url, redis_url) as (_, redelivery):
        client.delete("rq:queue:default")
        client.set("rq:queue:default", "no list")
        for _ in range(3):
            assert redelivery.run_once() == 0
            clock.now += 3600


def test_only_a_job_with_an_expired_lease_is_pushed_again(
    database_url: str, redis_url: str, client: Redis
) -> None:
    over, held = stage_jobs(database_url, 2)
    with new_leader(database_url, redis_url) as (_, redelivery):
        client.delete("rq:queue:default")
        first = claim(database_url, over)
        assert first is not None
        assert claim(database_url, held)
        end_lease(database_url, over, AGO)

        assert redelivery.run_once() == 1
        assert pushed_jobs(redis_url) == [over]
        assert redelivery.run_once() == 0

    again = claim(database_url, over)
    assert again is not None
    assert (again.attempts, again.fencing_token) == (first.attempts + 1, first.fencing_token + 1)


def test_only_a_job_with_a_due_retry_is_pushed_again(
    database_url: str, redis_url: str, client: Redis
) -> None:
    due, later = stage_jobs(database_url, 2)
    with new_leader(database_url, redis_url) as (_, redelivery):
        client.delete("rq:queue:default")
        fail(database_url, claim(database_url, due), AGO)
        fail(database_url, claim(database_url, later), AHEAD)

        assert redelivery.run_once() == 1
        assert pushed_jobs(redis_url) == [due]
        assert redelivery.run_once() == 0

    assert claim(database_url, later) is None
    assert claim(database_url, due)


@pytest.mark.parametrize(
    "record",
    [
        partial(outcomes.retry_later, wait_seconds=0.0, error={}),
        partial(outcomes.defer, when=0.0),
        partial(outcomes.slow_down, when=0.0),
        partial(outcomes.interrupt, wait_seconds=0.0, error={}),
    ],
    ids=["retry", "defer", "slow_down", "interrupt"],
)
def test_a_late_outcome_does_not_bring_forward_a_job_moved_to_a_later_time(
    database_url: str, redis_url: str, record: Callable[[psycopg.Connection[Any], Claim], object]
) -> None:
    (job_id,) = stage_jobs(database_url)
    with new_leader(database_url, redis_url) as (_, redelivery):
        claimed = claim(database_url, job_id)
        assert claimed is not None
        end_lease(database_url, job_id, AGO)
        assert redelivery.run_once() == 1
        later = datetime(2100, 1, 1, tzinfo=UTC)
        with psycopg.connect(database_url) as connection:
            assert changes.change_inflight(connection, Selection(ids=(job_id,)), Change(run_at=later))

            # Redelivered, but not claimed again: its fence still holds.
            # An interruption returns its number.
            assert repr(record(connection, claimed)) in ("True", "0")

    assert query(database_url, "SELECT next_run_at FROM inflight_jobs") == [(later,)]


def test_the_hash_of_the_delivery_that_was_replaced_is_gone(
    database_url: str, redis_url: str, client: Redis
) -> None:
    (job_id,) = stage_jobs(database_url)
    with new_leader(database_url, redis_url) as (_, redelivery):
        (before,) = pushed(redis_url)
        client.delete("rq:queue:default")
        assert claim(database_url, job_id)
        end_lease(database_url, job_id, AGO)
        redelivery.run_once()

    (now,) = pushed(redis_url)
    assert before != now
    assert client.keys("rq:job:*") == [f"rq:job:{now}".encode()]


def test_a_job_that_was_pushed_twice_is_claimed_once(
    database_url: str, redis_url: str, client: Redis
) -> None:
    (job_id,) = stage_jobs(database_url)
    with new_leader(database_url, redis_url) as (_, redelivery):
        before = pushed(redis_url)
        client.flushall()
        redelivery.run_once()
        client.lpush("rq:queue:default", *before)
    assert pushed_jobs(redis_url) == [job_id, job_id]

    assert claim(database_url, job_id)
    assert claim(database_url, job_id) is None


def test_thousands_that_were_lost_are_pushed_again_in_their_order(
    database_url: str, redis_url: str, client: Redis
) -> None:
    ids = stage_jobs(database_url, 2_500)
    with new_leader(database_url, redis_url) as (enqueuer, redelivery):
        client.flushall()
        assert redelivery.run_once() == len(ids)
        assert enqueuer.deliveries.pushed_up_to == enqueuer.deliveries.last_delivery == 5_000

    assert pushed_jobs(redis_url) == ids


def test_jobs_renumbered_but_not_pushed_are_pushed_by_the_next_leader(
    database_url: str, redis_url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job_id,) = stage_jobs(database_url)

    def refuse(*_: Any) -> None:
        raise UnavailableError("Redis is away")

    with new_leader(database_url, redis_url) as (_, redelivery), monkeypatch.context() as patch:
        client.delete("rq:queue:default")
        fail(database_url, claim(database_url, job_id), AGO)
        patch.setattr(Producer, "push", refuse)
        with pytest.raises(UnavailableError):
            redelivery.run_once()
    assert pushed(redis_url) == []

    with new_enqueuer(database_url, redis_url) as successor:
        assert Redelivery(successor).recover() == 1
    assert pushed_jobs(redis_url) == [job_id]


def test_a_job_locked_by_its_worker_is_skipped(database_url: str, redis_url: str, client: Redis) -> None:
    written, other = stage_jobs(database_url, 2)
    with new_leader(database_url, redis_url) as (_, redelivery), psycopg.connect(database_url) as worker:
        client.delete("rq:queue:default")
        for job_id in (written, other):
            claim(database_url, job_id)
            end_lease(database_url, job_id, AGO)
        worker.execute("SELECT FROM inflight_jobs WHERE id = %s FOR UPDATE", [written])

        assert redelivery.run_once() == 1
        assert pushed_jobs(redis_url) == [other]


def test_a_finished_job_is_never_pushed_again(
    database_url: str, redis_url: str, client: Redis, clock: Clock
) -> None:
    (job_id,) = stage_jobs(database_url)
    with new_leader(database_url, redis_url) as (_, redelivery):
        claimed = claim(database_url, job_id)
        assert claimed is not None
        with psycopg.connect(database_url) as worker:
            assert finishes.finish(worker, claimed)
        client.flushall()
        for _ in range(3):
            assert redelivery.run_once() == 0
            clock.now += 3600

    assert ids_in(database_url, "finished_jobs") == [job_id]
    assert pushed(redis_url) == []


def test_the_next_leader_completes_an_interrupted_refill_of_redis(
    database_url: str, redis_url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = stage_jobs(database_url, 5)
    with new_leader(database_url, redis_url):
        assert pushed_jobs(redis_url) == ids
    client.flushall()
    monkeypatch.setattr(renumbering, "_SLICE", 2)

    def refuse(*_: Any) -> None:
        raise UnavailableError("Redis went away")

    with monkeypatch.context() as patch:
        patch.setattr(Producer, "push", refuse)
        with pytest.raises(UnavailableError), new_leader(database_url, redis_url):
            pass
    with new_leader(database_url, redis_url):
        assert set(pushed_jobs(redis_url)) == set(ids)


def test_the_next_leader_completes_an_interrupted_recovery(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_leader(database_url, redis_url):
        pass  # Redis now remembers, so that only what was never pushed is to be recovered.
    ids = stage_jobs(database_url, 5)
    monkeypatch.setattr(renumbering, "_SLICE", 2)
    push = Producer.push
    for pushes in (0, 1):
        left = [push] * pushes

        def refuse_after_that(wire: Producer, deliveries: Any, left: list[Any] = left) -> Any:
            if not left:
                raise UnavailableError("Redis went away")
            return left.pop()(wire, deliveries)

        monkeypatch.setattr(Producer, "push", refuse_after_that)
        with pytest.raises(UnavailableError), new_leader(database_url, redis_url):
            pass
    monkeypatch.setattr(Producer, "push", push)

    with new_leader(database_url, redis_url):
        assert set(pushed_jobs(redis_url)) == set(ids)
