"""Pauses: nothing of what they apply to is delivered, and what was delivered waits; then it is delivered again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from drain import queues
from drain.database import postgres
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.recall import CallBack
from drain.enqueuer.redelivery import Redelivery
from drain.tables import claims, finishes, leases, pauses, redeliveries
from drain.tables.pauses import Pauses
from tests.helpers import deliveries, new_enqueuer, pushed_jobs, query, stage_jobs


def pause(database_url: str, queue: str | None = None, **options: Any) -> None:
    with psycopg.connect(database_url) as connection:
        queues.pause(connection, queue, **options)


def resume(database_url: str, queue: str | None = None, **options: Any) -> bool:
    with psycopg.connect(database_url) as connection:
        return queues.resume(connection, queue, **options)


@contextmanager
def leader_of(database_url: str, redis_url: str) -> Iterator[tuple[Enqueuer, Redelivery]]:
    with new_enqueuer(database_url, redis_url) as enqueuer:
        redelivery = Redelivery(enqueuer)
        redelivery.recover()
        enqueuer.drain()
        enqueuer.flush()
        yield enqueuer, redelivery


def give_keys(database_url: str, keys: dict[int, str]) -> None:
    for job_id, key in keys.items():
        query(database_url, "UPDATE staged_jobs SET key = %s WHERE id = %s", key, job_id)


def waiting(database_url: str) -> list[int]:
    """Ids of the jobs in flight that wait, which no claim finds."""
    rows = query(database_url, "SELECT id FROM inflight_jobs WHERE next_run_at IS NOT NULL ORDER BY id")
    return [job_id for (job_id,) in rows]


def test_delivered_jobs_of_a_paused_queue_wait_until_it_resumes(database_url: str, redis_url: str) -> None:
    calls, mail = stage_jobs(database_url, 3, queue="calls"), stage_jobs(database_url, 2, queue="mail")
    with leader_of(database_url, redis_url) as (_, redelivery):
        pause(database_url, "calls")

        assert redelivery.run_once() == 0
        assert waiting(database_url) == calls
        assert redelivery.run_once() == 0

        assert resume(database_url, "calls")
        assert redelivery.run_once() == 3
        assert waiting(database_url) == []
        assert pushed_jobs(redis_url, "calls") == calls * 2
        assert pushed_jobs(redis_url, "mail") == mail


@pytest.mark.parametrize(
    ("named", "called_back"),
    [
        ({"job": "m.g"}, [2]),
        ({"key": "acme"}, [0, 3]),
        ({"queue": "calls", "key": "acme"}, [0]),
        ({"job": "m.f", "key": "acme"}, [0, 3]),
        ({"job": "m.g", "key": "acme"}, []),
        ({"queue": "mail", "job": "m.f"}, [3]),
    ],
)
def test_a_pause_applies_only_to_jobs_matching_all_its_fields(
    database_url: str, redis_url: str, named: dict[str, str], called_back: list[int]
) -> None:
    ids = [
        *stage_jobs(database_url, 2, queue="calls"),
        *stage_jobs(database_url, queue="calls", job="m.g"),
        *stage_jobs(database_url, queue="mail"),
    ]
    give_keys(database_url, {ids[0]: "acme", ids[1]: "zoo", ids[3]: "acme"})
    with leader_of(database_url, redis_url) as (_, redelivery):
        pause(database_url, **named)
        redelivery.run_once()

        assert waiting(database_url) == [ids[place] for place in called_back]
        jobs = query(database_url, "SELECT id, queue, job_name, key FROM inflight_jobs ORDER BY id")
        assert [row[0] for row in jobs if redelivery.paused.applies(*row[1:])] == waiting(database_url)


def test_a_due_retry_of_a_paused_key_waits_while_others_proceed(database_url: str, redis_url: str) -> None:
    paused, other = stage_jobs(database_url, 2)
    give_keys(database_url, {paused: "acme", other: "zoo"})
    with leader_of(database_url, redis_url) as (_, redelivery):
        query(database_url, "UPDATE inflight_jobs SET next_run_at = now() - interval '1 s'")
        pause(database_url, key="acme")

        assert redelivery.run_once() == 1
        assert waiting(database_url) == [paused]


def test_a_job_of_a_paused_queue_whose_worker_died_waits(database_url: str, redis_url: str) -> None:
    (job_id,) = stage_jobs(database_url)
    with leader_of(database_url, redis_url) as (_, redelivery):
        with psycopg.connect(database_url) as connection:
            assert claims.claim(connection, job_id, worker="test", limits={})
        pause(database_url, "default")
        redelivery.run_once()
        assert waiting(database_url) == []

        query(database_url, "UPDATE inflight_jobs SET lease_expires_at = now() - interval '1 s'")
        assert redelivery.run_once() == 0
        assert waiting(database_url) == [job_id]
        assert resume(database_url, "default")
        assert redelivery.run_once() == 1


def test_a_claim_returned_during_a_pause_waits(database_url: str, redis_url: str) -> None:
    (job_id,) = stage_jobs(database_url)
    with leader_of(database_url, redis_url) as (enqueuer, _):
        query(database_url, "UPDATE inflight_jobs SET lease_expires_at = now() + interval '1 h'")
        pause(database_url, "default")
        call_back = CallBack(enqueuer.connection)
        assert call_back.run_once() == 0

        query(database_url, "UPDATE inflight_jobs SET lease_expires_at = NULL")
        assert call_back.run_once() == 1
        assert waiting(database_url) == [job_id]


def test_a_new_leader_pushes_nothing_that_is_paused(database_url: str, redis_url: str) -> None:
    ids = stage_jobs(database_url, 2)
    with leader_of(database_url, redis_url):
        pass
    pause(database_url, "default")
    query(database_url, "SELECT setval('drain_pushed_up_to', 1)")

    with new_enqueuer(database_url, redis_url) as successor:
        assert Redelivery(successor).recover() == 0
    assert waiting(database_url) == ids


def test_a_pause_expires_by_the_clock_of_the_database(database_url: str, redis_url: str) -> None:
    (job_id,) = stage_jobs(database_url)
    with leader_of(database_url, redis_url) as (enqueuer, redelivery):
        pause(database_url, "default", until=timedelta(hours=1), reason="the calls cost money")
        redelivery.run_once()
        assert waiting(database_url) == [job_id]

        query(database_url, "UPDATE queue_pauses SET until = now() - interval '1 s'")
        assert redelivery.run_once() == 1
        assert not redelivery.paused
        assert pauses.prune(enqueuer.connection) == 1


def test_a_pause_until_a_time_lasts_until_the_later_of_two(database_url: str) -> None:
    noon = datetime.now(UTC) + timedelta(hours=2)
    for until in (noon, timedelta(minutes=1), noon - timedelta(hours=1)):
        pause(database_url, "calls", key="acme", until=until)
    pause(database_url, "calls", key="acme")

    with psycopg.connect(database_url) as connection:
        held = queues.pauses(connection)
        assert [each.until for each in held] == [noon, None]
        assert Pauses(held).keys("calls") == {"acme": None}
        assert Pauses(held[:1]).keys("calls") == {"acme": noon}
        assert queues.resume(connection, "calls", key="acme")
        assert not queues.resume(connection, "calls", key="acme")


def test_a_called_back_attempt_that_was_never_made_does_not_count(database_url: str, redis_url: str) -> None:
    (job_id,) = stage_jobs(database_url)
    with leader_of(database_url, redis_url) as (_, redelivery):
        pause(database_url, "default")
        redelivery.run_once()
        resume(database_url, "default")
        redelivery.run_once()
    with psycopg.connect(database_url) as connection:
        claim = claims.claim(connection, job_id, worker="test", limits={})
        assert claim is not None
        assert claim.attempts == 1
        assert finishes.finish(connection, claim)


def test_a_job_returned_during_a_pause_is_not_started_again(database_url: str, redis_url: str) -> None:
    paused, other = stage_jobs(database_url, 2)
    give_keys(database_url, {paused: "acme"})
    with leader_of(database_url, redis_url), postgres.connect(database_url, "test") as connection:
        asked = deliveries(connection, [paused, other])
        claimed = claims.claim_many(connection, asked, worker="test", limits={})
        pause(database_url, key="acme")
        leases.release(connection, claimed)

        again = claims.claim_many(connection, asked, worker="another", limits={})
        assert ([job.id for job in claimed], [job.id for job in again]) == ([paused, other], [other])
        assert waiting(database_url) == [paused]


def test_a_pause_after_the_last_poll_still_prevents_redelivery(database_url: str, redis_url: str) -> None:
    retry, other_retry, unclaimed, other = ids = stage_jobs(database_url, 4)
    give_keys(database_url, {retry: "acme", unclaimed: "acme"})
    with leader_of(database_url, redis_url), postgres.connect(database_url, "test") as connection:
        asked = deliveries(connection, ids)
        query(
            database_url,
            "UPDATE inflight_jobs SET next_run_at = now() WHERE id = ANY (%s)",
            [retry, other_retry],
        )
        pause(database_url, key="acme")
        retries = redeliveries.redeliver_retries(connection, 100, 10, queue="default", but_paused=True)
        lost = redeliveries.redeliver_unclaimed(
            connection, 200, 10, queue="default", above=0, up_to=max(asked.values()), but_paused=True
        )

    assert ([job.id for job in retries], [job.id for job in lost]) == ([other_retry], [other])


@pytest.mark.parametrize("rules", [{}, {"running": 5}])
def test_staged_jobs_of_a_paused_queue_stay_staged(
    database_url: str, redis_url: str, rules: dict[str, Any]
) -> None:
    stage_jobs(database_url, 3, queue="calls")
    pause(database_url, "calls")
    with psycopg.connect(database_url) as connection:
        if rules:
            queues.set(connection, "calls", **rules)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        assert enqueuer.drain() == 0
