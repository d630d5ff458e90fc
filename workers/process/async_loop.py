"""The thread with the event loop, in which `async def` jobs run, many at once."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic

from drain.failpoints import FailurePoint, failpoint
from workers.context.current import CurrentJob, begin
from workers.execution import attempt
from workers.execution.attempt import Call
from workers.execution.outcome import FINISHED, Finished, Outcome, Settled
from workers.exits import KILL_AFTER_SECONDS
from workers.lease.lease import Interrupt
from workers.process.inbox import ClaimedJob, Inbox


class AsyncLoop:
    """Runs what waits for it in the hand; its thread begins with the first job.

    Args:
        hand: Where the jobs are.
        database_url: Where a job's own connections lead.
        concurrency: How many run at once.
    """

    def __init__(self, inbox: Inbox, database_url: str, concurrency: int) -> None:
        self._inbox = inbox
        self._database_url = database_url
        self._concurrency = concurrency
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Look for what waits."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="event loop", daemon=True).start()
        self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        inbox = self._inbox
        while not inbox.stopping and len(inbox.running_async) < self._concurrency:
            try:
                held = inbox.waiting_async.popleft()
            except IndexError:
                return
            if held.lease.lost:
                inbox.forget(held)
                inbox.room.ring()
                continue
            inbox.running_async.add(held)
            task = asyncio.get_running_loop().create_task(self._run(held))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, held: ClaimedJob) -> None:
        inbox, claim = self._inbox, held.claim
        began = monotonic()
        inbox.journal.begin(held.slot, began + claim.timeout_seconds + KILL_AFTER_SECONDS)
        try:
            result = await self._attempt(held)
        # No exception of a job may reach the loop; those of ours end the process.
        except BaseException as error:  # noqa: BLE001
            inbox.running_async.discard(held)
            inbox.fail(error)
            return
        failpoint(FailurePoint.RAN)
        if isinstance(result, Finished | Settled):
            inbox.journal.finish(held.slot)
        else:
            inbox.journal.end(held.slot)
        # In this order: a process that stops waits for what runs, and then records what has ended.
        inbox.end(held, result, monotonic() - began, self._concurrency)
        inbox.running_async.discard(held)
        inbox.room.ring()
        self._start()

    async def _attempt(self, held: ClaimedJob) -> Outcome:
        lease, claim = held.lease, held.claim
        call = attempt.prepare(claim)
        if not isinstance(call, Call):
            return call
        current = CurrentJob(claim, lease, self._database_url)
        begin(current)
        pid = os.getpid()
        loop = asyncio.get_running_loop()
        cancel = partial(_cancel, asyncio.current_task())
        lease.start(Interrupt(partial(_from_elsewhere, loop, cancel), claim.timeout_seconds))
        try:
            coroutine = call.job.function(*call.args, **call.kwargs)
            lease.coroutine = coroutine
            await coroutine
        # SystemExit and CancelledError too: the job has failed, and the worker goes on.
        except BaseException as error:  # noqa: BLE001
            attempt.leave_if_forked(pid, error)
            cause = lease.cause() if isinstance(error, asyncio.CancelledError) else None
            raised = cause.with_traceback(error.__traceback__) if cause else error
            result = attempt.outcome_of(raised, call, stopped=lease.stopped)
        else:
            attempt.leave_if_forked(pid)
            result = FINISHED
        finally:
            lease.stop()
        return attempt.concluded(current, result)


def _cancel(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()


def _from_elsewhere(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    # The loop may have ended.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(act)
