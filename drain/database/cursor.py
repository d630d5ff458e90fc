"""Cursors whose BEGIN and COMMIT travel with the first and the last statement of a transaction.

psycopg sends each by itself and waits for its answer. Measured for a job of one UPDATE: a BEGIN by itself takes 20 us
of processor time here, and as many in the server, of 285 that the job costs all processes; a COMMIT takes the same.
psycopg's pipeline mode costs more than the exchange that it saves. So these cursors use libpq's for a single statement,
by methods that psycopg does not promise to keep. In other versions of psycopg than those that were tried, the cursors
are psycopg's.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, LiteralString

import psycopg
from psycopg.pq import ExecStatus, TransactionStatus

# A later version may have them elsewhere.
with suppress(ImportError):
    from psycopg._preparing import Prepare
    from psycopg.generators import execute

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
    """Sends the BEGIN of its connection together with the statement that begins the transaction.

    After a COMMIT in SQL it calls `refuse_commit` of its connection.
    """

    # True while a statement is on its way that begins a transaction, or that the commit follows.
    _begins = _commits = False

    def _execute_gen(
        self,
        query: Query,
        params: Params | None = None,
        *,
        prepare: bool | None = None,
        binary: bool | None = None,
    ) -> PQGen[None]:
        connection = self._conn
        self._begins = (
            connection.pgconn.transaction_status == TransactionStatus.IDLE
            and not connection.autocommit
            and connection._pipeline is None
        )
        try:
            yield from super()._execute_gen(query, params, prepare=prepare, binary=binary)
        finally:
            # A statement whose parameters do not fit is not sent, and the cursor's next one may be a COPY or a stream,
            # whose transaction psycopg has to begin.
            self._begins = self._commits = False

    def _start_query(self, query: Query | None = None) -> PQGen[None]:
        if not self._begins:
            yield from super()._start_query(query)
            return
        # As psycopg's own, but for the transaction, which is begun with the statement.
        connection = self._conn
        try:
            connection._autocommit = True
            yield from super()._start_query(query)
        finally:
            connection._autocommit = False

    def _maybe_prepare_gen(
        self, pgq: PostgresQuery, *, prepare: bool | None = None, binary: bool | None = None
    ) -> PQGen[None]:
        begins, commits = self._begins, self._commits
        if not begins and not commits:
            yield from super()._maybe_prepare_gen(pgq, prepare=prepare, binary=binary)
            return
        connection, pgconn = self._conn, self._pgconn
        prepared, name = self._get_prepared(pgq, prepare)
        if prepared is Prepare.SHOULD or (prepared is Prepare.NO and not pgq.params):
            # Prepared in an exchange of its own; or it may be several statements, which go in no extended message.
            if begins:
                yield from connection._exec_command(connection._get_tx_start_command())
            yield from super()._maybe_prepare_gen(pgq, prepare=prepare, binary=binary)
            if commits:
                yield from connection._exec_command(_COMMIT)
            return
        pgconn.enter_pipeline_mode()
        if begins:
            pgconn.send_query_params(connection._get_tx_start_command(), None)
        try:
            if prepared is Prepare.YES:
                self._send_query_prepared(name, pgq, binary=binary)
            else:
                self._execute_send(pgq, binary=binary, force_extended=True)
            if commits:
                # The server skips it if the statement fails.
                pgconn.send_query_params(_COMMIT, None)
        finally:
            # A statement that cannot be sent, as one of 65,536 parameters, leaves the transaction begun.
            pgconn.pipeline_sync()
            answers = yield from self._answers()
        results = answers[int(begins)]
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
        """Read the results of each statement of the pipeline, and leave the pipeline."""
        answers: list[list[PGresult]] = []
        try:
            while True:
                results = yield from execute(self._pgconn)
                if not results:
                    raise psycopg.OperationalError("the connection is lost")
                if results[0].status == ExecStatus.PIPELINE_SYNC:
                    break
                answers.append(results)
        except psycopg.OperationalError:
            # A server that ends the session says why in place of an answer, and answers nothing else.
            for results in answers:
                self._check_results(results)
            raise
        self._pgconn.exit_pipeline_mode()
        return answers


class BeginningCursor(_Beginning, psycopg.Cursor[Any]):
    """Cursor of a connection."""


class BeginningAsyncCursor(_Beginning, psycopg.AsyncCursor[Any]):
    """Cursor of an async connection."""


_IS_TRIED = psycopg.__version__.rpartition(".")[0] in _TRIED
# For connections that are not in autocommit mode.
TransactionCursor: type[psycopg.Cursor[Any]] = BeginningCursor if _IS_TRIED else psycopg.Cursor
AsyncTransactionCursor: type[psycopg.AsyncCursor[Any]] = (
    BeginningAsyncCursor if _IS_TRIED else psycopg.AsyncCursor
)


def execute_and_commit(
    connection: psycopg.Connection[Any], statement: LiteralString, parameters: Params
) -> None:
    """Execute a statement, and commit the open transaction unless it fails; in one exchange if possible.

    Raises:
        psycopg.Error: The statement or the commit has failed. The transaction has still to be rolled back.
    """
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
    """Do as `execute_and_commit`, on an async connection."""
    cursor = connection.cursor()
    if isinstance(cursor, BeginningAsyncCursor):
        cursor._commits = True
        await cursor.execute(statement, parameters)
    else:
        await cursor.execute(statement, parameters)
        await cursor.execute(_COMMIT)
