"""The thread that fills the hand: it takes ids from RQ's lists, many at a time, and claims them in one statement."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from time import monotonic

import psycopg

from drain.config import process_name
from drain.database.postgres import Connection
from drain.errors import UnavailableError
from drain.failpoints import FailurePoint, failpoint
from drain.jobs import registry
from drain.tables import claims, leases, outcomes
from drain.tables.claims import Claim
from drain.wire import WAIT_SECONDS, Consumer, PoppedId
from workers.execution.rq_books import RQBooks
from workers.lease.database import Database
from workers.lease.heartbeat import Heartbeat
from workers.process.async_loop import AsyncLoop
from workers.process.inbox import ClaimedJob, Inbox, Item, PendingJob
from workers.stores import POSTGRES, REDIS, answering

log = logging.getLogger(__name__)

# What has waited for so long behind a slow job is given back; looked at twice as often.
_LONGEST_WAIT_SECONDS = 0.5
_SUSPENDED_SECONDS = 1.0
_LOOK_SECONDS = 1.0
_MOST_OVERTAKEN = 1000
_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 5.0


class Fetcher:
    """Takes and claims, until the hand is to be stopped; then it gives back what has not begun.

    Args:
        hand: What to fill.
        intake: Where the ids are.
        database: Where the jobs are; no other thread uses it.
        keeper: Who extends the leases.
        loop: Who runs `async def` jobs.
        books: What RQ is to be told of jobs that were finished under an earlier delivery.
        burst: Stop the hand once the queues are empty and nothing is left in it.
        max_idle_seconds: Stop it as well once nothing has come, and nothing been in it, for so long.

    Attributes:
        is_suspended: RQ's workers are suspended.
    """

    def __init__(
        self,
        inbox: Inbox,
        consumer: Consumer,
        database: Database,
        heartbeat: Heartbeat,
        loop: AsyncLoop,
        books: RQBooks,
        *,
        burst: bool,
        max_idle_seconds: float | None = None,
    ) -> None:
        self.is_suspended = False
        self._inbox = inbox
        self._consumer = consumer
        self._database = database
        self._stores = database.stores
        self._heartbeat = heartbeat
        self._loop = loop
        self._books = books
        # Deliveries that plain RQ jobs wait for, of jobs that somebody holds under an earlier one.
        self._overtaken: deque[PoppedId] = deque(maxlen=_MOST_OVERTAKEN)
        self._look_at = 0.0
        self._burst = burst
        self._max_idle_seconds = max_idle_seconds
        self._idle_since = monotonic()
        self._was_full = True
        self._more_to_judge = False
        self._pause_seconds = 0.0

    def run(self) -> None:
        """Go on until the hand is to be stopped.

        Raises:
            UnavailableError: Redis went away in a burst.
        """
        try:
            while not self._inbox.stopping:
                try:
                    self._run_once()
                except UnavailableError:
                    if self._burst:
                        raise
                    self._wait()
        finally:
            self._give_back(self._inbox.take_back(float("inf")))
            with suppress(UnavailableError):
                self._release_overtaken()
            self._database.close()

    def release_once_finished(self, awaited: Iterable[PoppedId]) -> None:
        """Let go what waits for deliveries that no claim wanted, once their jobs are finished; for any thread."""
        self._overtaken.extend(awaited)

    def _run_once(self) -> None:
        wanted = self._inbox.wanted
        if self._stores.is_away(POSTGRES) and not self._burst:
            # An update of no row: it tells of a database, too, that takes no writes for a while.
            self._database.ask(lambda c: leases.release(c, (), ()), patience_seconds=0.0)
        if self._overtaken and monotonic() >= self._look_at:
            self._look_at = monotonic() + _LOOK_SECONDS
            self._release_overtaken()
        taken = self._take(wanted) if wanted else []
        self.is_suspended = taken is None
        if taken:
            self._claim(taken)
        if wanted:
            self._pause_seconds = 0.0
        if taken or not self._inbox.is_idle or self._inbox.held:
            self._idle_since = monotonic()
        if taken:
            return
        if self._idle_seconds_left > 0:
            self._do_without(wanted)
        else:
            log.info("idle for %g s, ending", self._max_idle_seconds, extra={"event": "idle"})
            self._inbox.resign()

    def _do_without(self, wanted: int) -> None:
        """Give back jobs that wait behind a slow one, end a burst, or wait."""
        waiting_since = monotonic() - _LONGEST_WAIT_SECONDS
        if items := self._inbox.take_back(waiting_since):
            self._inbox.stuck = True
            self._give_back(items)
        elif (
            self._burst
            and wanted
            and not self._more_to_judge
            and self._inbox.is_idle
            and not self._inbox.held
        ):
            self._inbox.resign()
        elif self.is_suspended:
            self._inbox.room.wait(_SUSPENDED_SECONDS)
        elif not wanted or self._burst or self._more_to_judge:
            # Whatever ends, or is recorded, rings.
            self._inbox.room.wait(None if not wanted and not self._inbox.waits else _LONGEST_WAIT_SECONDS / 2)

    def _release_overtaken(self) -> None:
        """Whoever finishes a job under an earlier delivery knows nothing of the later one, nor of its dependents."""
        waiting = list(self._overtaken)
        if not waiting:
            return
        ids = [each.job_id for each in waiting if each.job_id is not None]
        are_finished = self._database.ask(lambda c: outcomes.are_finished(c, ids))
        queues = {each.rq_id: each.queue for each in waiting if are_finished.get(each.job_id or 0)}
        for rq_id in self._consumer.clear(list(queues)):
            self._books.finished(rq_id, queues[rq_id])
        for each in waiting:
            # What is delivered once more takes its dependents along, and one that is dead is no dependency that is met.
            if are_finished.get(each.job_id or 0) is not False:
                with suppress(ValueError):
                    self._overtaken.remove(each)

    @property
    def _idle_seconds_left(self) -> float:
        most = self._max_idle_seconds
        return float("inf") if most is None else self._idle_since + most - monotonic()

    def _take(self, wanted: int) -> list[PoppedId] | None:
        with answering(self._stores, REDIS, by_loop=True):
            return self._taken(wanted)

    def _taken(self, wanted: int) -> list[PoppedId] | None:
        # After a full batch there are likely to be more; else the command that waits is the quickest, one way or other.
        if self._burst or self._was_full or self._pause_seconds or self._more_to_judge:
            taken = self._consumer.pop(wanted)
        elif popped := self._consumer.wait(self._seconds_to_wait()):
            taken = self._consumer.pop(wanted, popped)
        else:
            taken = self._consumer.pop(wanted) if self._consumer.skips_lists else []
        self._was_full = taken is not None and len(taken) == wanted
        self._more_to_judge = not taken and self._consumer.more_to_classify
        return taken

    def _seconds_to_wait(self) -> float:
        # With jobs in hand that may have to be given back, a look at them comes first.
        longest = _LONGEST_WAIT_SECONDS / 2 if self._inbox.waits else WAIT_SECONDS
        if self._overtaken:
            longest = min(longest, _LOOK_SECONDS)
        # To Redis, 0 is for ever.
        return max(0.01, min(longest, self._idle_seconds_left))

    def _wait(self) -> None:
        self._pause_seconds = min(_LONGEST_PAUSE_SECONDS, max(_FIRST_PAUSE_SECONDS, 2 * self._pause_seconds))
        self._inbox.pause.wait(random.uniform(self._pause_seconds / 2, self._pause_seconds))  # noqa: S311

    def _claim(self, taken: Sequence[PoppedId]) -> None:
        failpoint(FailurePoint.POPPED)
        asked_at = monotonic()
        # What is delivered twice, to us both times, is run once.
        known = self._inbox.held
        ours = {each.job_id: each for each in taken if each.job_id is not None and each.job_id not in known}
        try:
            won = self._ask(ours) if ours else {}
            missing = [job_id for job_id in ours if job_id not in won]
            left = self._database.ask(lambda c: claims.left_to_claim(c, missing)) if missing else set()
        except BaseException:
            # Claims that were made and not answered run out; nothing else is touched.
            self._consumer.give_back([(each.queue, each.rq_id) for each in taken])
            raise
        failpoint(FailurePoint.CLAIMED)
        taken_at = monotonic()
        items: list[Item] = []
        into_loop: list[ClaimedJob] = []
        refused: list[PoppedId] = []
        for each in taken:
            claim = won.get(each.job_id) if each.job_id is not None else None
            if claim is not None and ours[claim.id] is each:
                held = self._held(claim, each, asked_at, taken_at)
                runs_in_loop = held.job is not None and held.job.runs_in_loop
                (into_loop if runs_in_loop else items).append(held)
            elif each.job_id is None or (each.job_id in left and ours.get(each.job_id) is each):
                items.append(self._unclaimed(each, taken_at))
            else:
                refused.append(each)
        # Before anything is asked: whose lease is extended, and who is nowhere, would never be run.
        self._inbox.accept(items, into_loop)
        if into_loop:
            self._loop.wake()
        if refused:
            log.debug("%d jobs are not to be claimed: claimed, finished or not due", len(refused))
            plain, awaited = self._consumer.sort_unclaimed(refused)
            self._inbox.accept([self._unclaimed(each, taken_at) for each in plain], [])
            self.release_once_finished(awaited)

    def _unclaimed(self, taken: PoppedId, taken_at: float) -> PendingJob:
        self._inbox.singly.add(unclaimed := PendingJob(taken, taken_at))
        return unclaimed

    def _ask(self, ours: Mapping[int, PoppedId]) -> dict[int, Claim]:
        asked = False
        queues: dict[str, list[int]] = {}
        # Whoever asks again takes a claim of this process for its own, which may be the main thread's: what that one
        # is to claim, or has claimed, is left to it.
        singly = {item.taken.job_id for item in list(self._inbox.singly)}
        for job_id, taken in ours.items():
            if job_id not in singly:
                queues.setdefault(taken.queue, []).append(job_id)
        alone = len(ours) == 1 and self._inbox.is_idle

        def ask(connection: Connection) -> list[Claim]:
            nonlocal asked
            again, asked = asked, True
            # An id may be in any list of Redis, but a job is claimed only for the queue that it is in.
            return [
                claim
                for queue, ids in queues.items()
                for claim in _claim_many(connection, ids, queue, alone=alone, again=again)
            ]

        return {claim.id: claim for claim in self._database.ask(ask)}

    def _held(self, claim: Claim, taken: PoppedId, asked_at: float, taken_at: float) -> ClaimedJob:
        slot = self._inbox.journal.take(claim.id, claim.fencing_token, taken.delivery)
        held = self._inbox.held[claim.id] = ClaimedJob(
            claim,
            asked_at,
            self._heartbeat,
            self._database.url,
            rq_id=taken.rq_id,
            slot=slot,
            taken_at=taken_at,
        )
        self._heartbeat.wake_by(held.lease.beat_at)
        return held

    def _give_back(self, items: Sequence[Item]) -> None:
        """Let other workers have what has been taken and has not begun."""
        if not items:
            return
        held = [item for item in items if isinstance(item, ClaimedJob)]
        queues = {item.claim.id: (item.claim.queue, item.rq_id) for item in held}
        for item in held:
            item.lease.ending = True
        try:
            released = self._database.ask(
                lambda c: leases.release(
                    c, [item.claim.id for item in held], [item.claim.fencing_token for item in held]
                )
            )
            ours = {job.id for job in released}
            self._consumer.give_back(
                [
                    (item.taken.queue, item.taken.rq_id)
                    if isinstance(item, PendingJob)
                    else queues[item.claim.id]
                    for item in items
                    if isinstance(item, PendingJob) or item.claim.id in ours
                ]
            )
        except UnavailableError as error:
            log.debug("%d jobs could not be given back, and will be redelivered: %s", len(items), error)
            self._stores.leave(len(items), error)
        finally:
            self._inbox.singly.difference_update(items)
            for item in held:
                self._inbox.forget(item)


def _claim_many(
    connection: Connection, ids: Sequence[int], queue: str, *, alone: bool, again: bool
) -> list[Claim]:
    try:
        return claims.claim_many(
            connection,
            ids,
            worker=process_name(),
            limits=registry.limits(),
            queue=queue,
            alone=alone,
            again=again,
        )
    except psycopg.DataError as error:
        # A row among them holds what cannot be counted on, and none has been claimed: each is claimed by itself.
        log.warning("%d jobs cannot be claimed together: %s", len(ids), error.diag.message_primary)
        return []
