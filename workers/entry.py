"""The one function that every pushed RQ job calls: claim in Postgres, run, finish.

It needs nothing but DRAIN_DATABASE_URL and DRAIN_JOBS, so an unmodified `rq worker` does. A worker that forks for each
job (RQ's default) had better `load` before it does: `rq worker --config drain.rq_settings`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from time import monotonic

from drain.config import Settings, process_name
from drain.crashpoints import CrashPoint, reached
from drain.postgres import Connection
from drain.transitions import inflight
from drain.transitions.inflight import Claim
from workers import attempt, registry
from workers.completion import load_sessions
from workers.current import CurrentJob
from workers.database import Database
from workers.keeper import Keeper
from workers.lease import Lease
from workers.outcome import Outcome
from workers.recording import Recorder

log = logging.getLogger(__name__)

Run = Callable[[CurrentJob], Outcome]


def execute(job_id: int, installation: str | None = None) -> str:
    """Claim the job, run it, and record what became of it.

    Args:
        job_id: The job.
        installation: UUID of the installation that pushed it, which must be that of the database; None where the
            delivery does not say.

    Returns:
        One word for RQ's own books: finished, retrying, deferred, dead, stale, or refused.

    Raises:
        ConfigError: DRAIN_DATABASE_URL or DRAIN_JOBS is missing or wrong. The job stays as it is.
        UnavailableError: PostgreSQL stayed away. The job is redelivered once it is back.
    """
    return _worker().execute(job_id, installation=installation)


class Worker:
    """One process that executes jobs one by one, with a connection of its own.

    Args:
        settings: Where the database is.
    """

    def __init__(self, settings: Settings) -> None:
        self.database = Database(settings.database_url)
        self._recorder = Recorder(self.database)

    def execute(self, job_id: int, run: Run = attempt.run, installation: str | None = None) -> str:
        """As the function of this name; `run` makes the attempt."""
        reached(CrashPoint.POPPED)
        asked_at = monotonic()
        claim = self._claim(job_id, installation)
        if claim is None:
            log.info("job %d is not to be claimed: claimed, finished or not due", job_id)
            return "refused"
        reached(CrashPoint.CLAIMED)
        if claim.expired or claim.is_spent:
            return self._recorder.bury_unrun(claim)
        keeper = Keeper(self.database.url, lambda: [lease])
        lease = Lease(claim, registry.options(claim.job_name), asked_at, keeper)
        try:
            result = run(CurrentJob(claim, lease, self.database.installation, self.database.url))
        finally:
            keeper.stop()
        reached(CrashPoint.RAN)
        word = self._recorder.record(claim, result)
        reached(CrashPoint.RECORDED)
        return word

    def close(self) -> None:
        """Close the connection."""
        self.database.close()

    def _claim(self, job_id: int, installation: str | None = None) -> Claim | None:
        asked = False

        def ask(connection: Connection) -> Claim | None:
            nonlocal asked
            again, asked = asked, True
            return inflight.claim(
                connection,
                job_id,
                worker=process_name(),
                limits=registry.limits(),
                installation=installation,
                again=again,
            )

        return self.database.ask(ask)


@cache
def load() -> Settings:
    """Read the settings, and import the modules with jobs, once: processes that are forked afterwards need not.

    Opens no connection and starts no thread, which a fork would not survive.

    Raises:
        ConfigError: DRAIN_DATABASE_URL or DRAIN_JOBS is missing or wrong, or a module does not import.
    """
    settings = Settings.from_environment()
    registry.load(settings.jobs)
    load_sessions()
    return settings


_workers: dict[int, Worker] = {}


def _worker() -> Worker:
    """The worker of this process: a forked child must not share its parent's connection."""
    worker = _workers.get(os.getpid())
    if worker is None:
        settings = load()
        _workers.clear()
        worker = _workers[os.getpid()] = Worker(settings)
    return worker
