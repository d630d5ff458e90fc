"""The kinds of jobs. All have a short lease, so that a worker that stands still loses it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from time import sleep, time
from typing import Any, ParamSpec

from sqlalchemy import text
from sqlalchemy.orm import Session

from drain import stage
from drain.database import postgres
from drain.database.postgres import Connection
from drain.jobs.registry import Job
from drain.workers import (
    Dead,
    Defer,
    EventTimeoutError,
    current_job,
    job,
    sleep as nap,
    step_transaction,
    transaction,
    wait_for,
)

LEASE_SECONDS = 2.0
# The kinds that end in dead_jobs, on purpose.
DOOMED = ("doomed", "hopeless")
_EVENT_SECONDS, _EVENTS = 5, 8
STEPS = ("reserve", "charge", "ship")

_EFFECT = text("INSERT INTO effects (job_id, fencing_token) VALUES (:job_id, :token)")
_STEP = text("INSERT INTO stepped (job_id, step, fencing_token) VALUES (:job_id, :step, :token)")
_WANT = text("INSERT INTO wanted (job_id, kind) VALUES (:job_id, :kind)")
_SEND = "INSERT INTO sent (job_id, fencing_token) VALUES (%s, %s)"


P = ParamSpec("P")


def _job(function: Callable[P, None], **options: Any) -> Job[P, None]:
    register = job(
        name=f"soak.{function.__name__}",
        queue="bulk",
        lease_seconds=LEASE_SECONDS,
        timeout_seconds=20,
        max_attempts=0,
        retry_base_seconds=0.2,
        retry_cap_seconds=1.0,
        **options,
    )
    return register(function)


@_job
def settle() -> None:
    """Write in the transaction that finishes the job."""
    with transaction() as session:
        _take_effect(session)


@_job
def stepped() -> None:
    """Write in steps; a later attempt skips those that have committed."""
    for name in STEPS:
        step_transaction(name, _take_step, name)
    with transaction() as session:
        _take_effect(session)


@partial(_job, commit="grouped")
def group() -> None:
    """Settle without waiting for the disk."""
    with transaction() as session:
        _take_effect(session)


@_job
def send(linger: float) -> None:
    """Write elsewhere, which may happen more than once, and take a while to end."""
    this = current_job()
    _elsewhere().execute(_SEND, (this.id, this.fencing_token))
    sleep(linger)


@_job
def flaky(failures: int) -> None:
    """Fail so many times, then succeed."""
    if current_job().attempt <= failures:
        raise RuntimeError("not yet")
    with transaction() as session:
        _take_effect(session)


@_job
def put_off(times: int, seconds: float) -> None:
    """Ask so many times to be run later, then succeed."""
    if current_job().fencing_token <= times:
        raise Defer(seconds)
    with transaction() as session:
        _take_effect(session)


@_job
def slow(before: float, within: float) -> None:
    """Take longer than the lease, before the transaction or within it."""
    sleep(before)
    with transaction() as session:
        _take_effect(session)
        sleep(within)


@_job
def parent() -> None:
    """Stage another job in the transaction that finishes this one."""
    with transaction() as session:
        _take_effect(session)
        session.execute(_WANT, {"job_id": stage(session, settle), "kind": "settle"})


@_job
def follow() -> None:
    """Settle after other jobs, as the edges say."""
    with transaction() as session:
        _take_effect(session)


@_job
def awaited(event: str) -> None:
    """Settle after an event, or without one, and a nap."""
    with suppress(EventTimeoutError):
        if wait_for(event, timeout=3) != event:
            raise Dead("the payload of another event")
    nap(0.1)
    with transaction() as session:
        _take_effect(session)


@_job
def doomed() -> None:
    """Give up at once."""
    raise Dead("on purpose")


@_job
def hopeless() -> None:
    """Fail each time."""
    raise RuntimeError("never")


def options(kind: str, chance: random.Random) -> dict[str, Any]:  # noqa: PLR0911
    """Arguments and options with which a job of this kind is staged."""
    match kind:
        case "flaky":
            return {"args": [chance.randint(1, 2)]}
        case "put_off":
            return {"args": [chance.randint(1, 2), chance.uniform(0.1, 1)]}
        case "send":
            return {"args": [chance.choice([0, 0, 0, 0.3])]}
        case "slow":
            return {"args": [chance.choice([0, 0.5, 2.5]), chance.choice([0, 0.5, 2.5])]}
        case "awaited":
            return {"args": [name_of_event(chance)]}
        case "hopeless":
            return {"max_attempts": 2}
        case _:
            return {}


def name_of_event(chance: random.Random) -> str:
    """One of a few names that are in use for some seconds."""
    return f"{int(time()) // _EVENT_SECONDS}-{chance.randrange(_EVENTS)}"


# By the name of the kind: the job, and how often it is chosen.
KINDS: dict[str, tuple[Job[..., None], float]] = {
    "settle": (settle, 40),
    "stepped": (stepped, 8),
    "group": (group, 10),
    "send": (send, 25),
    "flaky": (flaky, 8),
    "put_off": (put_off, 6),
    "slow": (slow, 5),
    "parent": (parent, 5),
    "follow": (follow, 8),
    "awaited": (awaited, 5),
    "doomed": (doomed, 2),
    "hopeless": (hopeless, 2),
}


def _take_effect(session: Session) -> None:
    this = current_job()
    session.execute(_EFFECT, {"job_id": this.id, "token": this.fencing_token})


def _take_step(session: Session, name: str) -> None:
    this = current_job()
    session.execute(_STEP, {"job_id": this.id, "step": name, "token": this.fencing_token})


def _elsewhere() -> Connection:
    if _connection(os.getpid()).closed:
        _connection.cache_clear()
    return _connection(os.getpid())


@cache
def _connection(_process: int) -> Connection:
    """A connection of the worker's own; a forked child must not share its parent's."""
    return postgres.connect(os.environ["DRAIN_DATABASE_URL"], "elsewhere")
