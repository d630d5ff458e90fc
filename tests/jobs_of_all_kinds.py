"""A job of each kind, for tests of what a server is asked while all of them are worked."""

import asyncio
import time

from sqlalchemy import text

from drain.workers import (
    Dead,
    Defer,
    current_job,
    job,
    psycopg_transaction,
    step,
    step_transaction,
    transaction,
)

MODULE = "tests.jobs_of_all_kinds"
# Beyond the patience of any test: only the death of its worker ends the job's first attempt.
FOREVER_SECONDS = 600
SOON = 0.01
LEAVE = "INSERT INTO effects (label, worker) VALUES ('%s', 0)"


@job(queue="mail")
def nothing(number: int) -> None:
    pass


@job(queue="mail")
async def nothing_in_the_loop(number: int) -> None:
    await asyncio.sleep(0)


@job(queue="mail", isolated=True)
def nothing_in_a_child(number: int) -> None:
    pass


@job(queue="orders")
def in_a_session(number: int) -> None:
    with transaction() as session:
        session.execute(text(LEAVE % number))


@job(queue="orders")
def in_a_transaction_of_psycopg(number: int) -> None:
    with psycopg_transaction() as connection:
        connection.execute((LEAVE % number).encode())


@job(queue="orders", retry_base_seconds=SOON, retry_cap_seconds=SOON)
def in_steps(number: int) -> None:
    step_transaction("write", lambda session: session.execute(text(LEAVE % number)) and None)
    if current_job().attempt == 1:
        raise ConnectionError("no answer")
    step("call", lambda: number)


@job(queue="orders", retry_base_seconds=SOON, retry_cap_seconds=SOON)
def fail_once(number: int) -> None:
    if current_job().attempt == 1:
        raise ConnectionError("the target is away")


@job(queue="orders")
def defer_once(number: int) -> None:
    if current_job().fencing_token == 1:
        raise Defer(SOON)


@job(queue="orders")
def give_up(number: int) -> None:
    raise Dead("nobody can do this")


@job(queue="orders", lease_seconds=0.5, heartbeat_seconds=0.05)
def outlive_the_lease(number: int) -> None:
    time.sleep(0.7)


@job(queue="slow", lease_seconds=0.5, heartbeat_seconds=0.1, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def hang_twice(number: int) -> None:
    if current_job().fencing_token <= 2:
        time.sleep(FOREVER_SECONDS)
