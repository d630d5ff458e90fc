"""The test's connection."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn

from drain.errors import HarnessError

_KINDS = "pass a SQLAlchemy Session or Connection, a psycopg connection, asynchronous ones too, or django.db.connection"
_FAILED = (
    "the test's transaction has failed: after an error from PostgreSQL, roll back, at least to a savepoint"
)
_AUTOCOMMIT = (
    "the connection is in autocommit mode without an open transaction, so nothing would be rolled back: "
    "open one, in Django by TestCase or @pytest.mark.django_db without transaction=True"
)
_NOT_BEGUN = "the asynchronous session of the test has no transaction yet: `await session.connection()` first"


@dataclass(frozen=True, slots=True)
class Adopted:
    """Connection of a test.

    Attributes:
        pgconn: In a transaction, or about to begin one.
        source: SQLAlchemy session, flushed before jobs run and expired afterwards, or Django's wrapper.
    """

    pgconn: PGconn
    source: Any = None

    def flush(self) -> None:
        """Flush a synchronous SQLAlchemy session."""
        if hasattr(self.source, "flush") and not hasattr(self.source, "sync_session"):
            self.source.flush()

    async def aflush(self) -> None:
        """Flush a SQLAlchemy session of either kind."""
        if hasattr(self.source, "sync_session"):
            await self.source.flush()
        else:
            self.flush()

    def forget(self) -> None:
        """Expire SQLAlchemy objects, which jobs may have changed."""
        if hasattr(self.source, "expire_all"):
            self.source.expire_all()

    def repair(self) -> None:
        """Let Django continue after a failed job's rollback to a savepoint."""
        if getattr(self.source, "needs_rollback", False) is True:
            self.source.needs_rollback = False


def adopt(connection: Any) -> Adopted:
    """Find the session below a connection that is in a transaction, or begins one automatically.

    Raises:
        HarnessError: No session can be used.
    """
    found = _find(connection)
    if found is None:
        raise HarnessError(f"drain.contrib.testing cannot work on a {type(connection).__name__}; {_KINDS}")
    driver, source = found
    pgconn: PGconn = driver.pgconn
    if pgconn.status != ConnStatus.OK:
        raise HarnessError("the connection of the test is closed, or lost: open it before `staged` is used")
    if pgconn.pipeline_status != PipelineStatus.OFF:
        raise HarnessError("the connection of the test is in pipeline mode: leave it before `staged` is used")
    status = pgconn.transaction_status
    if status == TransactionStatus.IDLE and driver.autocommit:
        raise HarnessError(_AUTOCOMMIT)
    if status == TransactionStatus.INERROR:
        raise HarnessError(_FAILED)
    if status == TransactionStatus.ACTIVE:
        raise HarnessError("a statement is running on the connection of the test: let it end first")
    if status == TransactionStatus.IDLE:
        _begin(driver)
    return Adopted(pgconn, source)


def _begin(driver: Any) -> None:
    """Begin a transaction, which savepoints need."""
    result = driver.pgconn.exec_(driver._get_tx_start_command())
    if result.status != ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result)


def _find(connection: Any) -> tuple[Any, Any] | None:
    if isinstance(connection, psycopg.Cursor | psycopg.AsyncCursor):
        connection = connection.connection
    if isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        return connection, None
    if hasattr(connection, "ensure_connection") and hasattr(connection, "in_atomic_block"):
        return _of_django(connection)
    return _of_sqlalchemy(connection) if "sqlalchemy" in sys.modules else None


def _of_django(wrapper: Any) -> tuple[Any, Any]:
    if wrapper.vendor != "postgresql":
        raise HarnessError(
            f"job-drain is for PostgreSQL, and this connection of Django's is to {wrapper.vendor}"
        )
    wrapper.ensure_connection()
    return _psycopg(wrapper.connection), wrapper


def _of_sqlalchemy(connection: Any) -> tuple[Any, Any] | None:
    import sqlalchemy
    from sqlalchemy.orm import Session, scoped_session

    source = None
    if isinstance(connection, scoped_session):
        connection = connection()
    if hasattr(connection, "sync_session"):
        source, connection = connection, connection.sync_session
        if not connection.in_transaction():
            raise HarnessError(_NOT_BEGUN)
    if isinstance(connection, Session):
        source = source or connection
        connection = _begun(connection.connection)
    if hasattr(connection, "sync_connection"):
        connection = connection.sync_connection
        if connection is None:
            raise HarnessError("the asynchronous connection of the test has not been started: await it first")
    if not isinstance(connection, sqlalchemy.Connection):
        return None
    if connection.closed or connection.invalidated:
        raise HarnessError("the connection of the test is closed: open it before `staged` is used")
    if not connection.in_transaction():
        # SQLAlchemy rolls back only what it knows to have begun.
        _begun(connection.begin)
    return _psycopg(connection.connection.driver_connection), source


def _begun(begin: Any) -> Any:
    import sqlalchemy

    try:
        return begin()
    except sqlalchemy.exc.MissingGreenlet:
        raise HarnessError(_NOT_BEGUN) from None


def _psycopg(driver: Any) -> Any:
    if not isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
        raise HarnessError(
            f"the test's connection is one of {type(driver).__module__.partition('.')[0]}, and drain.contrib.testing "
            "needs psycopg 3 below it: in SQLAlchemy postgresql+psycopg://, in Django psycopg instead of psycopg2"
        )
    return driver


def is_in_loop() -> bool:
    """Return True in an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
