"""Crash recovery of a dead process' jobs by its successor."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from drain.config import Settings
from drain.errors import UnavailableError
from drain.jobs import registry
from drain.tables import cancellations, claims, finishes, leases
from drain.tables.leases import Released
from drain.wire import Consumer, tracked_id
from drain.workers.errors import WorkerDiedError, WorkerStoppedError
from drain.workers.execution.outcome import Failed, Finished, Interrupted, describe
from drain.workers.execution.recorder import Recorder
from drain.workers.execution.rq_books import RQBooks
from drain.workers.handover.journal import Entry, Journal, Progress
from drain.workers.lease.database import Database
from drain.workers.stores import Stores

log = logging.getLogger(__name__)


def recover(
    journal: Journal,
    settings: Settings,
    death: str,
    *,
    stopped: bool = False,
    stores: Stores | None = None,
    books: RQBooks | None = None,
) -> None:
    """Finish ended jobs, charge running ones with a failed attempt, and return the others.

    Without a store, the rest is redelivered later.

    Args:
        journal: Of the dead process; empty afterwards.
        stopped: It was killed for not stopping in time: attempts do not count.
        books: Without, RQ's records are written at once, without exception handlers.
    """
    entries = journal.entries()
    database = Database(settings.database_url, stores=stores or Stores())
    consumer = Consumer(settings.required_redis_url, settings.namespace, ())
    recorder = Recorder(database)
    notes = RQBooks() if books is None else books
    noted: set[int] = set()
    try:
        entries = [_settled(entry, database) for entry in entries]
        for entry in entries:
            if entry.progress is not Progress.CLAIMED:
                _record(entry, recorder, death, stopped=stopped)
                dead = recorder.last_death()
                if dead is not None and notes.died(
                    tracked_id(settings.namespace, entry.fence.id, entry.delivery), dead
                ):
                    noted.add(entry.fence.id)
                journal.forget([entry])
        left = [entry for entry in entries if entry.fence.id not in noted]
        _give_back(left, database, consumer, settings.namespace, notes)
        if books is None:
            notes.write_alone(settings.required_redis_url)
    except UnavailableError as error:
        database.stores.leave(len(journal.entries()), error)
    finally:
        journal.forget(entries)
        consumer.close()
        database.close()


def _settled(entry: Entry, database: Database) -> Entry:
    """Ask whether a commit has lasted; if not, the job has not run."""
    if entry.progress is not Progress.COMMITTED:
        return entry
    finished = database.ask(lambda c: finishes.is_finished(c, entry.fence))
    return entry._replace(progress=Progress.FINISHED if finished else Progress.CLAIMED)


def _record(entry: Entry, recorder: Recorder, death: str, *, stopped: bool) -> None:
    claim = recorder.database.ask(lambda c: claims.read_claim(c, entry.fence, registry.limits()))
    # Recorded by the process, or cancelled.
    if claim is None:
        recorder.database.ask(lambda c: cancellations.confirm_ends(c, [entry.fence]))
        return
    if entry.progress is Progress.FINISHED:
        recorder.record(claim, Finished())
    else:
        kind, raised = (Interrupted, WorkerStoppedError) if stopped else (Failed, WorkerDiedError)
        error = describe(raised(f"its worker process {death}"))
        recorder.record(claim, kind(error, registry.options(claim.job_name)))


def _give_back(
    entries: Sequence[Entry], database: Database, consumer: Consumer, namespace: str, books: RQBooks
) -> None:
    claimed = (entry for entry in entries if entry.progress is Progress.CLAIMED)
    waiting = sorted(claimed, key=lambda entry: entry.delivery)
    released: list[Released] = []
    if waiting:
        released = database.ask(lambda c: leases.release(c, [entry.fence for entry in waiting]))
    # A thin delivery loses its mark, which the journal lacks: `drain work` runs both.
    consumer.give_back([(job.queue, tracked_id(namespace, job.id, job.delivery)) for job in released])
    given_back = {job.id for job in released}
    finished: list[str] = []
    others: list[str] = []
    for entry in entries:
        if entry.fence.id not in given_back:
            rq_id = tracked_id(namespace, entry.fence.id, entry.delivery)
            (finished if entry.progress is Progress.FINISHED else others).append(rq_id)
    for rq_id in consumer.clear(finished):
        # RQ only compares it with a dependent's queue.
        books.finished(rq_id, "")
    consumer.clear_unless_awaited(others)
