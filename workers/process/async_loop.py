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
from workers.process.inbox import Inbox
from workers.process.jobs import ClaimedJob
from workers.process.shutdown import Shutdown


class AsyncLoop:
    """Runs the `async def` jobs of the inbox; its thread starts with the first of them.

    Args:
        inbox: Source of the jobs, and destination of their outcomes.
        shutdown: The process' shutdown, after which no further job begins.
        database_url: URL of the database, for connections of a job's own.
        concurrency: Upper bound of the jobs that run at once.
    """

    def __init__(self, inbox: Inbox, shutdown: Shutdown, database_url: str, concurrency: int) -> None:
        self._inbox = inbox
        self._shutdown = shutdown
        self._database_url = database_url
        self._concurrency = concurrency
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Let the loop look for waiting jobs; for the fetcher's thread."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="event loop", daemon=True).start()
        self._loop.call_soon_threadsafe(self._start_waiting)

    def _start_waiting(self) -> None:
        inbox = self._inbox
        while not self._shutdown.requested and len(inbox.running.async_jobs) < self._concurrency:
            try:
                held = inbox.waiting_async.popleft()
            except IndexError:
                return
            if held.lease.lost:
                inbox.drop(held)
                continue
            inbox.running.begin_async(held)
            task = asyncio.get_running_loop().create_task(self._run(held))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, held: ClaimedJob) -> None:
        inbox, claim = self._inbox, held.claim
        began = monotonic()
        inbox.journal.begin(held.slot, began + claim.timeout_seconds + KILL_AFTER_SECONDS)
        try:
            result = await self._attempt(held)
        # No exception of a job may reach the event loop; an exception of the worker's own code ends the process.
        except BaseException as error:  # noqa: BLE001
            inbox.running.end_async(held)
            self._shutdown.fail(error)
            return
        failpoint(FailurePoint.RAN)
        if isinstance(result, Finished | Settled):
            inbox.journal.finish(held.slot)
        else:
            inbox.journal.end(held.slot)
        # In this order: a process that stops waits for running jobs first, and then for outcomes.
        inbox.add_outcome(held, result, monotonic() - began, self._concurrency)
        inbox.running.end_async(held)
        inbox.room_freed.notify()
        self._start_waiting()

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
