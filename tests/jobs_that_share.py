"""Jobs that share a transaction, and misuse it."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy
from sqlalchemy.orm import Session

import drain
from drain import failpoints
from drain.failpoints import FailurePoint
from drain.tables import finishes
from drain.workers import (
    async_psycopg_transaction,
    current_job,
    job,
    psycopg_transaction,
    sleep,
    step,
    transaction,
)
from drain.workers.context import shared
from drain.workers.context.current import current_attempt
from drain.workers.errors import TransactionError
from drain.workers.process import sharing
from tests.helpers import PATIENCE_SECONDS

MODULE = "tests.jobs_that_share"
SOON = 0.01
TABLES = """
CREATE TABLE written (
    label text, setting text, xid xid8 DEFAULT pg_current_xact_id(), backend integer DEFAULT pg_backend_pid());
CREATE TABLE runs (label text, shared boolean);
CREATE TABLE kept (id integer, UNIQUE (id) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE rows (id integer, number integer);
INSERT INTO rows VALUES (1, 0)
"""
WRITE = (
    "INSERT INTO written (label, setting) VALUES (%s, current_setting('synchronous_commit') || current_user)"
)
WAIT = "SELECT pg_advisory_xact_lock_shared(%s)"
_TWICE = "INSERT INTO kept VALUES (1), (1)"
STEAL = (
    "UPDATE inflight_jobs SET claimed_by = 'thief', fencing_token = fencing_token + 1 "
    "WHERE job_args ->> 0 = %s AND claimed_by <> 'thief'"
)
_OPTIONS: dict[str, Any] = {
    "commit": "shared",
    "max_attempts": 2,
    "retry_base_seconds": SOON,
    "retry_cap_seconds": SOON,
    "timeout_seconds": 5,
    # Longer than a test waits: undone jobs run again under their claims.
    "lease_seconds": 2 * PATIENCE_SECONDS,
}
Connection = psycopg.Connection[Any]
_abandoned: list[Any] = []


@cache
def own_connection() -> Connection:
    """Another connection, which commits each statement."""
    return psycopg.connect(os.environ["DRAIN_DATABASE_URL"], autocommit=True)


def note(label: str) -> None:
    own_connection().execute(
        "INSERT INTO runs VALUES (%s, %s)", [label, current_attempt().shared is not None]
    )


def _is_first() -> bool:
    return current_job().attempt == 1 and current_attempt().shared is not None


def _in_pipeline(connection: Connection) -> None:
    with connection.pipeline():
        connection.execute(WRITE, ["piped"])
        psycopg.ClientCursor(connection).execute("COMMIT")


def _by_factory(connection: Connection) -> None:
    connection.cursor_factory = psycopg.ClientCursor
    connection.execute("COMMIT")


# Ways to end the transaction. The first ones are refused before they are sent.
REFUSED: dict[str, Callable[[Connection], Any]] = {
    "sql": lambda c: c.execute("COMMIT"),
    "bytes": lambda c: c.execute(b" end work"),
    "rollback in sql": lambda c: c.execute("ROLLBACK"),
    "abort": lambda c: c.execute("abort"),
    "prepare": lambda c: c.execute("PREPARE TRANSACTION 'one'"),
    "commit": lambda c: c.commit(),
    "autocommit": lambda c: setattr(c, "autocommit", True),
    "two-phase": lambda c: c.tpc_begin("one"),
    "isolation": lambda c: setattr(c, "isolation_level", psycopg.IsolationLevel.SERIALIZABLE),
    "with": lambda c: c.__exit__(None, None, None),
}
ENDING: dict[str, Callable[[Connection], Any]] = {
    "comment": lambda c: c.execute("/* now */ COMMIT"),
    "two statements": lambda c: c.execute("SELECT 1; COMMIT"),
    "two statements and more": lambda c: c.execute("SELECT 1; COMMIT; BEGIN; SELECT 1"),
    "client cursor": lambda c: psycopg.ClientCursor(c).execute("COMMIT"),
    "own cursor": lambda c: psycopg.Cursor(c).execute("COMMIT"),
    "raw cursor": lambda c: psycopg.RawCursor(c).execute("COMMIT AND CHAIN"),
    "factory": _by_factory,
    "libpq": lambda c: c.pgconn.exec_(b"COMMIT"),
    "libpq, begin": lambda c: c.pgconn.exec_(b"COMMIT; BEGIN"),
    "libpq, again": lambda c: (
        c.pgconn.exec_(b"COMMIT"),
        c.pgconn.exec_(b"BEGIN"),
        c.pgconn.exec_(b"COMMIT"),
    ),
    "libpq, rollback": lambda c: c.pgconn.exec_(b"ROLLBACK"),
    "libpq, new": lambda c: (c.pgconn.exec_(b"ROLLBACK"), c.pgconn.exec_(b"BEGIN")),
    "prepared": lambda c: c.pgconn.exec_(b"PREPARE TRANSACTION 'one'"),
    "base class": psycopg.Connection.commit,
    "base rollback": psycopg.Connection.rollback,
    "pipeline": _in_pipeline,
    "close": lambda c: c.close(),
}
SETTINGS = {
    "set": "SET synchronous_commit = off",
    "local": "SET LOCAL synchronous_commit = off",
    "role": "SET ROLE pg_monitor",
    "path": "SET search_path = nowhere",
}


def _write(connection: Connection, label: str) -> None:
    connection.execute(WRITE, [label])


def _end(connection: Connection, label: str) -> None:
    """End the transaction after a write, in the first attempt."""
    if _is_first():
        (REFUSED | ENDING)[label](connection)


def _kill(_connection: Connection, _label: str) -> None:
    if _is_first():
        os.kill(os.getpid(), signal.SIGKILL)


def _fail(connection: Connection, label: str) -> None:
    if current_job().attempt == 1:
        raise ValueError(label)


def _break(connection: Connection, _label: str) -> None:
    if current_job().attempt == 1:
        connection.execute("SELECT 1 / 0")


def _deadlock(_connection: Connection, label: str) -> None:
    if _is_first():
        error = psycopg.errors.DeadlockDetected("deadlock detected")
        if label == "wrapped":
            raise ValueError(label) from error
        if label == "dead":
            raise drain.Dead(label) from error
        raise error


def _leave_cursor(connection: Connection, _label: str) -> None:
    """Of the same name in each job."""
    connection.execute("DECLARE mine CURSOR FOR SELECT 1")


def _savepoints(connection: Connection, label: str) -> None:
    try:
        with connection.transaction():
            connection.execute(WRITE, [f"inner {label}"])
            raise KeyError
    except KeyError:
        pass
    connection.execute("SAVEPOINT mine")
    connection.execute(WRITE, [f"mine {label}"])
    connection.execute("ROLLBACK TO mine")


def _rollback(connection: Connection, label: str) -> None:
    connection.rollback()
    connection.execute(WRITE, [f"after {label}"])


def _undo_role(connection: Connection, label: str) -> None:
    connection.execute("SET ROLE pg_read_all_data")
    _rollback(connection, label)


def _copy(connection: Connection, label: str) -> None:
    with connection.cursor().copy("COPY written (label) FROM STDIN") as copy:
        copy.write_row([f"copied {label}"])


def _steal(_connection: Connection, label: str) -> None:
    own_connection().execute(STEAL, [label])


def _cancel(_connection: Connection, label: str) -> None:
    rows = (
        own_connection().execute("SELECT id FROM inflight_jobs WHERE job_args ->> 0 = %s", [label]).fetchall()
    )
    for (job_id,) in rows:
        drain.cancel(own_connection(), job_id)


def _retry_refused(connection: Connection, label: str) -> None:
    """Copy by the cursor whose COMMIT was refused."""
    cursor = connection.cursor()
    if _is_first():
        with suppress(TransactionError):
            cursor.execute("COMMIT")
    with cursor.copy("COPY written (label) FROM STDIN") as copy:
        copy.write_row([f"copied {label}"])
    _fail(connection, label)


def _lock(connection: Connection, _label: str) -> None:
    connection.execute("UPDATE rows SET number = number + 1")


def _wait(_connection: Connection, _label: str) -> None:
    own_connection().execute("UPDATE rows SET number = number + 10")


def _hang(connection: Connection, _label: str) -> None:
    if current_job().attempt == 1:
        connection.execute("SELECT pg_sleep(60)")


def _die(_connection: Connection, label: str) -> None:
    """In a shared transaction, or only in an own one."""
    if (current_attempt().shared is not None) is (label == "shared"):
        raise drain.Dead(label)


ACTIONS: dict[str, Callable[[Connection, str], Any]] = {
    "write": lambda _connection, _label: None,
    "end": _end,
    "kill": _kill,
    "fail": _fail,
    "break": _break,
    "deadlock": _deadlock,
    "cursor": _leave_cursor,
    "savepoints": _savepoints,
    "rollback": _rollback,
    "undo role": _undo_role,
    "copy": _copy,
    "set": lambda connection, label: connection.execute(SETTINGS[label].encode()),
    "twice": lambda connection, _label: connection.execute(_TWICE),
    "refused": _retry_refused,
    "steal": _steal,
    "cancel": _cancel,
    "lock": _lock,
    "wait": _wait,
    "hang": _hang,
    "stage": lambda connection, label: drain.stage(connection, f"{MODULE}.act", [f"write:staged {label}"]),
    "step": lambda _connection, _label: None,
    "nap": lambda _connection, _label: time.sleep(0.005),
    "slow": lambda _connection, _label: time.sleep(0.03),
    "hold": lambda connection, label: connection.execute(WAIT, [int(label)]),
    "die": _die,
}


async def _write_in_loop() -> None:
    async with async_psycopg_transaction() as connection:
        await connection.execute(WRITE, ["async"])


@job(**_OPTIONS)
def act(what: str) -> None:
    """Write, and do what the first word says."""
    action, _, label = what.partition(":")
    note(what)
    if action == "step":
        step("one", lambda: 1)
    if action == "sleep":
        sleep(0.01)
    if action == "async":
        asyncio.run(_write_in_loop())
    if action == "return":
        return
    if action == "abandon":
        block = psycopg_transaction()
        _abandoned.append(block)
        block.__enter__().execute(WRITE, [what])
        return
    with psycopg_transaction() as connection:
        if action != "refused":
            _write(connection, what)
        ACTIONS[action](connection, label)
    if action == "after":
        raise ValueError(label)
    if action == "linger":
        own_connection().execute(WAIT, [int(label)])


ACTIONS["after"] = ACTIONS["linger"] = ACTIONS["write"]


def _swallow(session: Session) -> None:
    with suppress(sqlalchemy.exc.DBAPIError):
        session.execute(sqlalchemy.text("SELECT 1 / 0"))


def _listen(session: Session) -> None:
    def fail(*_event: Any) -> None:
        raise KeyError

    sqlalchemy.event.listen(session.connection(), "before_cursor_execute", fail)


def _raise_after_commit(session: Session) -> None:
    def fail(_session: Session) -> None:
        raise KeyError

    sqlalchemy.event.listen(session, "after_commit", fail)


# What a job may leave in SQLAlchemy's connection.
LEFT: dict[str, Callable[[Session], Any]] = {
    "error": _swallow,
    "listener": _listen,
    "options": lambda session: session.connection().execution_options(stream_results=True),
    "commit": lambda session: session.connection().commit(),
    "detached": lambda session: session.connection().detach(),
    "after commit": _raise_after_commit,
}


@job(**_OPTIONS)
def act_by_session(what: str) -> None:
    """The same, by SQLAlchemy."""
    action, _, label = what.partition(":")
    note(what)
    with transaction() as session:
        connection: Any = session.connection().connection.driver_connection
        session.execute(
            sqlalchemy.text(WRITE.replace("%s", ":label")),
            {"label": what},
        )
        if action == "end" and _is_first() and label == "session":
            session.execute(sqlalchemy.text("COMMIT"))
        elif action == "undo":
            session.rollback()
            session.execute(sqlalchemy.text(WRITE.replace("%s", ":label")), {"label": f"after {label}"})
        elif action == "nested":
            with session.begin_nested() as nested:
                session.execute(sqlalchemy.text(WRITE.replace("%s", ":label")), {"label": f"inner {label}"})
                nested.rollback()
        elif action == "pass":
            raise ValueError(label)
        elif action == "leave":
            if _is_first():
                LEFT[label](session)
        else:
            ACTIONS[action](connection, label)


@job(**_OPTIONS, result="keep")
def answer(number: int) -> int:
    with psycopg_transaction() as connection:
        connection.execute(WRITE, [f"answer {number}"])
        if number % 2:
            current_job().set_result(number)
    return -number


def _kill_once(point: FailurePoint, path: Path) -> None:
    def kill(reached: FailurePoint) -> None:
        if reached is point and not path.exists() and has_shared():
            path.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.set_hook(kill)


def has_shared() -> bool:
    row = own_connection().execute("SELECT count(*) FROM runs WHERE shared").fetchone()
    return row is not None and row[0] > 5


def _lose_answer(*, commits: bool) -> None:
    commit = finishes.finish_all_and_commit
    lost: list[bool] = []

    def commit_and_lose(connection: Any, claims: Any, results: Any) -> None:
        if lost or len(claims) < 5:
            commit(connection, claims, results)
            return
        lost.append(True)
        if commits:
            commit(connection, claims, results)
        connection.close()
        raise psycopg.OperationalError("the connection is lost")

    finishes.finish_all_and_commit = commit_and_lose


# In worker processes of the tests, which may be slow.
if "LONG_SECONDS" in os.environ:
    sharing._LONG_SECONDS = float(os.environ["LONG_SECONDS"])
if "SHARE_FOR_SECONDS" in os.environ:
    sharing._LONG_SECONDS = sharing._LONGEST_SECONDS = float(os.environ["SHARE_FOR_SECONDS"])
if "IDLE" in os.environ:
    shared._IDLE = os.environ["IDLE"]
if "KILL_AT" in os.environ:
    _kill_once(FailurePoint[os.environ["KILL_AT"]], Path(os.environ["KILLED"]))
if "LOSE_ANSWER" in os.environ:
    _lose_answer(commits=os.environ["LOSE_ANSWER"] == "after")
