"""Lists in Redis stay short, and what waits in PostgreSQL stays in the hands of the one who decides."""

from __future__ import annotations

from itertools import chain

import pytest
import redis

from drain.enqueuer import cursor
from drain.enqueuer.redelivery import Redelivery
from tests.helpers import (
    drain_command,
    environment,
    ids_in,
    leading,
    new_enqueuer,
    pushed_jobs,
    query,
    stage_jobs,
    wait_until,
)

LEAST = 16


def take(redis_url: str, count: int, queue: str = "default") -> None:
    """Pop ids, as workers do."""
    with redis.Redis.from_url(redis_url) as client:
        client.lpop(f"rq:queue:{queue}", count)


@pytest.mark.usefixtures("processes")
def test_without_workers_a_list_gets_few_jobs_and_the_rest_stays_staged(
    database_url: str, redis_url: str
) -> None:
    ids = stage_jobs(database_url, 200)
    with leading(environment(database_url, redis_url)):
        wait_until(lambda: len(pushed_jobs(redis_url)) == LEAST)
        take(redis_url, LEAST)
        wait_until(lambda: pushed_jobs(redis_url))
    assert set(ids) == {*ids_in(database_url, "staged_jobs"), *ids_in(database_url, "inflight_jobs")}
    assert len(ids_in(database_url, "staged_jobs")) > 100


@pytest.mark.usefixtures("processes")
def test_the_depth_can_be_fixed_or_without_a_bound(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url, 200)
    with leading(environment(database_url, redis_url), "--depth", "50"):
        wait_until(lambda: len(pushed_jobs(redis_url)) == 50)
        assert len(ids_in(database_url, "staged_jobs")) == 150
    with leading(environment(database_url, redis_url, DRAIN_DEPTH="0")):
        wait_until(lambda: len(pushed_jobs(redis_url)) == 200)


@pytest.mark.usefixtures("processes")
def test_draining_once_and_forward_mode_have_no_bound(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url, 200)
    stage_jobs(database_url, 100, queue="away")
    env = environment(database_url, redis_url, DRAIN_FORWARD_QUEUES="away")
    with leading(env):
        wait_until(lambda: redis.Redis.from_url(redis_url).llen("rq:queue:away") == 100)
    with drain_command("run", "--once", env=env) as command:
        assert command.wait(30) == 0
    assert len(pushed_jobs(redis_url)) == 200


def test_a_full_queue_does_not_delay_the_others(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url, 500, queue="bulk")
    with new_enqueuer(database_url, redis_url, depth=10) as enqueuer:
        assert enqueuer.drain() == 10
        (job_id,) = stage_jobs(database_url)
        assert enqueuer.drain() == 1
    assert pushed_jobs(redis_url) == [job_id]


def test_priorities_set_in_postgres_apply_until_the_push(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another machine may be slow: no sweep is put off because one took long.
    monkeypatch.setattr(cursor, "_SCAN_SECONDS", 60.0)
    ids = stage_jobs(database_url, 50)
    with new_enqueuer(database_url, redis_url, depth=10) as enqueuer:
        enqueuer.drain()
        query(database_url, "UPDATE staged_jobs SET priority = -1 WHERE id = %s", ids[-1])
        (urgent,) = stage_jobs(database_url, priority=-2)
        take(redis_url, 10)
        wait_until(enqueuer.drain)
    assert pushed_jobs(redis_url)[:3] == [urgent, ids[-1], ids[10]]


def test_a_list_filled_by_other_programs_is_full_too(database_url: str, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.rpush("rq:queue:default", *(f"theirs-{number}" for number in range(100)))
    stage_jobs(database_url, 30)
    with new_enqueuer(database_url, redis_url, depth=10) as enqueuer:
        # The first push tells how long the list is.
        assert enqueuer.drain() == 10
        assert enqueuer.drain() == 0
        take(redis_url, 105)
        assert wait_until(enqueuer.drain) == 5


@pytest.mark.usefixtures("processes")
def test_a_redis_that_lost_its_data_gets_back_only_pushed_jobs(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url, 500)
    with leading(environment(database_url, redis_url), "--depth", "20") as leader:
        wait_until(lambda: len(pushed_jobs(redis_url)) == 20)
        with redis.Redis.from_url(redis_url) as client:
            client.flushall()
        wait_until(lambda: leader.events("redis_lost"))
        wait_until(lambda: set(ids_in(database_url, "inflight_jobs")) == set(pushed_jobs(redis_url)))
    # An empty list has room, until it is known why it is empty.
    assert len(ids_in(database_url, "staged_jobs")) >= 420


@pytest.mark.usefixtures("processes")
def test_due_retries_wait_for_room_like_other_jobs(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url, 50)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
    query(database_url, "UPDATE inflight_jobs SET next_run_at = now(), claimed_at = now()")
    with redis.Redis.from_url(redis_url) as client:
        client.delete("rq:queue:default")
    with leading(environment(database_url, redis_url), "--depth", "20"):
        wait_until(lambda: len(pushed_jobs(redis_url)) == 20)
        take(redis_url, 20)
        wait_until(lambda: len(pushed_jobs(redis_url)) == 20)
        waiting = query(database_url, "SELECT count(*) FROM inflight_jobs WHERE next_run_at IS NOT NULL")
    assert waiting == [(10,)]


def test_a_list_stays_within_its_bound_and_urgent_jobs_come_first(database_url: str, redis_url: str) -> None:
    urgent, patient = stage_jobs(database_url, 35), stage_jobs(database_url, 20, priority=100)
    lists = []
    with new_enqueuer(database_url, redis_url, depth=10) as enqueuer:
        for _ in range(4):
            wait_until(enqueuer.drain)
            lists.append(pushed_jobs(redis_url))
            take(redis_url, 10)

    assert [len(ids) for ids in lists[:3]] == [10] * 3
    pushed = [*chain.from_iterable(lists)]
    assert pushed[:35] == urgent
    assert set(pushed[35:]) <= set(patient)


def test_a_push_to_one_list_does_not_change_the_known_length_of_another(
    database_url: str, redis_url: str
) -> None:
    stage_jobs(database_url, 30, queue="calls")
    (job_id,) = stage_jobs(database_url)
    with new_enqueuer(database_url, redis_url, depth=10) as enqueuer:
        redelivery = Redelivery(enqueuer)
        redelivery.recover()
        enqueuer.drain()
        take(redis_url, 10, "calls")
        wait_until(lambda: enqueuer.admission.room("calls") or enqueuer.look())
        query(database_url, "UPDATE inflight_jobs SET next_run_at = now() WHERE id = %s", job_id)

        assert redelivery.run_once() == 1
        assert enqueuer.admission.room("calls") == 10
