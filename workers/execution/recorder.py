"""The only writer of outcomes, which commits before anything is logged."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from drain.failpoints import FailurePoint, failpoint
from drain.formatting import duration, visible
from drain.tables import cancellations, finishes, outcomes
from drain.tables.claims import Claim
from drain.workers.execution.death import Death
from drain.workers.execution.decision import (
    CANCELLED,
    DEAD,
    FINISHED,
    REFUSED,
    STALE,
    Decision,
    LogLine,
    decide,
    decide_unrun,
)
from drain.workers.execution.outcome import AlreadyFinished, Failed, Outcome, describe, in_ascii
from drain.workers.lease.database import Database

log = logging.getLogger(__name__)

# Job names whose first finish is logged.
_logged: set[str] = set()


@dataclass(slots=True)
class Recorder:
    """Records outcomes under the fence of their claims.

    Methods return a word for RQ's records. If PostgreSQL stays unavailable they raise UnavailableError, and the job is
    redelivered.
    """

    database: Database
    _death: Death | None = field(default=None, init=False)

    def record(self, claim: Claim, result: Outcome) -> str:
        """Record an attempt's outcome."""
        try:
            return self._apply(claim, decide(claim, result))
        except psycopg.DataError:
            # The database's encoding lacks a character.
            return self._apply(claim, decide(claim, in_ascii(result)))
        except psycopg.errors.InsufficientPrivilege as error:
            # Rights of version 5 cannot add a result to a finished job.
            if not isinstance(result, AlreadyFinished):
                raise
            return self._apply(claim, decide(claim, AlreadyFinished(Failed(describe(error)))))

    @property
    def death(self) -> Death | None:
        """Death just recorded, until `last_death`."""
        return self._death

    def last_death(self) -> Death | None:
        """Return that death once: its exception holds the job's variables."""
        death, self._death = self._death, None
        return death

    def bury_unrun(self, claim: Claim) -> str:
        """Bury an expired job, or one without attempts left."""
        return self._apply(claim, decide_unrun(claim))

    def bury_unclaimable(self, job_id: int, error: psycopg.Error) -> str:
        """Bury a job whose row makes every claim fail; "refused" if claimed after all."""
        reason = error.diag.message_primary or str(error).partition("\n")[0]
        explanation = f"it cannot be claimed: {reason}"
        buried = self.database.ask(lambda c: outcomes.bury_unclaimable(c, job_id, explanation))
        if not buried:
            return REFUSED
        log.error("job %d is dead: %s", job_id, explanation, extra={"event": "job_dead", "job_id": job_id})
        self._death = Death(job_id, "", explanation)
        return DEAD

    def _apply(self, claim: Claim, decision: Decision) -> str:
        try:
            answer = self._execute(claim, decision)
        except psycopg.IntegrityError:
            if decision.if_forbidden is None:
                raise
            return self._apply(claim, decide(claim, decision.if_forbidden))
        # 0 is an answer: the leader had redelivered the job, so no interruption was counted.
        if answer is not None and answer is not False:
            self._death = decision.death
            if decision.log is not None:
                _log(decision.log, answer)
            return decision.word
        if decision.otherwise is not None:
            return self._apply(claim, decide(claim, decision.otherwise))
        return self._record_stale(claim, decision.stale_outcome)

    def _execute(self, claim: Claim, decision: Decision) -> object:
        statement, values = decision.statement, decision.values
        if statement is None:
            return True
        return self.database.ask(lambda c: statement(c, claim, **values))

    def _record_stale(self, claim: Claim, wanted: str) -> str:
        # Unless this attempt finished the job, in a commit whose answer was lost.
        if self.database.ask(lambda c: finishes.is_finished(c, claim)):
            return FINISHED
        if self.database.ask(lambda c: cancellations.confirm_end(c, claim)):
            log.info(
                "job %d (%s) was cancelled during attempt %d",
                claim.id,
                visible(claim.job_name),
                claim.attempts,
                extra={"event": "job_cancelled", "job_id": claim.id, "tag": claim.tag},
            )
            return CANCELLED
        log.warning(
            "job %d: the outcome of attempt %d came too late and was not recorded",
            claim.id,
            claim.attempts,
            extra={"event": "stale_finish", "job_id": claim.id, "token": claim.fencing_token},
        )
        failpoint(FailurePoint.REFUSED)
        self.database.ask(lambda c: outcomes.record_stale(c, claim, wanted))
        return STALE


def _log(line: LogLine, answer: object) -> None:
    extra = line.extra if line.answer is None else {**line.extra, line.answer: answer}
    log.log(line.level, line.text, *line.arguments, extra=extra)


def is_news(claims: Sequence[Claim]) -> bool:
    """Return True if `log_finished` would log one of these; 20 ns per job."""
    return log.isEnabledFor(logging.DEBUG) or not {claim.job_name for claim in claims} <= _logged


def log_finished(finished: Sequence[tuple[Claim, float]], more: str = "") -> None:
    """Log finished jobs: the first of each name at INFO, others at DEBUG.

    Args:
        more: Advice while DEBUG is off.
    """
    is_verbose = log.isEnabledFor(logging.DEBUG)
    for claim, seconds in finished:
        is_first = claim.job_name not in _logged
        _logged.add(claim.job_name)
        log.log(
            logging.INFO if is_first else logging.DEBUG,
            "job %d (%s) of queue %s finished in %s%s",
            claim.id,
            visible(claim.job_name),
            claim.queue,
            duration(seconds),
            "" if is_verbose else more,
            extra={"event": "job_finished", "job_id": claim.id, "seconds": round(seconds, 6)},
        )
