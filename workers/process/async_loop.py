"""The thread with the event loop, in which `async def` jobs run, many at once."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic

from workers.execution.attempt import run_in_loop
from workers.process.inbox import ClaimedJob, Inbox


class AsyncLoop:
    """Runs what waits for it in the hand; its thread begins with the first job.

    Args:
        inbox: Where the jobs are.
        concurrency: How many run at once.
    """

    def __init__(self, inbox: Inbox, concurrency: int) -> None:
        self._inbox = inbox
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
        inbox = self._inbox
        began = monotonic()
        inbox.begin(held, began)
        try:
            result = await run_in_loop(held)
        # No exception of a job may reach the loop; those of ours end the process.
        except BaseException as error:  # noqa: BLE001
            inbox.running_async.discard(held)
            inbox.fail(error)
            return
        # In this order: a process that stops waits for what runs, and then records what has ended.
        inbox.end(held, result, monotonic() - began, self._concurrency)
        inbox.running_async.discard(held)
        inbox.room.ring()
        self._start()
