"""Thread that pops ids from RQ's lists."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

from drain.errors import UnavailableError
from drain.tables import leases
from drain.wire import WAIT_SECONDS, AwaitedId, Consumer, PoppedId
from drain.workers.lease.database import Database
from drain.workers.process.claimer import Claimer
from drain.workers.process.inbox import Inbox
from drain.workers.process.shutdown import Shutdown
from drain.workers.process.stale_deliveries import LOOK_SECONDS, OvertakenDeliveries
from drain.workers.stores import POSTGRES, REDIS, answering

log = logging.getLogger(__name__)

# Then jobs behind a slow one are returned; checked twice as often.
_LONGEST_WAIT_SECONDS = 0.5
# Between looks for tracked jobs behind plain ones, and for plain jobs without PostgreSQL.
_LOOK_SECONDS = 0.1
_SUSPENDED_SECONDS = 1.0
# While a store is unavailable; doubles.
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0


class Fetcher:
    """Fetches jobs until shutdown, then returns those that have not begun.

    Args:
        database: For this thread only.
        burst: Shut down once queues and inbox are empty.
        max_idle_seconds: Shut down after so long without jobs.

    Attributes:
        is_suspended: RQ's workers are suspended.
    """

    # One thing: the loop of a thread.

    def __init__(
        self,
        inbox: Inbox,
        shutdown: Shutdown,
        consumer: Consumer,
        claimer: Claimer,
        overtaken: OvertakenDeliveries,
        database: Database,
        *,
        burst: bool,
        max_idle_seconds: float | None = None,
    ) -> None:
        self.is_suspended = False
        self._inbox = inbox
        self._shutdown = shutdown
        self._consumer = consumer
        self._claimer = claimer
        self._overtaken = overtaken
        self._database = database
        self._stores = database.stores
        self._burst = burst
        self._max_idle_seconds = max_idle_seconds
        self._idle_since = monotonic()
        self._was_full = self._comes_alone = True
        self._taken: AwaitedId | None = None
        self._more_to_judge = False
        self._pause_seconds = 0.0

    def run(self) -> None:
        """Fetch until shutdown.

        Raises:
            UnavailableError: Redis became unavailable in a burst.
        """
        try:
            while not self._shutdown.requested:
                try:
                    self._run_once()
                except UnavailableError:
                    if self._burst:
                        raise
                    self._pause()
        finally:
            self._claimer.give_back(
                [*self._inbox.withdraw(float("inf")), *self._inbox.plain.withdraw(float("inf"))]
            )
            with suppress(UnavailableError):
                self._overtaken.release()
            self._database.close()

    def _run_once(self) -> None:
        self._give_back_stuck_plain()
        wanted = self._inbox.wanted
        if self._stores.is_away(POSTGRES) and not self._burst:
            # Updates no row, but finds a read-only database.
            self._database.ask(lambda c: leases.release(c, ()), patience_seconds=0.0)
        self._overtaken.release_when_due()
        popped = self._fetch(wanted) if wanted else []
        self.is_suspended = popped is None
        if popped:
            self._claim(popped, wanted)
        if wanted:
            self._pause_seconds = 0.0
        if popped or not self._inbox.is_idle or self._inbox.claimed:
            self._idle_since = monotonic()
        if popped:
            return
        if self._idle_seconds_left > 0:
            self._wait_for_room(wanted)
        else:
            log.info("idle for %g s; exiting", self._max_idle_seconds, extra={"event": "idle"})
            self._shutdown.resign()

    def _claim(self, popped: Sequence[PoppedId], wanted: int) -> None:
        taken, self._taken = self._taken, None
        try:
            self._claimer.claim(popped)
        except BaseException:
            if taken is not None:
                with suppress(UnavailableError):
                    self._consumer.pop(0, taken=taken)
            raise
        if taken is None:
            return
        with answering(self._stores, REDIS, by_loop=True):
            others = self._pop(wanted - 1, taken=taken)
        self._comes_alone = not others
        if others:
            self._claimer.claim(others)

    def _wait_for_room(self, wanted: int) -> None:
        waiting_since = monotonic() - _LONGEST_WAIT_SECONDS
        if items := self._inbox.withdraw_stuck(waiting_since):
            self._claimer.give_back(items)
        elif self._is_burst_over(wanted):
            self._shutdown.resign()
        elif self.is_suspended:
            self._inbox.room_freed.wait(_SUSPENDED_SECONDS)
        elif wanted and self._consumer.leaves_plain:
            self._inbox.room_freed.wait(_LOOK_SECONDS)
        elif not wanted or self._burst or self._more_to_judge:
            # Ending and recording a job both end this wait.
            is_full = not wanted and not self._has_waiting
            self._inbox.room_freed.wait(None if is_full else _LONGEST_WAIT_SECONDS / 2)

    @property
    def _has_waiting(self) -> bool:
        return bool(self._inbox.waiting_count or self._inbox.plain.waiting_count)

    def _is_burst_over(self, wanted: int) -> bool:
        is_empty = self._inbox.is_idle and not self._inbox.claimed
        is_unseen = self._more_to_judge or self._consumer.leaves_plain
        return self._burst and bool(wanted) and not is_unseen and is_empty

    @property
    def _idle_seconds_left(self) -> float:
        longest = self._max_idle_seconds
        return float("inf") if longest is None else self._idle_since + longest - monotonic()

    def _fetch(self, wanted: int) -> list[PoppedId] | None:
        """Pop up to `wanted` ids, perhaps after a wait; None while suspended."""
        with answering(self._stores, REDIS, by_loop=True):
            # After a full batch more ids are likely; otherwise the blocking command is fastest.
            looks_first = self._burst or self._was_full or self._pause_seconds or self._more_to_judge
            if looks_first or self._consumer.leaves_plain:
                popped = self._pop(wanted)
            elif first := self._consumer.wait(self._seconds_to_wait()):
                popped = self._take(first) or self._pop(wanted, first)
            else:
                popped = self._pop(wanted) if self._consumer.skips_lists else []
        self._comes_alone = popped is not None and len(popped) <= 1
        self._was_full = popped is not None and len(popped) == wanted
        self._more_to_judge = not popped and self._consumer.more_to_classify
        return popped

    def _pop(
        self, wanted: int, first: AwaitedId | None = None, *, taken: AwaitedId | None = None
    ) -> list[PoppedId] | None:
        return self._consumer.pop(wanted, first, taken=taken, plain=not self._inbox.plain.is_full)

    def _take(self, first: AwaitedId) -> list[PoppedId] | None:
        """Take an id alone if recent ids came alone: its job begins a round trip earlier."""
        if not self._comes_alone:
            return None
        taken = self._consumer.take(first)
        self._taken = first if taken is not None else None
        return [taken] if taken is not None else None

    def _seconds_to_wait(self) -> float:
        longest = _LONGEST_WAIT_SECONDS / 2 if self._has_waiting else WAIT_SECONDS
        if self._overtaken:
            longest = min(longest, LOOK_SECONDS)
        # For Redis, 0 means forever.
        return max(0.01, min(longest, self._idle_seconds_left))

    def _pause(self) -> None:
        """Wait before trying the stores again, running plain jobs, which need only Redis."""
        self._pause_seconds = min(_LONGEST_PAUSE_SECONDS, max(_FIRST_PAUSE_SECONDS, 2 * self._pause_seconds))
        until = monotonic() + random.uniform(self._pause_seconds / 2, self._pause_seconds)  # noqa: S311
        fetches = self._stores.is_away(POSTGRES)
        while (left := until - monotonic()) > 0 and not self._shutdown.requested:
            fetches = fetches and self._fetch_plain()
            self._inbox.room_freed.wait(min(left, _LOOK_SECONDS) if fetches else left)

    def _fetch_plain(self) -> bool:
        """Return False without Redis."""
        self._give_back_stuck_plain()
        if self._inbox.plain.is_full:
            return True
        try:
            with answering(self._stores, REDIS, by_loop=True):
                popped = self._consumer.pop(1, tracked=False)
            if popped:
                self._claimer.claim(popped)
        except UnavailableError:
            return False
        return True

    def _give_back_stuck_plain(self) -> None:
        if items := self._inbox.plain.withdraw(monotonic() - _LONGEST_WAIT_SECONDS):
            self._claimer.give_back(items)
