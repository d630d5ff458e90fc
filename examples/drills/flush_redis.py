"""Redis forgets everything, while thousands of jobs are queued in it and workers are at work."""

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

SUMMARY = "Redis forgets thousands of queued jobs under load"

_AT_ONCE = 2_500
_LOST_AT_LEAST = 1_500
_WORKED = 50
_FINISHED = "SELECT count(*) >= %s FROM finished_jobs"
_LIST = f"rq:queue:{QUEUE}"
_JOBS = "SELECT count(*) FROM finished_jobs"


@dataclass(frozen=True, slots=True)
class Flush:
    """How many ids the queue's list held before it, and how many keys were left behind it."""

    queued: int
    keys_left: int


def run(scenario: Scenario) -> Verdict:
    """Let it happen, and judge."""
    enqueuer = scenario.leader("enqueuer")
    scenario.workers("worker 1", "worker 2")
    with Shop(scenario.database_url) as shop, Redis.from_url(scenario.servers.redis_url) as redis:
        scenario.place(_AT_ONCE)
        scenario.wait("the workers are at work", lambda: scenario.value(_FINISHED, _WORKED))
        scenario.wait("the list is long", lambda: redis.llen(_LIST) >= _LOST_AT_LEAST)
        flush = _flush(redis)
        scenario.tell("flushed", queued=flush.queued, keys_left=flush.keys_left)
        scenario.wait("the enqueuer notices", lambda: enqueuer.events("redis_lost"))
        scenario.tell("noticed", process=enqueuer.name)
    scenario.wait_until_all_is_settled()
    return judge(scenario.connection, flush, shop.committed)


def judge(connection: Connection, flush: Flush, told: Sequence[int] = ()) -> Verdict:
    """What the tables say."""
    # Each push of a job takes a number of its own.
    numbers = leader_progress.progress(connection).last_delivery
    again = numbers - value(connection, _JOBS)
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
                f"{again:,} of {numbers:,} deliveries were second ones",
                holds=again >= flush.queued,
            ),
        ],
        survival=invariants.check(connection, told),
    )


def _flush(redis: Redis) -> Flush:
    # In one transaction: what is counted is what is lost.
    with redis.pipeline(transaction=True) as pipeline:
        pipeline.llen(_LIST)
        pipeline.flushall()
        pipeline.dbsize()
        queued, _, keys_left = pipeline.execute()
    return Flush(queued, keys_left)
