"""Transactions of a job that writes through Django's ORM and finishes itself, or records a step.

The finish is the last statement of an outermost `atomic()`, on Django's psycopg connection, and Django commits it with
the ORM's writes. So is the result of a step.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn
from weakref import WeakSet

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from drain.database import postgres
from drain.database.qualified import qualified, within
from drain.errors import DrainError
from drain.failpoints import FailurePoint, failpoint
from drain.tables import finishes, steps
from drain.tables.cancellations import IS_CANCELLED
from drain.tables.fences import of_one
from drain.tables.steps import Step
from drain.workers.context import inherited
from drain.workers.context.current import Attempt, current_attempt
from drain.workers.context.django_connections import abandon, cancel, is_of_a_test
from drain.workers.context.finish_guard import note_heartbeat, nothing_committed, only_one, refusal, too_early
from drain.workers.context.lent_connections import is_lent
from drain.workers.context.step_options import retried, with_options
from drain.workers.context.steps import begun, checked, find
from drain.workers.errors import TransactionError

_INSTALLATION = f"SELECT ({postgres.HOME}), installation FROM drain_state WHERE only_row"

# Connections verified to lead to the jobs' database.
_known: WeakSet[psycopg.Connection[Any]] = WeakSet()


@contextmanager
def transaction(using: str = "default") -> Iterator[Any]:
    """See `drain.contrib.django.transaction`."""
    attempt = current_attempt()
    with only_one(attempt):
        with _atomic(attempt, using) as block:
            yield block.connection
            failpoint(FailurePoint.WRITTEN)
            block.check()
            _finish(block.connection, attempt, block.within)
        # A test's transaction never commits, so on_commit callbacks do not run.
        attempt.finished |= block.is_in_test
        if not attempt.finished:
            raise nothing_committed(attempt)
        failpoint(FailurePoint.FINISHED_AND_COMMITTED)


@with_options
def step_transaction(
    name: str, function: Callable[..., Any], /, *args: Any, using: str = "default", **kwargs: Any
) -> Any:
    """See `drain.contrib.django.step_transaction`."""
    attempt, name = current_attempt(), checked(name)
    if (kept := find(attempt, name, function)) is None:
        with begun(attempt, name, function, using=using) as ran:

            def write() -> Step:
                with _atomic(attempt, using) as block:
                    done = ran(function(*args, **kwargs))
                    block.check()
                    _record(block.connection, attempt, done)
                return done

            kept = retried(attempt, name, function, write)
    return json.loads(kept.result)


class _Block(NamedTuple):
    """Transaction on Django's connection; `within` counts the savepoints around it: 0 except in tests."""

    connection: Any
    within: int
    is_in_test: bool
    guard: _Guard

    def check(self) -> None:
        """Require that the end of the block can commit."""
        self.guard.check()
        if len(self.connection.savepoint_ids) != self.within:
            raise TransactionError(
                "an atomic() is still open within the transaction of the job; all of it is rolled back"
            )
        if self.connection.needs_rollback or self.connection.connection is None:
            raise TransactionError(
                "the transaction of the job was marked to be rolled back, by set_rollback() or by an error within "
                "atomic(savepoint=False), or its connection was closed; all of it is rolled back"
            )


@contextmanager
def _atomic(attempt: Attempt, using: str) -> Iterator[_Block]:
    _refuse_event_loop()
    try:
        from django.db import connections
        from django.db.transaction import atomic
    except ImportError:
        raise DrainError("drain.contrib.django.transaction() needs Django: pip install django") from None

    connection = connections[using]
    is_nested = connection.connection is not None and is_lent(connection.connection.pgconn)
    is_in_test = is_nested or is_of_a_test(connection)
    if is_nested or not is_in_test:
        _check(connection, attempt, is_nested=is_nested)
    blocks = len(connection.atomic_blocks)
    guard = _Guard(connection.connection)
    with inherited.kept_from_children(connection.connection):
        try:
            with atomic(using=using, durable=not is_nested):
                block = _Block(connection, len(connection.savepoint_ids), is_in_test, guard)
                try:
                    with connection.execute_wrapper(guard):
                        yield block
                except BaseException:
                    _prepare_rollback(connection)
                    raise
        finally:
            if len(connection.atomic_blocks) > blocks:
                # Django ended a nested block that was left open.
                abandon(connection)


class _Guard:
    """Detects a transaction that ended within its block, as by a COMMIT."""

    def __init__(self, driver: psycopg.Connection[Any]) -> None:
        self._driver = driver
        self._has_begun = self._has_ended = False

    def __call__(self, execute: Callable[..., Any], *statement: Any) -> Any:
        self._check_status()
        result = execute(*statement)
        self._has_begun = True
        self._check_status()
        return result

    def check(self) -> None:
        inherited.refuse_in_child(self._driver)
        self._check_status()

    def _check_status(self) -> None:
        # psycopg would begin a second transaction, without the earlier writes.
        is_idle = self._driver.pgconn.transaction_status == TransactionStatus.IDLE
        self._has_ended |= self._has_begun and is_idle
        if self._has_ended:
            raise too_early()


def _prepare_rollback(connection: Any) -> None:
    driver = connection.connection
    if driver is None:
        return
    if inherited.is_inherited(driver):
        # Django sends no ROLLBACK on a connection closed within its block.
        connection.close()
    else:
        # A signal may have interrupted a statement.
        cancel(driver)


def _refuse_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise TransactionError(
        "Django's ORM is synchronous: call drain.contrib.django.transaction() in a function that asgiref's "
        "sync_to_async() calls, or make the job a `def`"
    )


def _check(connection: Any, attempt: Attempt, *, is_nested: bool) -> None:
    """Require that Django's commit (in a test: a savepoint's end) can be the finish."""
    alias = connection.alias
    if connection.in_atomic_block and not is_nested:
        raise TransactionError(
            "drain.contrib.django.transaction() must be the outermost block: it stands within an atomic()"
        )
    connection.ensure_connection()
    if connection.vendor != "postgresql":
        raise TransactionError(
            f"Django's database {alias!r} is {connection.display_name}, and the job's is PostgreSQL: name the database "
            "of the jobs by transaction(using=...)"
        )
    driver = connection.connection
    if not isinstance(driver, psycopg.Connection):
        raise TransactionError(
            f"Django's database {alias!r} uses psycopg2: install psycopg 3, and remove psycopg2"
        )
    if not (connection.get_autocommit() or is_nested):
        raise TransactionError(
            f"autocommit is off on Django's database {alias!r}, so the end of the block would commit nothing"
        )
    if driver not in _known or driver.closed:
        _check_installation(connection, attempt)
        _known.add(connection.connection)


def _check_installation(connection: Any, attempt: Attempt) -> None:
    from django.db import OperationalError, ProgrammingError

    try:
        home, found = _row(connection, _INSTALLATION)
    except OperationalError:
        # The session was terminated: reconnect.
        connection.close()
        connection.ensure_connection()
        home, found = _row(connection, _INSTALLATION)
    except ProgrammingError:
        home, found = None, None
    postgres.note_home(connection.connection, home)
    if found != attempt.claim.installation:
        raise TransactionError(
            f"Django's database {connection.alias!r} is not the database of the jobs, DRAIN_DATABASE_URL: name that "
            "one by transaction(using=...), or drain its jobs with separate workers"
        )


def _finish(connection: Any, attempt: Attempt, within: int) -> None:
    """Finish the job in Django's open transaction if its claim is current."""
    # From here on a refused heartbeat may stem from our own finish.
    attempt.lease.ending = True
    statement = finishes.FINISH_WITHOUT_WAIT if attempt.groups_commit else finishes.FINISH_ONCE
    _execute(connection, attempt, statement, finishes.finish_parameters(attempt.claim, attempt.result))
    if within:
        # A test may inspect its transaction's callbacks.
        return

    def note() -> None:
        attempt.finished = True

    # Before the job's own callbacks, which may raise.
    connection.on_commit(note)
    connection.run_on_commit.insert(0, connection.run_on_commit.pop())


def _record(connection: Any, attempt: Attempt, step: Step) -> None:
    _execute(connection, attempt, steps.record(step), steps.record_parameters(attempt.claim, step), step)


def _execute(
    connection: Any,
    attempt: Attempt,
    statement: str,
    parameters: tuple[object, ...],
    step: Step | None = None,
) -> None:
    """Execute a statement that returns true if the claim is current; raise the refusal."""
    try:
        is_current = bool(_row(connection, statement, parameters)[-1])
    except Exception as error:
        if isinstance(error.__cause__, psycopg.errors.SerializationFailure):
            note_heartbeat(error)
        raise
    if not is_current:
        _refuse(connection, attempt, step)


def _refuse(connection: Any, attempt: Attempt, step: Step | None) -> NoReturn:
    claim = of_one(attempt.claim)
    is_finished = step is None and bool(_row(connection, finishes.IS_FINISHED, claim)[-1])
    is_cancelled = not is_finished and bool(_row(connection, IS_CANCELLED, claim)[-1])
    raise refusal(attempt, is_finished=is_finished, is_cancelled=is_cancelled, step=step)


def _row(connection: Any, statement: str, parameters: Any = None) -> tuple[Any, ...]:
    with connection.wrap_database_errors:
        driver = connection.connection
        cursor = psycopg.Cursor(driver, row_factory=tuple_row)
        # The search_path of Django's connection may lack our schema.
        statement = within(postgres.home_of(driver), qualified(statement))
        row = cursor.execute(statement.encode(), parameters).fetchone()
    return row or (None, None)
