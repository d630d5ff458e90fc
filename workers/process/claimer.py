"""Claims of fetched jobs, and their release."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from time import monotonic

import psycopg

from drain.config import process_name
from drain.database.postgres import Connection
from drain.errors import UnavailableError
from drain.failpoints import FailurePoint, failpoint
from drain.jobs import registry
from drain.tables import claims, leases
from drain.tables.claims import Claim
from drain.wire import Consumer, PoppedId
from drain.workers.lease.database import Database
from drain.workers.lease.heartbeat import Heartbeat
from drain.workers.process.async_loop import AsyncLoop
from drain.workers.process.inbox import Inbox
from drain.workers.process.job_threads import JobThreads
from drain.workers.process.jobs import ClaimedJob, Item, PendingJob
from drain.workers.process.stale_deliveries import OvertakenDeliveries

log = logging.getLogger(__name__)


class Claimer:
    """Claims jobs into the inbox; for the fetcher's thread and connection only."""

    def __init__(
        self,
        inbox: Inbox,
        consumer: Consumer,
        database: Database,
        heartbeat: Heartbeat,
        loop: AsyncLoop,
        threads: JobThreads,
        overtaken: OvertakenDeliveries,
    ) -> None:
        self._inbox = inbox
        self._consumer = consumer
        self._database = database
        self._heartbeat = heartbeat
        self._loop = loop
        self._threads = threads
        self._overtaken = overtaken

    def claim(self, popped: Sequence[PoppedId]) -> None:
        """Claim jobs and let them run; a job that must run alone is claimed by its runner.

        Raises:
            UnavailableError: PostgreSQL is unavailable, and the deliveries are back in their lists; or Redis is.
        """
        failpoint(FailurePoint.POPPED)
        asked_at = monotonic()
        # A job delivered here twice runs once.
        known = dict(self._inbox.claimed)
        ours = {each.job_id: each for each in popped if each.job_id is not None and each.job_id not in known}
        try:
            won = self._ask(ours) if ours else {}
            missing = {job_id: each.delivery for job_id, each in ours.items() if job_id not in won}
            left = self._database.ask(lambda c: claims.left_to_claim(c, missing)) if missing else set()
        except BaseException:
            # A claim whose answer was lost expires.
            self._consumer.give_back([(each.queue, each.rq_id) for each in popped])
            raise
        failpoint(FailurePoint.CLAIMED)
        waits_since = monotonic()
        items: list[Item] = []
        refused: list[PoppedId] = []
        for each in popped:
            claim = won.get(each.job_id) if each.job_id is not None else None
            if each.job_id is None:
                self._inbox.plain.add(self._inbox.add_pending(each, waits_since))
            elif claim is not None and ours[claim.id] is each:
                items.append(self._add(claim, each, asked_at, waits_since))
            elif (each.job_id in left and ours.get(each.job_id) is each) or (
                # Its wait ended before this process forgot the attempt: claimed again when it runs.
                each.job_id in known and known[each.job_id].lease.ending
            ):
                items.append(self._inbox.add_pending(each, waits_since))
            else:
                refused.append(each)
        # Before any store is asked again, or jobs with extended leases might never run.
        in_main_thread, async_jobs, for_threads = _by_runner(items, has_threads=self._inbox.has_threads)
        self._inbox.accept(in_main_thread, async_jobs, for_threads)
        self._threads.wake(len(for_threads))
        if async_jobs:
            self._loop.wake()
        if refused:
            self._sort_out(refused, waits_since)

    def _add(self, claim: Claim, popped: PoppedId, asked_at: float, waits_since: float) -> ClaimedJob:
        slot = self._inbox.journal.add(claim, popped.delivery)
        added = ClaimedJob(
            claim,
            asked_at,
            self._heartbeat,
            self._database.url,
            rq_id=popped.rq_id,
            slot=slot,
            waits_since=waits_since,
        )
        self._inbox.add_claimed(added)
        self._heartbeat.wake_by(added.lease.beat_at)
        return added

    def _sort_out(self, refused: Sequence[PoppedId], waits_since: float) -> None:
        text = "%d jobs were not claimed: claimed by another worker, delivered again or finished"
        log.debug(text, len(refused), extra={"event": "not_claimed"})
        plain, overtaken = self._consumer.sort_unclaimed(refused)
        for each in plain:
            self._inbox.plain.add(self._inbox.add_pending(each, waits_since))
        self._overtaken.add(overtaken)

    def _ask(self, ours: Mapping[int, PoppedId]) -> dict[int, Claim]:
        asked = False
        queues: dict[str, dict[int, int]] = {}
        # A repeated statement returns claims of this process; the main thread keeps its own.
        pending = {item.popped.job_id for item in list(self._inbox.pending)}
        for job_id, popped in ours.items():
            if job_id not in pending:
                queues.setdefault(popped.queue, {})[job_id] = popped.delivery
        alone = len(ours) == 1 and not self._inbox.has_tracked

        def ask(connection: Connection) -> list[Claim]:
            nonlocal asked
            again, asked = asked, True
            # Ids may be in any list, but a job is claimed only for its own queue.
            return [
                claim
                for queue, deliveries in queues.items()
                for claim in _claim_many(connection, deliveries, queue, alone=alone, again=again)
            ]

        return {claim.id: claim for claim in self._database.ask(ask)}

    def give_back(self, items: Sequence[Item]) -> None:
        """Return jobs that have not begun."""
        if not items:
            return
        claimed = [item for item in items if isinstance(item, ClaimedJob)]
        for item in claimed:
            item.lease.ending = True
        try:
            # Plain jobs need no PostgreSQL.
            released = self._release(claimed) if claimed else set[int]()
            self._consumer.give_back(
                [
                    (item.popped.queue, item.popped.rq_id)
                    if isinstance(item, PendingJob)
                    else (item.claim.queue, item.rq_id)
                    for item in items
                    if isinstance(item, PendingJob) or item.claim.id in released
                ]
            )
            # Those of cancelled jobs, and of jobs claimed elsewhere since.
            self._consumer.clear_unless_awaited(
                [item.rq_id for item in claimed if item.claim.id not in released]
            )
        except UnavailableError as error:
            text = "%d jobs could not be given back, and will be redelivered: %s"
            log.debug(text, len(items), error, extra={"event": "not_given_back"})
            self._database.stores.leave(len(items), error)
        finally:
            self._inbox.remove_all(items)

    def _release(self, claimed: Sequence[ClaimedJob]) -> set[int]:
        held = [item.claim for item in claimed]
        return {job.id for job in self._database.ask(lambda c: leases.release(c, held))}


def _by_runner(
    items: Sequence[Item], *, has_threads: bool
) -> tuple[list[Item], list[ClaimedJob], list[ClaimedJob]]:
    in_main_thread: list[Item] = []
    async_jobs: list[ClaimedJob] = []
    for_threads: list[ClaimedJob] = []
    for item in items:
        if isinstance(item, PendingJob):
            in_main_thread.append(item)
        elif item.job is not None and item.job.runs_in_loop:
            async_jobs.append(item)
        # An isolated job is awaited with signals, which only the main thread gets.
        elif has_threads and not item.options.isolated:
            for_threads.append(item)
        else:
            in_main_thread.append(item)
    return in_main_thread, async_jobs, for_threads


def _claim_many(
    connection: Connection, deliveries: Mapping[int, int], queue: str, *, alone: bool, again: bool
) -> list[Claim]:
    try:
        return claims.claim_many(
            connection,
            deliveries,
            worker=process_name(),
            limits=registry.limits(),
            queue=queue,
            alone=alone,
            again=again,
        )
    except psycopg.DataError as error:
        # One row fails the statement, so none was claimed: the main thread claims them singly.
        log.warning(
            "%d jobs cannot be claimed together: %s",
            len(deliveries),
            error.diag.message_primary,
            extra={"event": "not_claimed_together"},
        )
        return []
