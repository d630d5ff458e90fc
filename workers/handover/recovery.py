"""What a worker process has left behind that was killed: settled by the one that takes its place."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from drain.config import Settings
from drain.errors import UnavailableError
from drain.jobs import registry
from drain.tables import claims, leases
from drain.tables.leases import Released
from drain.wire import Consumer, tracked_id
from workers.errors import WorkerDiedError, WorkerStoppedError
from workers.execution.outcome import Failed, Finished, Interrupted, describe
from workers.execution.recorder import Recorder
from workers.execution.rq_books import RQBooks
from workers.handover.journal import Entry, Journal, Progress
from workers.lease.database import Database
from workers.stores import Stores

log = logging.getLogger(__name__)


def settle(
    journal: Journal,
    settings: Settings,
    death: str,
    *,
    stopped: bool = False,
    stores: Stores | None = None,
    books: RQBooks | None = None,
) -> None:
    """Record what had ended, charge what was running, and give back what had not begun.

    What cannot be settled, since a store is away, is left to redelivery.

    Args:
        journal: Of the process that has died; it holds nothing afterwards.
        settings: Where.
        death: How it died, in words.
        stores: Where is said whether PostgreSQL answers.
        stopped: Its supervisor killed it, for it went on after it had been told to stop: what ran does not count.
        books: What RQ is to be told; without one RQ is told at once, and no exception handler is called.
    """
    entries = journal.entries()
    database = Database(settings.database_url, stores=stores or Stores())
    consumer = Consumer(settings.required_redis_url, settings.namespace, ())
    recorder = Recorder(database)
    kept = RQBooks() if books is None else books
    told: set[int] = set()
    try:
        for entry in entries:
            if entry.progress is not Progress.TAKEN:
                _settle_one(entry, recorder, death, stopped=stopped)
                dead = recorder.last_death()
                if dead is not None and kept.died(
                    tracked_id(settings.namespace, entry.job_id, entry.delivery), dead
                ):
                    told.add(entry.job_id)
                journal.forget([entry])
        left = [entry for entry in entries if entry.job_id not in told]
        _give_back(left, database, consumer, settings.namespace, kept)
        if books is None:
            kept.write_alone(settings.required_redis_url)
    except UnavailableError as error:
        database.stores.leave(len(journal.entries()), error)
    finally:
        journal.forget(entries)
        consumer.close()
        database.close()


def _settle_one(entry: Entry, recorder: Recorder, death: str, *, stopped: bool) -> None:
    claim = recorder.database.ask(lambda c: claims.claimed(c, entry.job_id, entry.token, registry.limits()))
    # Nobody knows it any more if it has been recorded.
    if claim is None:
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
    taken = (entry for entry in entries if entry.progress is Progress.TAKEN)
    waiting = sorted(taken, key=lambda entry: entry.delivery)
    released: list[Released] = []
    if waiting:
        ids, tokens = [entry.job_id for entry in waiting], [entry.token for entry in waiting]
        released = database.ask(lambda c: leases.release(c, ids, tokens))
    consumer.give_back([(job.queue, tracked_id(namespace, job.id, job.delivery)) for job in released])
    given_back = {job.id for job in released}
    finished: list[str] = []
    others: list[str] = []
    for entry in entries:
        if entry.job_id not in given_back:
            rq_id = tracked_id(namespace, entry.job_id, entry.delivery)
            (finished if entry.progress is Progress.FINISHED else others).append(rq_id)
    for rq_id in consumer.clear(finished):
        # RQ asks for the queue only to know whether a dependent's is the same.
        books.finished(rq_id, "")
    consumer.clear_unless_awaited(others)
