"""Event loop for `async def` jobs."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic

from drain.workers.execution.attempt import run_in_loop
from drain.workers.process.inbox import Inbox
from drain.workers.process.jobs import ClaimedJob
from drain.workers.process.shutdown import Shutdown


class AsyncLoop:
    """Runs up to `concurrency` jobs at once; its thread starts on demand."""

    def __init__(self, inbox: Inbox, shutdown: Shutdown, concurrency: int) -> None:
        self._inbox = inbox
        self._shutdown = shutdown
        self._concurrency = concurrency
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Look for waiting jobs; for the fetcher's thread."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="event loop", daemon=True).start()
        self._loop.call_soon_threadsafe(self._start_waiting)

    def _start_waiting(self) -> None:
        inbox = self._inbox
        while not self._shutdown.requested and len(inbox.running.async_jobs) < self._concurrency:
            job = inbox.begin_next_async()
            if job is None:
                return
            if job.lease.lost:
                inbox.running.end_async(job)
                inbox.drop(job)
                continue
            task = asyncio.get_running_loop().create_task(self._run(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self, job: ClaimedJob) -> None:
        inbox = self._inbox
        began = monotonic()
        inbox.note_begin(job, began)
        try:
            result = await run_in_loop(job)
        # Not from a job: an error of our own ends the process.
        except BaseException as error:  # noqa: BLE001
            inbox.running.end_async(job)
            self._shutdown.fail(error)
            return
        # In this order: a stopping process waits for running jobs, then for outcomes.
        inbox.add_outcome(job, result, monotonic() - began, self._concurrency)
        inbox.end_async(job)
        self._start_waiting()
