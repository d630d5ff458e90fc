"""Jobs that rehearsals of the tests run, each of which would leave an effect if it were not rolled back."""

import os
import signal
import time

import psycopg
from sqlalchemy import text

from drain import (
    Dead,
    Defer,
    async_psycopg_step_transaction,
    async_psycopg_transaction,
    async_transaction,
    current_job,
    job,
    psycopg_transaction,
    stage,
    step,
    step_transaction,
    transaction,
)

MODULE = "tests.jobs_to_rehearse"
INSERT = "INSERT INTO effects (label) VALUES ('{}')"
FOREVER_SECONDS = 600


@job(name="r.session", result="keep")
def in_session(label: str) -> str:
    with transaction() as session:
        session.execute(text(INSERT.format(label)))
        session.execute(text("UPDATE effects SET label = label || '!'"))
        stage(session, "r.other", [label])
        current_job().set_result(label.upper())
    return label


@job(name="r.psycopg")
def in_psycopg(label: str) -> None:
    with psycopg_transaction() as connection:
        connection.execute(INSERT.format(label))


@job(name="r.async")
async def in_async(label: str) -> None:
    async with async_psycopg_transaction() as connection:
        await connection.execute(INSERT.format(label))


@job(name="r.async_session")
async def in_async_session(label: str) -> None:
    async with async_transaction() as session:
        await session.execute(text(INSERT.format(label)))


@job(name="r.steps", result="keep")
def in_steps(label: str) -> list[str]:
    step_transaction("write", lambda session: session.execute(text(INSERT.format(label))) and None)
    return [step("charge", lambda: label), step("ship", lambda: label)]


@job(name="r.async_steps")
async def in_async_steps(label: str) -> None:
    async def write(connection: psycopg.AsyncConnection[object]) -> None:
        await connection.execute(INSERT.format(label).encode())

    await async_psycopg_step_transaction("write", write)


@job(name="r.raises")
def raises(label: str) -> None:
    with transaction() as session:
        session.execute(text(INSERT.format(label)))
        raise ValueError(f"no {label}")


@job(name="r.dead")
def gives_up(label: str) -> None:
    raise Dead(label)


@job(name="r.defers")
def defers(label: str) -> None:
    raise Defer(60)


@job(name="r.commits")
def commits(label: str) -> None:
    """Commit by SQL of its own, whatever the server says, and write again behind that."""
    with psycopg_transaction() as connection:
        connection.execute(INSERT.format(label))
        for statement in (label, INSERT.format("behind"), "COMMIT"):
            try:
                connection.execute(statement)
            except psycopg.Error:
                if connection.info.transaction_status.name == "INERROR":
                    connection.execute("ROLLBACK")


@job(name="r.chains")
def chains(label: str) -> None:
    with psycopg_transaction() as connection:
        connection.execute(label.encode())
        connection.execute(INSERT.format(label))
        connection.execute("COMMIT")


@job(name="r.chains_async")
async def chains_async(label: str) -> None:
    async with async_transaction() as session:
        await session.execute(text(label))
        await session.execute(text(INSERT.format(label)))
        await session.execute(text("COMMIT"))


@job(name="r.elsewhere")
def elsewhere(label: str) -> None:
    with psycopg.connect(os.environ["TESTS_DATABASE_URL"]) as connection:
        connection.execute(INSERT.format(label))


@job(name="r.deferred_constraint")
def breaks_a_deferred_constraint(label: str) -> None:
    with psycopg_transaction() as connection:
        connection.execute("INSERT INTO pairs VALUES (1), (1)")


@job(name="r.locks")
def takes_a_lock(label: str) -> None:
    with psycopg_transaction() as connection:
        connection.execute("SELECT pg_advisory_lock(42)")


@job(name="r.sleeps", timeout_seconds=60)
def sleeps(label: str) -> None:
    time.sleep(FOREVER_SECONDS)


@job(name="r.dies")
def dies(label: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@job(name="r.prints")
def prints(label: str) -> None:
    print("a job's own words")  # noqa: T201  (that is what it is for)
