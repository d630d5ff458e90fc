"""The product's own code as programs: applications, leaders and workers that a gate holds at each statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from random import Random
from typing import Any

from redis import Redis

from drain import cancel, stage
from drain.database import postgres
from drain.enqueuer import leader
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.housekeeping import ReturnedJobs
from drain.enqueuer.redelivery import Redelivery
from drain.enqueuer.ticker import Ticker
from drain.tables import changes, claims, finishes, outcomes
from drain.tables.changes import Change
from drain.tables.selections import Selection
from drain.wire import Producer
from tests.helpers import NAMESPACE
from tests.interleavings.gate import Actor
from tests.interleavings.history import Notes

QUEUE = "q"
LIST = f"rq:queue:{QUEUE}"
_STAGE_EARLIER = """
INSERT INTO staged_jobs (job_name, queue, staged_at)
VALUES ('m.f', %(queue)s, now() - make_interval(secs => %(seconds)s)) RETURNING id
"""
_ERROR = {"type": "ValueError", "message": "no", "traceback": "Traceback"}

Program = Callable[[Actor], None]
Condition = Callable[[], bool]


@contextmanager
def connected(actor: Actor, name: str = "tests") -> Iterator[postgres.Connection]:
    """Lend the actor's connection; the way there and back is not held."""
    with actor.freely():
        connection: postgres.Connection = actor.kept.get("connection") or postgres.connect(
            actor.gate.database_url(actor.name), name
        )
        # Otherwise, how many requests it sends depends on those of earlier schedules.
        connection.prepare_threshold = None
        actor.kept["connection"] = connection
    try:
        yield connection
    finally:
        if not connection.broken:
            with actor.freely():
                connection.rollback()
                connection.execute("SELECT pg_advisory_unlock_all()")


def redis_of(actor: Actor) -> Redis:
    """Return the actor's connection to Redis."""
    redis: Redis = actor.kept.setdefault("redis", Redis.from_url(redis_url(actor)))
    with actor.freely():
        redis.ping()
    return redis


def redis_url(actor: Actor) -> str:
    """Return the URL of Redis through the gate."""
    return f"unix://{actor.gate.place(actor.name)}/redis"


def application(random: Random, *jobs: Mapping[str, Any], turns: bool = False) -> Program:
    """Stage jobs with the application's own row, each in a transaction; a few roll back.

    Args:
        jobs: Options of each.
        turns: The rows were staged up to 10 s ago, by a transaction that has been open since.
    """

    def run(actor: Actor) -> None:
        with connected(actor) as connection:
            for options in jobs:
                with connection.transaction(force_rollback=random.random() < 0.1):
                    if turns:
                        seconds = random.choice([0, 5, 10])
                        ((job_id,),) = connection.execute(
                            _STAGE_EARLIER, {"queue": QUEUE, "seconds": seconds}
                        )
                    else:
                        job_id = stage(
                            connection, "m.f", queue=QUEUE, priority=random.randint(0, 1), **options
                        )
                    connection.execute("INSERT INTO requests VALUES (%s)", (job_id,))

    return run


def operating(random: Random, times: int = 2) -> Program:
    """Cancel, withdraw or move committed jobs."""

    def run(actor: Actor) -> None:
        with connected(actor) as connection:
            for _ in range(times):
                ids = [job_id for (job_id,) in connection.execute("SELECT id FROM requests ORDER BY id")]
                if not ids:
                    actor.pause()
                    continue
                job_id = random.choice(ids)
                act = random.choice(["cancel", "cancel", "withdraw", "move"])
                with connection.transaction(force_rollback=random.random() < 0.1):
                    if act == "cancel":
                        cancel(connection, [job_id])
                    elif act == "withdraw":
                        if connection.execute("DELETE FROM staged_jobs WHERE id = %s", (job_id,)).rowcount:
                            connection.execute("DELETE FROM requests WHERE id = %s", (job_id,))
                    else:
                        selection, change = Selection(ids=(job_id,)), Change(None, random.randint(0, 2), None)
                        changes.change_staged(connection, selection, change)
                        changes.change_inflight(connection, selection, change)

    return run


def truncating(random: Random, times: int = 3) -> Program:
    """Truncate partitions of staged jobs, as the leader does with the idle one."""

    def run(actor: Actor) -> None:
        with connected(actor) as connection:
            for _ in range(times):
                partition = f"staged_jobs_ready_{random.randrange(3)}"
                connection.execute("SELECT drain_truncate_if_empty(%s::regclass)", (partition,))

    return run


def ticking(times: int = 2) -> Program:
    """Stage the jobs of due ticks, as each leader does; here without its lock."""

    def run(actor: Actor) -> None:
        with connected(actor) as connection:
            for _ in range(times):
                Ticker(connection).run_once()

    return run


def leading(may_lead: Condition, rounds: int = 2, batch: int = 2) -> Program:
    """Lead once the lock is free: take over, drain, redeliver."""

    def run(actor: Actor) -> None:
        with connected(actor, leader.APPLICATION_NAME) as connection:
            while (state := leader.try_to_lead(connection)) is None:
                actor.pause(may_lead)
            with (
                closing(Producer(redis_url(actor), NAMESPACE)) as producer,
                Enqueuer(connection, producer, state, batch_size=batch) as enqueuer,
            ):
                redelivery = Redelivery(enqueuer, lost_after_seconds=0)
                redelivery.recover()
                for _ in range(rounds):
                    enqueuer.drain()
                    redelivery.run_once()
                    ReturnedJobs(connection).run_once()

    return run


def working(
    has_deliveries: Condition,
    notes: Notes,
    random: Random,
    pops: int = 3,
    *,
    name: str = "",
    fails: float = 0.2,
    many: bool = False,
) -> Program:
    """Pop, claim, and finish or fail, one job in its own transaction; or many, whose finishes are one statement.

    Args:
        name: Of the process, which several actors may share as its threads.
    """

    def run(actor: Actor) -> None:
        worker = name or actor.name
        with connected(actor) as connection:
            redis = redis_of(actor)
            for _ in range(pops):
                actor.pause(has_deliveries)
                popped: Any = redis.lpop(LIST, 3 if many else 1) or []
                deliveries = [delivery.decode() for delivery in popped]
                if many and deliveries:
                    _work_on_many(connection, worker, deliveries, notes)
                for delivery in [] if many else deliveries:
                    work(connection, worker, delivery, notes, is_failing=random.random() < fails)

    return run


def work(
    connection: postgres.Connection,
    worker: str,
    delivery: str,
    notes: Notes,
    *,
    is_failing: bool = False,
) -> None:
    """Run one delivery as a worker does."""
    job_id, number = _parsed(delivery)
    claim = claims.claim(connection, job_id, worker=worker, limits={}, delivery=number)
    if claim is None:
        return
    notes.claimed[job_id, claim.fencing_token] = number
    if claim.is_spent:
        has_ended = outcomes.bury_claimed(connection, claim, reason="lease", explanation="no")
    elif is_failing:
        has_ended = outcomes.retry_later(connection, claim, 0, _ERROR)
    else:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO effects VALUES (%s)", (claim.id,))
        has_ended = finishes.finish_and_commit(connection, claim)
    if has_ended:
        notes.ended.add((job_id, claim.fencing_token))


def _work_on_many(
    connection: postgres.Connection, worker: str, deliveries: Sequence[str], notes: Notes
) -> None:
    """Run deliveries as a worker does whose jobs have no transaction; the effect stands for the finish's own."""
    given = dict(map(_parsed, deliveries))
    found = claims.claim_many(connection, given, worker=worker, limits={})
    for claim in found:
        notes.claimed[claim.id, claim.fencing_token] = given[claim.id]
    if found:
        with connection.transaction():
            finished = finishes.finish_many(connection, found)
            for job_id in finished:
                connection.execute("INSERT INTO effects VALUES (%s)", (job_id,))
        notes.ended.update((claim.id, claim.fencing_token) for claim in found if claim.id in finished)


def _parsed(delivery: str) -> tuple[int, int]:
    _, job_id, number = delivery.split("-")
    return int(job_id), int(number)
