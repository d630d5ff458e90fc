"""Jobs that worker processes of the tests import through DRAIN_JOBS, and the effects they leave behind."""

import asyncio
import json
import os
import signal
import sys
import time
from datetime import timedelta

import psycopg

from drain.workers import current_job, job, transaction

MODULE = "tests.jobs_for_tests"
# Far beyond the patience of any test: only a worker that dies or is interrupted leaves the job earlier.
FOREVER_SECONDS = 600
SOON = 0.01
AN_HOUR = 3600

EFFECTS = "CREATE TABLE effects (id bigint GENERATED ALWAYS AS IDENTITY, label text, worker integer)"
_LEAVE = "INSERT INTO effects (label, worker) VALUES (%s, %s)"
_OF_LABEL = "SELECT FROM effects WHERE label = %s"


class UnprintableError(Exception):
    """Raises when somebody wants to see its text."""

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


@job(max_attempts=3, timeout_seconds=60)
def record(label: str) -> None:
    _leave(label)


@job(max_attempts=1)
def record_time(label: str) -> None:
    """Leave the time that this process takes it to be, in seconds since 1970."""
    _leave(f"{label} {time.time()}")


@job(max_attempts=3)
def record_in_transaction(label: str) -> None:
    # Here: each process that `rq worker` forks imports this module, and SQLAlchemy takes longer than all the rest.
    from sqlalchemy import text

    with transaction() as session:
        session.execute(
            text("INSERT INTO effects (label, worker) VALUES (:label, :worker)"),
            {"label": label, "worker": os.getpid()},
        )


@job(max_attempts=2, retry_base_seconds=AN_HOUR, retry_cap_seconds=AN_HOUR)
def fail_for_an_hour(label: str) -> None:
    _leave(label)
    raise ValueError("not within the next hour")


def leave_unregistered(label: str) -> None:
    """For forward mode, in which RQ calls any function that it can import."""
    _leave(label)


@job(max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def fail_times(label: str, times: int) -> None:
    """Fail for the first `times` attempts, counted over the whole life of the job."""
    if _leave(label) <= times:
        raise ValueError(f"not yet, says {label}")


@job(max_attempts=1)
def exit_the_process(code: int) -> None:
    sys.exit(code)


@job(max_attempts=1)
def raise_text(text: str, repeated: int = 1) -> None:
    """Raise a text that is given as JSON, since jsonb itself takes neither NUL nor lone surrogates."""
    raise ValueError(json.loads(text) * repeated)


@job(max_attempts=1)
def raise_unprintable() -> None:
    raise UnprintableError


@job(max_attempts=1)
def raise_cancelled() -> None:
    raise asyncio.CancelledError("somebody cancelled the task")


@job(max_attempts=1)
def sleep(label: str) -> None:
    _leave(label)
    time.sleep(FOREVER_SECONDS)


@job(max_attempts=3)
def hang_once(label: str) -> None:
    """The first attempt never returns; the next one does at once."""
    if _leave(label) == 1:
        time.sleep(FOREVER_SECONDS)


@job(max_attempts=3)
def kill_the_process_once(label: str) -> None:
    if _leave(label) == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@job(max_attempts=2, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def kill_the_process(label: str) -> None:
    """As the system does to what takes too much memory."""
    _leave(label)
    os.kill(os.getpid(), signal.SIGKILL)


@job(max_attempts=2, lease_seconds=0.5)
def kill_the_machine(label: str) -> None:
    """Its processes, all at once: nobody is left who could tell of it."""
    _leave(label)
    os.killpg(0, signal.SIGKILL)


@job(max_attempts=1, lease_seconds=2.0, heartbeat_seconds=0.25)
def outlive_the_lease(label: str) -> None:
    """Return once the database's clock is far beyond the lease that the claim began with, if it still holds."""
    held = "SELECT FROM inflight_jobs WHERE id = %s AND lease_expires_at > clock_timestamp()"
    over = current_job().lease_expires_at + timedelta(seconds=1)
    deadline = time.monotonic() + 30
    with _connection() as connection:
        while not connection.execute("SELECT WHERE clock_timestamp() > %s", [over]).rowcount:
            if time.monotonic() > deadline:
                raise TimeoutError("the clock stands still")
            time.sleep(0.01)
        if not connection.execute(held, [current_job().id]).rowcount:
            raise TimeoutError("the lease is over")
    _leave(label)


@job(max_attempts=3, lease_seconds=1.0, heartbeat_seconds=0.05)
def sleep_on_a_short_lease(label: str) -> None:
    _leave(label)
    time.sleep(FOREVER_SECONDS)


@job(max_attempts=1)
def return_what_nobody_can_pickle(label: str) -> object:
    _leave(label)
    return lambda: None


@job(max_attempts=3)
def wait_for_go(label: str) -> None:
    """Return once a test has left the effect "go"."""
    _leave(label)
    _wait_for("go")


@job(max_attempts=0, retry_base_seconds=SOON, retry_cap_seconds=SOON)
def fail_until_go(number: int) -> None:
    if not _count("go"):
        raise ConnectionError(f"the target of {number} is away")


@job(queue="orders", max_attempts=3)
def ship(order_id: int) -> None:
    """Leave an effect that tells whether the order could be seen as the job ran."""
    with _connection() as connection:
        seen = connection.execute("SELECT FROM orders WHERE id = %s", [order_id]).rowcount
        connection.execute(_LEAVE, [f"{order_id} {'seen' if seen else 'unseen'}", os.getpid()])


def create_effects(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(EFFECTS)


def effects(database_url: str) -> list[str]:
    """Labels in the order in which jobs left them."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        return [label for (label,) in connection.execute("SELECT label FROM effects ORDER BY id")]


def leave_effect(database_url: str, label: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(_LEAVE, [label, os.getpid()])


def _wait_for(word: str) -> None:
    """Return once a test has left this effect."""
    deadline = time.monotonic() + 30
    # In most tests, a connection per poll would cost more processor time than everything else.
    with _connection() as connection:
        while not connection.execute(_OF_LABEL, [word]).rowcount:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no effect {word!r} after 30 s")
            time.sleep(0.01)


def _leave(label: str) -> int:
    """Leave an effect; returns how many this label has by now."""
    with _connection() as connection:
        connection.execute(_LEAVE, [label, os.getpid()])
        return connection.execute(_OF_LABEL, [label]).rowcount


def _count(label: str) -> int:
    with _connection() as connection:
        return connection.execute(_OF_LABEL, [label]).rowcount


def _connection() -> psycopg.Connection:
    return psycopg.connect(os.environ["DRAIN_DATABASE_URL"], autocommit=True, prepare_threshold=None)
