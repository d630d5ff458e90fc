"""Drill: Redis loses all keys, while thousands of jobs are queued in it and workers are at work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redis import Redis

from drain.database.postgres import Connection
from drain.tables import leader_progress
from drills import invariants
from drills.jobs import QUEUE
from drills.rows import value
from drills.scenario import Scenario
from drills.shop import Shop
from drills.verdict import Evidence, Verdict

SUMMARY = "Redis loses thousands of queued jobs under load"

# Orders placed at once, queued ids that the flush has to lose, and finished jobs that it waits for.
_AT_ONCE = 4_000
_LOST_AT_LEAST = 1_500
_WORKED = 50
_FINISHED = "SELECT count(*) >= %s FROM finished_jobs"
_LIST = f"rq:queue:{QUEUE}"
_JOBS = "SELECT count(*) FROM finished_jobs"


@dataclass(frozen=True, slots=True)
class Flush:
    """Flush of Redis: the number of ids in the queue's list before it, and of keys after it."""

    queued: int
    keys_left: int


def run(scenario: Scenario) -> Verdict:
    """Bring about the race, and judge its end."""
    # With its usual depth the list would hold too few ids to lose thousands.
    enqueuer = scenario.leader("enqueuer", "--depth", "0")
    scenario.workers("worker 1", "worker 2")
    with Shop(scenario.database_url) as shop, Redis.from_url(scenario.servers.redis_url) as redis:
        scenario.place(_AT_ONCE)
        scenario.wait("the workers are at work", lambda: scenario.value(_FINISHED, _WORKED))
        scenario.wait("the list is long", lambda: redis.llen(_LIST) >= _LOST_AT_LEAST)
        flush = _flush(redis)
        scenario.record("flushed", queued=flush.queued, keys_left=flush.keys_left)
        scenario.wait("the enqueuer notices", lambda: enqueuer.events("redis_lost"))
        scenario.record("noticed", process=enqueuer.name)
    scenario.wait_until_settled()
    return judge(scenario.connection, flush, shop.committed)


def judge(connection: Connection, flush: Flush, confirmed: Sequence[int] = ()) -> Verdict:
    """Judge the drill by the tables."""
    # Each push of a job has a delivery number of its own.
    deliveries = leader_progress.progress(connection).last_delivery
    again = deliveries - value(connection, _JOBS)
    return Verdict(
        happened=f"{flush.queued:,} queued jobs were forgotten, {again:,} pushed again",
        race=[
            Evidence(
                f"Redis: {_LIST} was long, and after the flush nothing was left",
                f"{flush.queued:,} ids, then {flush.keys_left} keys",
                holds=flush.queued >= _LOST_AT_LEAST and flush.keys_left == 0,
            ),
            Evidence(
                "drain_last_delivery: at least as many jobs were pushed again",
                f"{again:,} of {deliveries:,} deliveries were second ones",
                holds=again >= flush.queued,
            ),
        ],
        survival=invariants.check(connection, confirmed),
    )


def _flush(redis: Redis) -> Flush:
    # In one transaction, so that the counted ids are the lost ones.
    with redis.pipeline(transaction=True) as pipeline:
        pipeline.llen(_LIST)
        pipeline.flushall()
        pipeline.dbsize()
        queued, _, keys_left = pipeline.execute()
    return Flush(queued, keys_left)
