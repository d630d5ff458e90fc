"""Base of jobs' connections, sync and async."""

from __future__ import annotations

import select
from typing import Any, NoReturn

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from drain.tables.steps import Step
from drain.workers.context import inherited
from drain.workers.context.current import Attempt
from drain.workers.context.finish_guard import too_early
from drain.workers.errors import TransactionError

# What a job may change within its transaction.
_FACTORIES = ("row_factory", "cursor_factory", "server_cursor_factory", "prepare_threshold")


class GuardedConnection(psycopg.BaseConnection[Any]):
    """Commits only with the finish of a job, or the result of its step.

    Attributes:
        finishing: None while no commit is allowed.
        step: What the commit records instead of the finish.
    """

    finishing: Attempt | None = None
    step: Step | None = None
    row_factory: Any
    cursor_factory: Any
    server_cursor_factory: Any
    _savepoints = 0
    _committed_early = False
    _as_opened: tuple[object, ...] = ()

    def is_fit(self) -> bool:
        """Return True if unchanged since opening."""
        if self.closed or self.pgconn.transaction_status != TransactionStatus.IDLE:
            return False
        if self._savepoints or self._committed_early:
            return False
        return self._settings() == self._as_opened and not is_ended(self)

    def restore(self) -> None:
        """Undo a job's changes to cursors and rows."""
        for name, value in zip(_FACTORIES, self._as_opened, strict=False):
            setattr(self, name, value)

    def refuse_commit(self) -> NoReturn:
        """Raise TransactionError now and at the finish, after COMMIT in SQL."""
        self._committed_early = True
        raise too_early()

    def _note_settings(self) -> None:
        inherited.keep_from_children(self)
        self._as_opened = self._settings()

    def _settings(self) -> tuple[object, ...]:
        return (
            *(getattr(self, name) for name in _FACTORIES),
            *(self.isolation_level, self.read_only, self.deferrable, self.autocommit),
        )

    def _begin_finish(self, cursor_factory: type[Any]) -> Attempt:
        attempt = self.finishing
        if attempt is None:
            raise too_early()
        if self._committed_early:
            raise too_early()
        inherited.refuse_in_child(self)
        if self._savepoints or self.pgconn.pipeline_status != PipelineStatus.OFF:
            raise TransactionError(
                "a psycopg transaction() or pipeline() is still open within the transaction of the job; "
                "all of it is rolled back"
            )
        # The job may have replaced these.
        self.row_factory, self.cursor_factory = tuple_row, cursor_factory
        return attempt


def is_ended(connection: psycopg.BaseConnection[Any]) -> bool:
    """Return True if the server has ended an idle session."""
    # An idle server sends nothing else. Polling costs 1 us; a query, as by `pool_pre_ping`, two round trips.
    looking = select.poll()
    looking.register(connection, select.POLLIN)
    return bool(looking.poll(0))
