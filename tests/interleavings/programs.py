"""The product's own code as programs: applications, leaders and workers that a gate holds at each statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from itertools import count
from random import Random
from typing import Any

import psycopg
from redis import Redis

from drain import cancel, stage
from drain.database import postgres
from drain.enqueuer import leader
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.redelivery import Redelivery
from drain.enqueuer.ticker import Ticker
from drain.tables import cancellations, changes, claims, dead, finishes, leases, outcomes
from drain.tables.changes import Change
from drain.tables.claims import Claim
from drain.tables.selections import Selection
from drain.wire import Producer
from tests.helpers import NAMESPACE
from tests.interleavings.gate import Actor, Gate
from tests.interleavings.history import Notes

QUEUE = "q"
LIST = f"rq:queue:{QUEUE}"
_STAGE_EARLIER = """
INSERT INTO staged_jobs (job_name, queue, staged_at)
VALUES ('m.f', %(queue)s, now() - make_interval(secs => %(seconds)s)) RETURNING id
"""
ACTS = ("cancel", "cancel", "revive", "withdraw", "move")
# The first one commits the job's writes with its finish.
_ENDS = ("commit", "finish", "retry", "bury")
_ENDS_OF_MANY = ("finish", "finish", "retry", "release")
_WEIGHTS = (3, 2, 3, 2)
_LATER_SECONDS = 3600.0
_ERROR = {"type": "ValueError", "message": "no", "traceback": "Traceback"}

Program = Callable[[Actor], None]
Condition = Callable[[], bool]


@contextmanager
def connected(actor: Actor, name: str = "tests") -> Iterator[postgres.Connection]:
    """Lend the actor's connection; the way there and back is not held."""
    connection: postgres.Connection | None = actor.kept.get("connection")
    if connection is None:
        with actor.freely():
            connection = postgres.connect(actor.gate.database_url(actor.name), name)
        # Otherwise, how many requests it sends depends on those of earlier schedules.
        connection.prepare_threshold = None
        actor.kept["connection"] = connection
    try:
        yield connection
    finally:
        if not connection.broken:
            with actor.freely():
                connection.rollback()
                if name == leader.APPLICATION_NAME:
                    connection.execute("SELECT pg_advisory_unlock_all()")


def redis_of(actor: Actor) -> Redis:
    """Return the actor's connection to Redis."""
    if "redis" not in actor.kept:
        actor.kept["redis"] = Redis.from_url(redis_url(actor))
        with actor.freely():
            actor.kept["redis"].ping()
    redis: Redis = actor.kept["redis"]
    return redis


def redis_url(actor: Actor) -> str:
    """Return the URL of Redis through the gate."""
    return f"unix://{actor.gate.place(actor.name)}/redis"


def application(
    random: Random, *jobs: Mapping[str, Any], turns: bool = False, begin: Condition = lambda: True
) -> Program:
    """Stage jobs with the application's own row, each in a transaction; a few roll back.

    Args:
        jobs: Options of each.
        begin: True once it may begin.
        turns: The rows were staged up to 10 s ago, by a transaction that has been open since.
    """

    def run(actor: Actor) -> None:
        actor.pause(begin)
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
                    connection.execute("INSERT INTO requests VALUES (%s) ON CONFLICT DO NOTHING", (job_id,))
                actor.gate.events += 1

    return run


def operating(random: Random, notes: Notes, times: int = 2, acts: Sequence[str] = ACTS) -> Program:
    """Cancel, revive, withdraw or move committed jobs."""

    def run(actor: Actor) -> None:
        with connected(actor) as connection:
            for _ in range(times):
                # Some wait for a claim, so that they meet it.
                actor.pause(random.choice([notes.has_claims, lambda: True]))
                ids = [job_id for (job_id,) in connection.execute("SELECT id FROM requests ORDER BY id")]
                if not ids:
                    continue
                job_id = random.choice(ids)
                with connection.transaction(force_rollback=random.random() < 0.1):
                    _operate(connection, job_id, random.choice(acts), notes, random)
                actor.gate.events += 1

    return run


def _operate(connection: postgres.Connection, job_id: int, act: str, notes: Notes, random: Random) -> None:
    selection = Selection(ids=(job_id,))
    if act == "cancel":
        unknown = cancel(connection, [job_id]).unknown
        # Another operator may have withdrawn it.
        if unknown and connection.execute("SELECT FROM requests WHERE id = %s", (job_id,)).rowcount:
            notes.problems.append(f"job {job_id}: escaped its cancellation")
    elif act == "revive":
        dead.revive(connection, dead.Selection(ids=(job_id,)))
    elif act == "withdraw":
        if connection.execute("DELETE FROM staged_jobs WHERE id = %s", (job_id,)).rowcount:
            connection.execute("DELETE FROM requests WHERE id = %s", (job_id,))
    else:
        change = Change(None, random.randint(0, 2), None)
        changes.change_staged(connection, selection, change)
        changes.change_inflight(connection, selection, change)


def truncating(random: Random, times: int = 3) -> Program:
    """Truncate partitions of staged jobs, as the leader does with the idle one."""

    def run(actor: Actor) -> None:
        with connected(actor) as connection:
            for _ in range(times):
                partition = f"staged_jobs_ready_{random.randrange(3)}"
                # A snapshot from before the lock is refused.
                connection.isolation_level = random.choice([None, psycopg.IsolationLevel.REPEATABLE_READ])
                with suppress(psycopg.errors.RaiseException), connection.transaction():
                    connection.execute("SELECT 1")
                    connection.execute("SELECT drain_truncate_if_empty(%s::regclass)", (partition,))

    return run


def ticking(times: int = 2) -> Program:
    """Stage the jobs of due ticks, as each leader does; here without its lock."""

    def run(actor: Actor) -> None:
        with connected(actor) as connection:
            for _ in range(times):
                Ticker(connection).run_once()

    return run


def leading(
    may_lead: Condition, rounds: int, batch: int, chore: Callable[[postgres.Connection], object] | None
) -> Program:
    """Lead once the lock is free: take over, drain, redeliver; again as soon as something has happened."""

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
                    seen = actor.gate.events
                    enqueuer.drain()
                    redelivery.run_once()
                    if chore is not None:
                        chore(connection)
                    actor.pause(partial(_has_happened, actor.gate, seen))

    return run


def _has_happened(gate: Gate, seen: int) -> bool:
    return gate.events > seen


def working(
    has_deliveries: Condition,
    notes: Notes,
    random: Random,
    pops: int = 2,
    *,
    name: str = "",
    many: bool = False,
    frees: bool = False,
) -> Program:
    """Pop, claim, and end one job after the other; or many in one statement.

    Args:
        name: Of the process, which several actors may share as its threads.
        frees: The end of a job lets another one begin.
    """
    processes = count(1)

    def run(actor: Actor) -> None:
        worker = name or f"{actor.name}, process {next(processes)}"
        with connected(actor) as connection:
            redis = redis_of(actor)
            for _ in range(pops):
                actor.pause(has_deliveries)
                popped: Any = redis.lpop(LIST, 3 if many else 1) or []
                deliveries = [delivery.decode() for delivery in popped]
                if many and deliveries:
                    _work_on_many(actor, connection, redis, worker, deliveries, notes, random)
                for delivery in [] if many else deliveries:
                    work(connection, worker, delivery, notes, random)
                actor.gate.events += frees

    return run


def work(
    connection: postgres.Connection,
    worker: str,
    delivery: str,
    notes: Notes,
    random: Random | None = None,
    end: str = "commit",
) -> None:
    """Run one delivery as a worker does, to the given end or a random one; or to none, if it dies."""
    job_id, number = _parsed(delivery)
    claim = claims.claim(connection, job_id, worker=worker, limits={}, delivery=number)
    is_new = (worker, job_id) not in notes.claimants and not notes.shares_names
    if claim is None and random and is_new and random.random() < 0.3:
        # As if the answer had been lost; a process asks for no job that it has.
        claim = claims.claim(connection, job_id, worker=worker, limits={}, delivery=number, again=True)
    if claim is None:
        return
    notes.claimed[job_id, claim.fencing_token] = number
    notes.claimants.add((worker, job_id))
    if random:
        (end,) = random.choices(_ENDS, _WEIGHTS)
    if not end:
        return
    end = "bury" if claim.is_spent else end
    if _end(connection, claim, end):
        notes.ended.add((job_id, claim.fencing_token, end in {"commit", "finish"}))
        notes.has_failed |= end == "retry"
    else:
        cancellations.confirm_end(connection, claim)
    if random and random.random() < 0.2:
        # A heartbeat that was under way.
        leases.extend_many(connection, [claim])


def _end(connection: postgres.Connection, claim: Claim, end: str) -> bool:
    if end == "bury":
        return outcomes.bury_claimed(connection, claim, reason="lease", explanation="no")
    if end == "retry":
        return outcomes.retry_later(connection, claim, _LATER_SECONDS, _ERROR)
    if end == "finish":
        with connection.transaction():
            has_ended = finishes.finish(connection, claim)
            if has_ended:
                connection.execute("INSERT INTO effects VALUES (%s)", (claim.id,))
        return has_ended
    connection.execute("BEGIN")
    connection.execute("INSERT INTO effects VALUES (%s)", (claim.id,))
    return finishes.finish_and_commit(connection, claim)


def _work_on_many(
    actor: Actor,
    connection: postgres.Connection,
    redis: Redis,
    worker: str,
    deliveries: Sequence[str],
    notes: Notes,
    random: Random,
) -> None:
    """Run deliveries as a worker does whose jobs have no transaction; the effect stands for the finish's own."""
    given = dict(map(_parsed, deliveries))
    found = claims.claim_many(connection, given, worker=worker, limits={})
    for claim in found:
        notes.claimed[claim.id, claim.fencing_token] = given[claim.id]
        notes.claimants.add((worker, claim.id))
    if found and random.random() < 0.25:
        # They outlast their leases.
        actor.pause(partial(notes.has_later, found))
    ends = {claim.id: random.choices(_ENDS_OF_MANY, _WEIGHTS)[0] for claim in found}
    failed = [claim for claim in found if ends[claim.id] == "retry"]
    released = [claim for claim in found if ends[claim.id] == "release"]
    finished = [claim for claim in found if ends[claim.id] == "finish"]
    ended = _give_back(connection, redis, released) if released else set()
    for claim in failed:
        if outcomes.retry_later(connection, claim, _LATER_SECONDS, _ERROR):
            ended.add(claim.id)
            notes.has_failed = True
    if finished:
        with connection.transaction():
            for job_id in finishes.finish_many(connection, finished):
                connection.execute("INSERT INTO effects VALUES (%s)", (job_id,))
                ended.add(job_id)
    notes.ended.update(
        (claim.id, claim.fencing_token, claim in finished) for claim in found if claim.id in ended
    )
    if found and random.random() < 0.2:
        leases.extend_many(connection, found)
    # Those whose earlier worker died are claimed one by one.
    for delivery in deliveries:
        if _parsed(delivery)[0] not in ends:
            work(connection, worker, delivery, notes, random)


def _give_back(connection: postgres.Connection, redis: Redis, claims_: Sequence[Claim]) -> set[int]:
    released = leases.release(connection, claims_)
    if released:
        redis.lpush(LIST, *(f"{NAMESPACE}-{each.id}-{each.delivery}" for each in released))
    return {each.id for each in released}


def _parsed(delivery: str) -> tuple[int, int]:
    _, job_id, number = delivery.split("-")
    return int(job_id), int(number)
