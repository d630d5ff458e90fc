"""Redelivery scans from where its last scan ended, and misses nothing for it."""

from datetime import timedelta

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.abc import Params
from redis import Redis

from drain.database import postgres
from drain.enqueuer import oldest_deliveries
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.oldest_deliveries import OldestDeliveries
from drain.enqueuer.pacer import Pacer
from drain.enqueuer.redelivery import LOST_AFTER_SECONDS
from drain.tables import claims, leases, waiting
from tests.database.test_redelivery import (
    AGO,
    Clock,
    claim,
    client,
    clock,
    end_lease,
    new_leader,
)
from tests.helpers import deliveries, new_enqueuer, pushed_jobs, query, stage_jobs, wait_until

__all__ = ["client", "clock"]

A_MOMENT_AGO = timedelta(seconds=-1)


@pytest.fixture
def no_whole_scan_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the first one of each kind."""
    monkeypatch.setattr(Pacer, "is_due", lambda pacer: pacer._due_at == 0.0)


def pages_read(enqueuer: Enqueuer, statement: str, parameters: Params) -> int:
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
    row = enqueuer.connection.execute(explain.encode(), parameters).fetchone()
    assert row is not None
    return int(row[0][0]["Plan"]["Shared Hit Blocks"] + row[0][0]["Plan"]["Shared Read Blocks"])


def test_claimed_jobs_are_not_rescanned_each_time(database_url: str, redis_url: str) -> None:
    with psycopg.connect(database_url) as report, new_enqueuer(database_url, redis_url) as enqueuer:
        report.isolation_level = IsolationLevel.REPEATABLE_READ
        report.execute("SELECT pg_current_xact_id()")
        oldest = OldestDeliveries(enqueuer.connection, enqueuer.deliveries)
        stage_jobs(database_url, 10_000)
        enqueuer.drain()
        query(database_url, "UPDATE inflight_jobs SET lease_expires_at = now() + interval '1 hour'")
        assert oldest.find() == {}

        assert pages_read(enqueuer, waiting._OLDEST_DELIVERIES, {"after": "", "limit": None}) > 100
        bounds = oldest.lower_bounds
        statement = waiting._OLDEST_DELIVERIES_FROM
        assert pages_read(enqueuer, statement, (list(bounds), list(bounds.values()))) < 20


def test_each_scan_finds_the_lowest_number_of_each_queue(database_url: str, redis_url: str) -> None:
    with new_enqueuer(database_url, redis_url) as enqueuer:
        oldest = OldestDeliveries(enqueuer.connection, enqueuer.deliveries)
        first, second = stage_jobs(database_url, 2)
        enqueuer.drain()
        assert oldest.find() == {"default": 1}

        claim(database_url, first)
        stage_jobs(database_url, queue="mail")
        enqueuer.drain()
        assert oldest.find() == {"default": 2, "mail": 3}

        claim(database_url, second)
        assert oldest.find() == {"mail": 3}

        stage_jobs(database_url)
        enqueuer.drain()
        assert oldest.find() == {"default": 4, "mail": 3}


def test_a_lost_job_of_a_queue_new_to_the_leader_is_pushed_again(
    database_url: str, redis_url: str, client: Redis, clock: Clock, no_whole_scan_is_due: None
) -> None:
    with new_leader(database_url, redis_url) as (enqueuer, redelivery):
        redelivery.run_once()
        ids = stage_jobs(database_url, 2, queue="mail")
        enqueuer.drain()
        client.delete("rq:queue:mail")
        assert redelivery.run_once() == 0
        clock.now += 16
        assert redelivery.run_once() == 2

    assert pushed_jobs(redis_url, "mail") == ids


def test_a_job_claimed_before_the_leader_started_is_repushed_when_lost(
    database_url: str, redis_url: str, client: Redis, clock: Clock, no_whole_scan_is_due: None
) -> None:
    (job_id,) = stage_jobs(database_url)
    with new_leader(database_url, redis_url):
        claim(database_url, job_id)
    with new_leader(database_url, redis_url) as (_, successor):
        successor.run_once()
        end_lease(database_url, job_id, A_MOMENT_AGO)
        assert successor.run_once() == 1
        for _ in range(2):
            client.delete("rq:queue:default")
            assert successor.run_once() == 0
            clock.now += 16
            assert successor.run_once() == 1


@pytest.mark.parametrize("most", [1000, 1], ids=["few queues", "a crowd of queues"])
def test_a_returned_claim_lost_from_redis_is_repushed_after_the_grace(
    database_url: str, redis_url: str, client: Redis, clock: Clock, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(oldest_deliveries, "_MOST_QUEUES", most)
    stage_jobs(database_url, queue="another")
    given_back, other = stage_jobs(database_url, 2)
    with (
        new_leader(database_url, redis_url) as (_, redelivery),
        postgres.connect(database_url, "w") as worker,
    ):
        redelivery.run_once()
        (claimed,) = claims.claim_many(worker, deliveries(worker, [given_back]), worker="w", limits={})
        client.lpop("rq:queue:default")
        redelivery.run_once()
        # The worker dies before it puts the id back.
        assert leases.release(worker, [claimed])

        # A scan of the whole index comes as soon as the last one has cost a fiftieth of the time.
        wait_until(lambda: redelivery.run_once() or redelivery.lower_bounds.get("default", 9) < 3)
        clock.now += LOST_AFTER_SECONDS + 1
        wait_until(redelivery.run_once)
    assert pushed_jobs(redis_url) == [other, given_back]


def test_a_manually_changed_row_is_found_by_a_full_scan(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_enqueuer(database_url, redis_url) as enqueuer:
        oldest = OldestDeliveries(enqueuer.connection, enqueuer.deliveries)
        (job_id,) = stage_jobs(database_url)
        enqueuer.drain()
        claim(database_url, job_id)
        assert oldest.find() == {}
        query(database_url, "UPDATE inflight_jobs SET lease_expires_at = NULL")

        monkeypatch.setattr(Pacer, "is_due", lambda _: True)
        assert oldest.find() == {"default": 1}


def test_a_lease_that_expired_under_a_row_lock_is_found_next_time(
    database_url: str, redis_url: str, no_whole_scan_is_due: None
) -> None:
    (job_id,) = stage_jobs(database_url)
    with new_leader(database_url, redis_url) as (_, redelivery), psycopg.connect(database_url) as worker:
        redelivery.run_once()
        claim(database_url, job_id)
        end_lease(database_url, job_id, A_MOMENT_AGO)
        worker.execute("SELECT FROM inflight_jobs WHERE id = %s FOR UPDATE", [job_id])
        assert redelivery.run_once() == 0
        worker.rollback()
        assert redelivery.run_once() == 1


def test_an_old_expired_lease_is_found_by_a_full_scan(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job_id,) = stage_jobs(database_url)
    with new_leader(database_url, redis_url) as (_, redelivery):
        redelivery.run_once()
        claim(database_url, job_id)
        end_lease(database_url, job_id, AGO)
        assert redelivery.run_once() == 0

        monkeypatch.setattr(Pacer, "is_due", lambda _: True)
        assert redelivery.run_once() == 1
