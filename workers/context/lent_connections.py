"""Lender of connections: jobs that a test runs have their transactions within that of the test, as savepoints."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import sqlalchemy
    from psycopg.pq.abc import PGconn
    from sqlalchemy.ext.asyncio import AsyncConnection

    from drain.workers.context.async_connection import JobAsyncConnection
    from drain.workers.context.connection import JobConnection


class Lender(Protocol):
    """Lends connections to jobs, in place of those that the caches keep: in `drain.contrib.testing`."""

    def lends(self, pgconn: PGconn) -> bool:
        """Return whether this is the session that is lent."""

    def bare(self) -> AbstractContextManager[JobConnection]:
        """Do as `kept.bare`."""

    def of_session(self) -> AbstractContextManager[sqlalchemy.Connection]:
        """Do as `kept.of_session`."""

    def async_bare(self) -> AbstractAsyncContextManager[JobAsyncConnection]:
        """Do as `async_kept.bare`."""

    def async_of_session(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """Do as `async_kept.of_session`."""


# Lender for jobs that run in this context; None in a worker.
lender: ContextVar[Lender | None] = ContextVar("lender", default=None)


def is_lent(pgconn: PGconn) -> bool:
    """Return whether this is the session of a test that runs jobs here."""
    lending = lender.get()
    return lending is not None and lending.lends(pgconn)
