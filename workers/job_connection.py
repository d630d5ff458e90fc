"""The connection of a job's transaction: it commits together with the job's finish, and at no other time.

Each process keeps one for its next job.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Generic, TypeVar, cast

import psycopg
import sqlalchemy
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from drain import postgres
from drain.transitions import inflight
from workers.current import CurrentJob
from workers.errors import JobTimeoutError, LeaseLostError, TransactionError

T = TypeVar("T")

_CANCEL_SECONDS = 5.0


class JobConnection(psycopg.Connection[Any]):
    """Commits with the finish of a job, and at no other time.

    Attributes:
        finishing: The job whose finish goes with the next commit; None while there is to be no commit.
    """

    finishing: CurrentJob | None = None

    def commit(self) -> None:
        """Finish the job, and commit that together with what has been written: both, or neither.

        Raises:
            LeaseLostError: Somebody else has claimed the job; everything is rolled back.
            TransactionError: Nobody has asked for the finish yet; or it has come already.
        """
        job = self.finishing
        if job is None:
            raise too_early()
        try:
            done = inflight.finish_and_commit(self, job.id, job.fencing_token)
        except psycopg.errors.SerializationFailure as error:
            error.add_note(
                "A heartbeat has extended the job's lease since the transaction took its snapshot."
            )
            raise
        if done:
            return
        if inflight.is_finished(self, job.id, job.fencing_token):
            job.finished = True
            raise TransactionError(
                f"job {job.id} was finished by its first transaction(), whose commit was not answered; "
                "this one is rolled back"
            )
        raise LeaseLostError(f"job {job.id} has been claimed by somebody else; its writes are rolled back")

    def set_autocommit(self, value: bool) -> None:  # noqa: FBT001  (psycopg's own)
        """Refuse to let each statement commit by itself."""
        if value:
            raise too_early()
        super().set_autocommit(value)

    @contextmanager
    def transaction(
        self,
        savepoint_name: str | None = None,
        force_rollback: bool = False,  # noqa: FBT001, FBT002  (psycopg's own)
    ) -> Iterator[psycopg.Transaction]:
        """A savepoint, always."""
        if self.info.transaction_status == TransactionStatus.IDLE:
            # With nothing begun, psycopg would begin a transaction here, and commit it at the end of the block.
            self.execute("SELECT")
        with super().transaction(savepoint_name, force_rollback) as savepoint:
            yield savepoint

    def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
        """Wait for the answer; if a signal interrupts that, let the server drop the statement first."""
        try:
            return super().wait(gen, *args, **kwargs)
        except (JobTimeoutError, LeaseLostError):
            if self.info.transaction_status == TransactionStatus.ACTIVE:
                # The answer to a statement that was cancelled, or that was quicker, has still to be read.
                with suppress(psycopg.Error), postgres.time_limit(self, _CANCEL_SECONDS):
                    self.cancel_safe(timeout=_CANCEL_SECONDS)
                    super().wait(gen)
            raise


def too_early() -> TransactionError:
    """What whoever commits by himself is told."""
    return TransactionError(
        "the transaction of a job begins and commits by itself, together with the job's finish; use begin_nested(), or "
        "psycopg's transaction(), for savepoints, and a session of your own for what is to be committed earlier"
    )


class Pool(Generic[T]):
    """Connections with no transaction open, of which each process keeps one for its next job.

    SQLAlchemy's own costs 100 of the 300 us of processor time that a session with one statement takes.

    Args:
        connect: Opens one, given the URL.
        close: Closes one, whatever has become of it.
        driver_of: What is below.
        is_as_opened: Whether a job has left its settings as they were.
    """

    def __init__(
        self,
        connect: Callable[[str], T],
        close: Callable[[T], None],
        driver_of: Callable[[T], JobConnection],
        is_as_opened: Callable[[T], bool],
    ) -> None:
        self._connect = connect
        self._close = close
        self._driver_of = driver_of
        self._is_as_opened = is_as_opened
        # A forked child leaves its parent's alone: to close them here would end them there.
        self._kept: dict[tuple[int, str], list[T]] = {}

    @contextmanager
    def connection(self, database_url: str) -> Iterator[T]:
        """A connection, which the next job gets if the block ends well."""
        kept = self._kept.setdefault((os.getpid(), database_url), [])
        connection = self._one_of(kept) or self._connect(database_url)
        try:
            yield connection
        except BaseException:
            # A refused commit, or a signal in the middle of anything, may leave the transaction open where SQLAlchemy
            # takes it for rolled back. Nothing of it may be left for the next one.
            self._close(connection)
            raise
        # As many as there are `async def` jobs at once may be in use.
        if kept or not self._is_as_opened(connection):
            self._close(connection)
        else:
            kept.append(connection)

    def close(self) -> None:
        """Close what this process has kept."""
        for (pid, _), kept in self._kept.items():
            while pid == os.getpid() and kept:
                self._close(kept.pop())

    def _one_of(self, kept: list[T]) -> T | None:
        # Another thread may take the last one in between.
        with suppress(IndexError):
            while True:
                connection = kept.pop()
                if _lives(self._driver_of(connection)):
                    return connection
                self._close(connection)
        return None


def _lives(connection: JobConnection) -> bool:
    """Whether nothing has come on an idle connection: the server has nothing to say there but that it ends it."""
    # Looking costs a microsecond, and asking, as SQLAlchemy's `pool_pre_ping` does, two of the exchanges of a job.
    looking = select.poll()
    looking.register(connection, select.POLLIN)
    return not looking.poll(0)


def _connect(database_url: str) -> JobConnection:
    connection = postgres.connect(database_url, "drain job", kind=JobConnection)
    # The job's statements may take as long as the job; but the locks of a machine that is gone are let go of.
    postgres.set_bounds(connection, statement_seconds=0, lock_seconds=0)
    inflight.prepare_to_finish(connection)
    connection.autocommit = False
    return cast(JobConnection, connection)


@cache
def _engine(database_url: str) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: _connect(database_url), poolclass=sqlalchemy.NullPool
    )


def driver_of(connection: sqlalchemy.Connection) -> JobConnection:
    """What is below a connection of `for_sessions`."""
    return cast(JobConnection, connection.connection.driver_connection)


def _drop(connection: sqlalchemy.Connection) -> None:
    connection.invalidate()
    connection.close()


def _is_plain(connection: JobConnection) -> bool:
    return connection.row_factory is tuple_row and not (
        connection.isolation_level or connection.read_only or connection.deferrable
    )


for_sessions = Pool(
    connect=lambda database_url: _engine(database_url).connect(),
    close=_drop,
    driver_of=driver_of,
    is_as_opened=lambda connection: not connection.get_execution_options(),
)
bare = Pool(
    connect=_connect,
    close=JobConnection.close,
    driver_of=lambda connection: connection,
    is_as_opened=_is_plain,
)
