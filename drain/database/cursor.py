"""Cursors that send BEGIN and COMMIT, or a savepoint, with a transaction's first and last statement.

Of 285 us of CPU for a job of one UPDATE, each of them would otherwise take 20 here and 20 in the server, measured.
psycopg's pipeline mode costs more than it saves, so libpq's is used, through private methods of psycopg; untested
versions of psycopg keep its own cursors.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

# These may move in later versions.
with suppress(ImportError):
    from psycopg._preparing import Prepare
    from psycopg.generators import fetch_many, send

if TYPE_CHECKING:
    from psycopg._cursor_base import BaseCursor
    from psycopg._queries import PostgresQuery
    from psycopg.abc import Params, PQGen, Query
    from psycopg.pq.abc import PGresult

    Base = BaseCursor[Any, Any]
else:
    Base = psycopg.Cursor.__base__

_TRIED = ("3.2", "3.3")
_COMMIT = b"COMMIT"


class _Beginning(Base):
    """Sends BEGIN, or the connection's `pending` commands, along; calls its `refuse_commit` after a COMMIT in SQL."""

    # While a transaction's first or last statement executes.
    _before: Sequence[bytes] = ()
    _commits = False

    def _execute_gen(
        self,
        query: Query,
        params: Params | None = None,
        *,
        prepare: bool | None = None,
        binary: bool | None = None,
    ) -> PQGen[None]:
        connection: Any = self._conn
        if getattr(connection, "savepoint", None) is not None:
            connection.check_statement(query)
        if connection._pipeline is None:
            self._before = getattr(connection, "pending", ())
            if (
                not self._before
                and connection.pgconn.transaction_status == TransactionStatus.IDLE
                and not connection.autocommit
            ):
                self._before = (connection._get_tx_start_command(),)
        try:
            yield from super()._execute_gen(query, params, prepare=prepare, binary=binary)
        finally:
            # Nothing is sent if parameters do not fit.
            self._before, self._commits = (), False

    def _start_query(self, query: Query | None = None) -> PQGen[None]:
        if not self._before:
            yield from super()._start_query(query)
            return
        # As psycopg's own, without its BEGIN.
        connection = self._conn
        try:
            connection._autocommit = True
            yield from super()._start_query(query)
        finally:
            connection._autocommit = False

    def _maybe_prepare_gen(
        self, pgq: PostgresQuery, *, prepare: bool | None = None, binary: bool | None = None
    ) -> PQGen[None]:
        before, commits = self._before, self._commits
        if not before and not commits:
            yield from super()._maybe_prepare_gen(pgq, prepare=prepare, binary=binary)
            return
        connection: Any = self._conn
        pgconn = self._pgconn
        prepared, name = self._get_prepared(pgq, prepare)
        if prepared is Prepare.SHOULD or (prepared is Prepare.NO and not pgq.params):
            # Preparing takes its own exchange, as several statements do.
            connection.pending = ()
            for command in before:
                yield from connection._exec_command(command)
            yield from super()._maybe_prepare_gen(pgq, prepare=prepare, binary=binary)
            if commits:
                yield from connection._exec_command(_COMMIT)
            return
        pgconn.enter_pipeline_mode()
        connection.pending = ()
        for command in before:
            pgconn.send_query_params(command, None)
        try:
            if prepared is Prepare.YES:
                self._send_query_prepared(name, pgq, binary=binary)
            else:
                self._execute_send(pgq, binary=binary, force_extended=True)
            if commits:
                # The server skips it if the statement fails.
                pgconn.send_query_params(_COMMIT, None)
        finally:
            # If it cannot be sent (65,536 parameters), the transaction is still open.
            pgconn.pipeline_sync()
            answers = yield from self._answers()
        results = answers[len(before)]
        key = connection._prepared.maybe_add_to_cache(pgq, prepared, name)
        if key is not None:
            connection._prepared.validate(key, prepared, name, results)
        for each in answers:
            self._check_results(each)
        self._set_results(results)

    def _check_results(self, results: list[PGresult]) -> None:
        super()._check_results(results)
        for result in results:
            if result.command_status == _COMMIT and not self._commits:
                connection: Any = self._conn
                connection.refuse_commit()

    def _answers(self) -> PQGen[list[list[PGresult]]]:
        answers: list[list[PGresult]] = []
        try:
            yield from send(self._pgconn)
            while True:
                results = yield from fetch_many(self._pgconn)
                if not results:
                    raise psycopg.OperationalError("the connection is lost")
                if results[0].status == ExecStatus.PIPELINE_SYNC:
                    break
                answers.append(results)
        except psycopg.OperationalError:
            # A server that ends the session gives its reason last.
            for results in answers:
                self._check_results(results)
            raise
        self._pgconn.exit_pipeline_mode()
        return answers


class BeginningCursor(_Beginning, psycopg.Cursor[Any]):
    """Cursor of a connection."""


class BeginningAsyncCursor(_Beginning, psycopg.AsyncCursor[Any]):
    """Cursor of an async connection."""


IS_TRIED = psycopg.__version__.rpartition(".")[0] in _TRIED
# For connections outside autocommit mode.
TransactionCursor: type[psycopg.Cursor[Any]] = BeginningCursor if IS_TRIED else psycopg.Cursor
AsyncTransactionCursor: type[psycopg.AsyncCursor[Any]] = (
    BeginningAsyncCursor if IS_TRIED else psycopg.AsyncCursor
)


def execute_and_commit(
    connection: psycopg.Connection[Any], statement: LiteralString, parameters: Params
) -> None:
    """Execute and commit, in one exchange if possible; the caller rolls back."""
    cursor = connection.cursor()
    if isinstance(cursor, BeginningCursor):
        cursor._commits = True
        cursor.execute(statement, parameters)
    else:
        cursor.execute(statement, parameters)
        cursor.execute(_COMMIT)


async def execute_and_commit_async(
    connection: psycopg.AsyncConnection[Any], statement: LiteralString, parameters: Params
) -> None:
    """See `execute_and_commit`."""
    cursor = connection.cursor()
    if isinstance(cursor, BeginningAsyncCursor):
        cursor._commits = True
        await cursor.execute(statement, parameters)
    else:
        await cursor.execute(statement, parameters)
        await cursor.execute(_COMMIT)
