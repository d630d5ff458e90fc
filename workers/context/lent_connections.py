"""Connections lent to jobs run by a test: they use savepoints in its transaction."""

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
    """Lends connections in place of the caches; see `drain.contrib.testing`."""

    def lends(self, pgconn: PGconn) -> bool:
        """Return True for the lent session."""

    def bare(self) -> AbstractContextManager[JobConnection]:
        """Lend as `connection_cache.bare`."""

    def of_session(self) -> AbstractContextManager[sqlalchemy.Connection]:
        """Lend as `connection_cache.of_session`."""

    def async_bare(self) -> AbstractAsyncContextManager[JobAsyncConnection]:
        """Lend as `async_connection_cache.bare`."""

    def async_of_session(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """Lend as `async_connection_cache.of_session`."""


lender: ContextVar[Lender | None] = ContextVar("lender", default=None)


def is_lent(pgconn: PGconn) -> bool:
    """Return True for the session lent by a test."""
    lending = lender.get()
    return lending is not None and lending.lends(pgconn)
