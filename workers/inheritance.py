"""What a worker process has left behind that was killed: settled by the one that takes its place."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from drain.config import Settings
from drain.errors import UnavailableError
from drain.transitions import inflight
from drain.wire import Intake, tracked_id
from workers import registry
from workers.database import Database
from workers.errors import WorkerDiedError
from workers.journal import Entry, Journal, Progress
from workers.outcome import Failed, Finished, describe
from workers.recording import Recorder

log = logging.getLogger(__name__)


def settle(journal: Journal, settings: Settings, death: str) -> None:
    """Record what had ended, charge what was running, and give back what had not begun.

    What cannot be settled, since a store is away, is left to redelivery.

    Args:
        journal: Of the process that has died; it holds nothing afterwards.
        settings: Where.
        death: How it died, in words.
    """
    entries = journal.entries()
    database = Database(settings.database_url)
    intake = Intake(settings.required_redis_url, settings.namespace, ())
    try:
        _give_back([e for e in entries if e.progress is Progress.TAKEN], database, intake, settings.namespace)
        recorder = Recorder(database)
        for entry in entries:
            claim = None
            if entry.progress is not Progress.TAKEN:
                claim = database.ask(
                    lambda c, e=entry: inflight.claimed(c, e.job_id, e.token, registry.limits())  # type: ignore[misc]
                )
            if claim is None:
                continue
            if entry.progress is Progress.FINISHED:
                recorder.record(claim, Finished())
            else:
                error = describe(WorkerDiedError(f"its worker process {death}"))
                recorder.record(claim, Failed(error, registry.options(claim.job_name)))
    except UnavailableError as error:
        log.warning("%d jobs of a process that died are left to redelivery: %s", len(entries), error)
    finally:
        journal.forget(entries)
        intake.close()
        database.close()


def _give_back(entries: Sequence[Entry], database: Database, intake: Intake, namespace: str) -> None:
    if not entries:
        return
    released = database.ask(
        lambda c: inflight.release(c, [e.job_id for e in entries], [e.token for e in entries])
    )
    intake.give_back([(job.queue, tracked_id(namespace, job.id, job.delivery)) for job in released])
