"""The one door to the tables for an outcome: it executes what `decision` has decided, under the fence of the claim.

The statement is committed before anything is logged or returned. An outcome whose claim is stale changes nothing but
`stale_finishes`.
"""

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

# Names of jobs of which this process has logged one as finished.
_logged: set[str] = set()


@dataclass(slots=True)
class Recorder:
    """Records outcomes, each under the fence of its claim.

    Each method returns the word of the decision for RQ's own books, such as finished, retrying or dead; or stale, if
    another worker has claimed the job and nothing was changed; or cancelled, if the job was cancelled meanwhile.

    Attributes:
        database: Connection to the database of the jobs. All methods raise UnavailableError when PostgreSQL stays away;
            the job is redelivered then.
    """

    database: Database
    _death: Death | None = field(default=None, init=False)

    def record(self, claim: Claim, result: Outcome) -> str:
        """Record what became of an attempt."""
        try:
            return self._apply(claim, decide(claim, result))
        except psycopg.DataError:
            # The database's encoding lacks a character of the texts.
            return self._apply(claim, decide(claim, in_ascii(result)))
        except psycopg.errors.InsufficientPrivilege as error:
            # A role with the rights of version 5 cannot add a result to a finished job.
            if not isinstance(result, AlreadyFinished):
                raise
            return self._apply(claim, decide(claim, AlreadyFinished(Failed(describe(error)))))

    @property
    def death(self) -> Death | None:
        """Death of the job for which a method has just returned "dead", until `last_death` is called."""
        return self._death

    def last_death(self) -> Death | None:
        """Return once why the job is dead for which a method has just returned "dead"."""
        # Its exception keeps whatever the job had in its variables.
        death, self._death = self._death, None
        return death

    def bury_unrun(self, claim: Claim) -> str:
        """Give up a job that has expired, or whose attempts are spent."""
        return self._apply(claim, decide_unrun(claim))

    def bury_unclaimable(self, job_id: int, error: psycopg.Error) -> str:
        """Give up a job whose row makes each claim of it fail; "refused" if another worker has claimed it after all."""
        reason = error.diag.message_primary or str(error).partition("\n")[0]
        explanation = f"it cannot be claimed: {reason}"
        buried = self.database.ask(lambda c: outcomes.bury_unclaimable(c, job_id, explanation))
        if not buried:
            return REFUSED
        log.error("job %d is dead: %s", job_id, explanation, extra={"event": "job_dead", "job_id": job_id})
        self._death = Death(job_id, "", explanation)
        return DEAD

    def _apply(self, claim: Claim, decision: Decision) -> str:
        """Execute a decision; the one place where an outcome is written and a stale claim is noticed."""
        try:
            answer = self._execute(claim, decision)
        except psycopg.IntegrityError:
            if decision.if_forbidden is None:
                raise
            return self._apply(claim, decide(claim, decision.if_forbidden))
        # 0 is an answer: no interruption was counted, since the leader had redelivered the job already.
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
        """Record that an outcome came too late: the claim is no longer the current one, and nothing is changed."""
        # Unless this very attempt has finished the job, in a commit whose answer never came.
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
    """Return whether `log_finished` would log one of these; asked first, it costs some 20 nanoseconds a job."""
    return log.isEnabledFor(logging.DEBUG) or not {claim.job_name for claim in claims} <= _logged


def log_finished(finished: Sequence[tuple[Claim, float]], more: str = "") -> None:
    """Log finished jobs: the first of each name in this process at INFO, the others at DEBUG.

    Args:
        finished: Each with the seconds that it took.
        more: Advice on how to see the other lines, logged only while they are not.
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
