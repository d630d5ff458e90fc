"""Jobs whose workers are killed in the middle, and the effects that tell how often each was done."""

import os
import time

import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession

from drain import workers
from drain.workers import job

MODULE = "tests.jobs_that_crash"
# Short, so that the next worker need not wait long for a dead one's jobs.
LEASE_SECONDS = 0.5

LEAVE = sqlalchemy.text("INSERT INTO effects (label, worker) VALUES (:label, :worker)")


@job(lease_seconds=LEASE_SECONDS, max_attempts=5)
def settle(label: object) -> None:
    """Leave the effect in the transaction of the finish: once, or not at all."""
    with workers.transaction() as session:
        session.execute(LEAVE, _effect(label))


@job(lease_seconds=LEASE_SECONDS, max_attempts=5)
async def settle_async(label: object) -> None:
    async with workers.async_transaction() as session:
        await session.execute(LEAVE, _effect(label))


@job(lease_seconds=LEASE_SECONDS, max_attempts=5)
async def settle_async_by_psycopg(label: object) -> None:
    async with workers.async_psycopg_transaction() as connection:
        await connection.execute("INSERT INTO effects (label, worker) VALUES (%s, %s)", (label, os.getpid()))


@job(lease_seconds=LEASE_SECONDS, max_attempts=5)
def settle_in_steps(label: object) -> None:
    """Leave the effect in a step, which is skipped once it has committed."""
    workers.step_transaction("settle", lambda session: session.execute(LEAVE, _effect(label)) and None)
    workers.step("done", lambda: None)


@job(lease_seconds=LEASE_SECONDS, max_attempts=5)
async def settle_in_async_steps(label: object) -> None:
    async def leave(session: AsyncSession) -> None:
        await session.execute(LEAVE, _effect(label))

    await workers.async_step_transaction("settle", leave)


@job(lease_seconds=LEASE_SECONDS, max_attempts=5)
def settle_after_a_wait(label: object) -> None:
    workers.sleep(0.01)
    settle.function(label)


def _effect(label: object) -> dict[str, object]:
    return {"label": label, "worker": os.getpid()}


@job(lease_seconds=LEASE_SECONDS, max_attempts=5)
def settle_by_django(label: object) -> None:
    from tests.blocks import use_django_at
    from tests.jobs_of_django import finish

    use_django_at(os.environ["DRAIN_DATABASE_URL"])
    finish.function(str(label))


@job(lease_seconds=LEASE_SECONDS, max_attempts=5)
def act(label: object) -> None:
    """Leave the effect at once, whatever becomes of the attempt."""
    with psycopg.connect(os.environ["DRAIN_DATABASE_URL"], autocommit=True) as connection:
        connection.execute("INSERT INTO effects (label, worker) VALUES (%s, %s)", (label, os.getpid()))


@job(lease_seconds=LEASE_SECONDS, max_attempts=5)
def outlive_the_first_lease(label: object) -> None:
    """On the first attempt, run until the lease has been extended."""
    current = workers.current_job()
    first = current.lease_expires_at
    deadline = time.monotonic() + 30
    while current.attempt == 1 and current.lease_expires_at == first:
        if time.monotonic() > deadline:
            raise TimeoutError("nobody extends the lease")
        time.sleep(0.01)
    settle(label)


@job(lease_seconds=LEASE_SECONDS, max_attempts=5)
def lose_the_first_lease(label: object) -> None:
    """On the first attempt, come back when somebody else has claimed the job."""
    current = workers.current_job()
    if current.attempt == 1:
        with psycopg.connect(os.environ["DRAIN_DATABASE_URL"], autocommit=True) as connection:
            connection.execute(
                "UPDATE inflight_jobs SET fencing_token = fencing_token + 1, lease_expires_at = now() WHERE id = %s",
                (current.id,),
            )
    settle(label)
