"""Connection of an async job's transaction; see `JobConnection`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from drain.database import postgres
from drain.database.cursor import AsyncTransactionCursor
from drain.tables import async_finishes, steps
from drain.workers.context.finish_guard import note_heartbeat, refusal, too_early
from drain.workers.context.guarded import GuardedConnection


class JobAsyncConnection(GuardedConnection, psycopg.AsyncConnection[Any]):
    """Commits only with the finish of a job.

    If its task is cancelled, psycopg cancels the statement and reads the answer.
    """

    _loop: asyncio.AbstractEventLoop | None = None

    async def be_ready(self) -> None:
        """Begin transactions; note settings for `is_fit`."""
        if not postgres.is_pooled(self):
            await self.execute(postgres.NOTICE_DEAD_CLIENT)
        await super().set_autocommit(False)
        self.cursor_factory = AsyncTransactionCursor
        self._loop = asyncio.get_running_loop()
        self._note_settings()

    def is_free(self) -> bool:
        """Return True if its loop is running here, or closed."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and not self._loop.is_closed():
                return False
            # The lock belongs to the loop of a task that waited for it.
            self._loop, self.lock = loop, asyncio.Lock()
        return True

    def drop(self) -> None:
        """Close at once."""
        self._closed = True
        self.pgconn.finish()

    async def commit(self) -> None:
        """Finish the job, or record its step, and commit its writes; or neither."""
        attempt = self._begin_finish(AsyncTransactionCursor)
        claim, step = attempt.claim, self.step
        try:
            if step is not None:
                done = await async_finishes.commit_under_fence(
                    self, claim, steps.record_or_fail(self, step), steps.record_parameters(claim, step)
                )
            else:
                done = attempt.finished = await async_finishes.finish_and_commit(
                    self, claim, waits=not attempt.groups_commit, result=attempt.result
                )
        except psycopg.errors.SerializationFailure as error:
            note_heartbeat(error)
            raise
        if done:
            if step is not None:
                self.finishing = self.step = None
            return
        is_finished = step is None and await async_finishes.is_finished(self, claim)
        is_cancelled = not is_finished and await async_finishes.is_cancelled(self, claim)
        raise refusal(attempt, is_finished=is_finished, is_cancelled=is_cancelled, step=step)

    async def set_autocommit(self, value: bool) -> None:  # noqa: FBT001  (psycopg's own)
        """Refuse autocommit."""
        if value:
            raise too_early()
        await super().set_autocommit(value)

    async def tpc_begin(self, xid: psycopg.Xid | str) -> None:
        """Refuse."""
        del xid
        raise too_early()

    @asynccontextmanager
    async def transaction(
        self,
        savepoint_name: str | None = None,
        force_rollback: bool = False,  # noqa: FBT001, FBT002  (psycopg's own)
    ) -> AsyncIterator[psycopg.AsyncTransaction]:
        """Begin a savepoint, never a transaction."""
        if self.info.transaction_status == TransactionStatus.IDLE:
            await self.execute("SELECT")
        self._savepoints += 1
        try:
            async with super().transaction(savepoint_name, force_rollback) as savepoint:
                yield savepoint
        finally:
            self._savepoints -= 1
