"""What became of an attempt is written down, under the token of its claim."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import psycopg

from drain.config import process_name
from drain.failpoints import FailurePoint, failpoint
from drain.tables import outcomes, stale
from drain.tables.claims import Claim
from drain.visible import visible
from drain.wording import count, duration
from workers.execution import outcome
from workers.execution.death import Death
from workers.execution.outcome import (
    Deferred,
    Failed,
    Finished,
    GaveUp,
    Interrupted,
    Lost,
    Outcome,
    Recorded,
    Settled,
    Unreadable,
)
from workers.lease.database import Database

log = logging.getLogger(__name__)

_LEASE_RAN_OUT = "its worker died or stalled on the last attempt, and the lease ran out"
_EXPIRED = "its expires_at had passed before a worker could start it"
_NO_REASON = "the job gave up, and gave no reason"
# Pause between an interrupted attempt and the next one: another worker may take the job, and no loop spins.
_INTERRUPTED_SECONDS = 1.0
# Names of jobs of which this process has logged one as finished.
_logged: set[str] = set()


@dataclass(slots=True)
class Recorder:
    """Writes outcomes down.

    Each method returns one word for RQ's own books: finished, retrying, interrupted, deferred, dead, recorded, or
    stale, when somebody else has claimed the job and nothing was changed.

    Attributes:
        database: Where. All methods raise UnavailableError when it stays away; the job is then redelivered.
    """

    database: Database
    _death: Death | None = field(default=None, init=False)

    def record(self, claim: Claim, result: Outcome) -> str:
        """Write down what became of an attempt."""
        if isinstance(result, Settled):
            _tell_of_the_rest(claim, result.rest)
            return "finished"
        try:
            return self._record(claim, result)
        except psycopg.DataError:
            # The database's encoding lacks a character of the texts.
            return self._record(claim, outcome.in_ascii(result))

    def last_death(self) -> Death | None:
        """Return once why the job is dead for which a method has just returned "dead"."""
        # Its exception keeps whatever the job had in its variables.
        death, self._death = self._death, None
        return death

    def bury_unrun(self, claim: Claim) -> str:
        """Give up a job that has expired, or whose attempts are spent."""
        if claim.expired:
            return self._bury(claim, "expired", _EXPIRED, ran=False)
        return self._bury(claim, "lease", _LEASE_RAN_OUT, ran=False)

    def bury_unclaimable(self, job_id: int, error: psycopg.Error) -> str:
        """Give up a job whose row makes each claim of it fail."""
        reason = error.diag.message_primary or str(error).partition("\n")[0]
        explanation = f"it cannot be claimed: {reason}"
        buried = self.database.ask(lambda c: outcomes.bury_unclaimable(c, job_id, explanation))
        if not buried:
            return "refused"
        log.error("job %d is dead: %s", job_id, explanation, extra={"event": "job_dead", "job_id": job_id})
        self._death = Death(job_id, "", explanation)
        return "dead"

    def _record(self, claim: Claim, result: Outcome) -> str:
        match result:
            case Finished():
                return self._finish(claim)
            case Failed():
                is_interrupted = isinstance(result, Interrupted)
                return (self._interrupt if is_interrupted else self._retry_or_bury)(claim, result)
            case Deferred():
                return self._defer(claim, result)
            case GaveUp():
                told = result.error["message"] or _NO_REASON
                return self._bury(claim, "gave up", told, result.error, cause=result.cause)
            case Unreadable(explanation):
                return self._bury(claim, "unreadable", explanation)
            case Recorded() | Settled():
                return self._recorded_elsewhere(claim, result)

    def _recorded_elsewhere(self, claim: Claim, result: Recorded | Settled) -> str:
        if not isinstance(result, Recorded) or result.dead is None:
            return "recorded"
        self._death = Death(claim.id, claim.queue, result.dead)
        return "dead"

    def _finish(self, claim: Claim) -> str:
        try:
            done = self.database.ask(lambda c: outcomes.finish(c, claim.id, claim.fencing_token))
        except psycopg.IntegrityError:
            # Ids are given out once, unless somebody set the sequence back.
            return self._bury(claim, "unreadable", "it ran, but another job with its id is finished already")
        return "finished" if done else self._stale(claim, "finished")

    def _defer(self, claim: Claim, deferred: Deferred) -> str:
        waits = self.database.ask(lambda c: outcomes.defer(c, claim.id, claim.fencing_token, deferred.when))
        return "deferred" if waits else self._stale(claim, "deferred")

    def _interrupt(self, claim: Claim, interrupted: Failed) -> str:
        times = self.database.ask(
            lambda c: outcomes.interrupt(
                c, claim.id, claim.fencing_token, _INTERRUPTED_SECONDS, interrupted.error
            )
        )
        if times is None:
            return self._retry_or_bury(claim, outcome.too_often(interrupted, outcomes.MOST_INTERRUPTIONS))
        log.warning(
            "job %d (%s) was interrupted on attempt %d, which does not count, and will run again: %s",
            claim.id,
            visible(claim.job_name),
            claim.attempts,
            visible(interrupted.line),
            extra={"event": "job_interrupted", "job_id": claim.id, "tag": claim.tag, "interruptions": times},
        )
        return "interrupted"

    def _retry_or_bury(self, claim: Claim, failed: Failed) -> str:
        if claim.max_attempts and claim.attempts >= claim.max_attempts:
            explanation = f"failed {count(claim.attempts, 'time')}; last: {failed.line}"
            wanted = "nothing" if isinstance(failed, Lost) else "dead"
            return self._bury(claim, "failed", explanation, failed.error, wanted=wanted, cause=failed.cause)
        wait = outcome.wait_seconds(claim.attempts, failed.options)
        waits = self.database.ask(
            lambda c: outcomes.retry_later(c, claim.id, claim.fencing_token, wait, failed.error)
        )
        if not waits:
            return self._stale(claim, "nothing" if isinstance(failed, Lost) else "retrying")
        log.warning(
            "job %d (%s) failed on attempt %d, next one in %s: %s",
            *(claim.id, visible(claim.job_name), claim.attempts, duration(wait), visible(failed.line)),
            extra={"event": "job_failed", "job_id": claim.id, "tag": claim.tag},
        )
        return "retrying"

    def _bury(
        self,
        claim: Claim,
        reason: str,
        explanation: str,
        error: dict[str, str] | None = None,
        *,
        ran: bool = True,
        wanted: str = "dead",
        cause: BaseException | None = None,
    ) -> str:
        buried = self.database.ask(
            partial(
                outcomes.bury_claimed,
                job_id=claim.id,
                token=claim.fencing_token,
                reason=reason,
                explanation=explanation,
                error=error,
                ran=ran,
            )
        )
        if not buried:
            return self._stale(claim, wanted)
        log.error(
            "job %d (%s) is dead: %s",
            *(claim.id, visible(claim.job_name), visible(explanation)),
            extra={"event": "job_dead", "job_id": claim.id, "tag": claim.tag},
        )
        self._death = Death(claim.id, claim.queue, explanation, (error or {}).get("traceback", ""), cause)
        return "dead"

    def _stale(self, claim: Claim, wanted: str) -> str:
        """The token is not the current one any more: leave a row about it, and change nothing."""
        # Unless it is this very attempt that finished the job, in a commit whose answer never came.
        if self.database.ask(lambda c: outcomes.is_finished(c, claim.id, claim.fencing_token)):
            return "finished"
        log.warning(
            "job %d: the outcome of attempt %d came too late and was not recorded",
            *(claim.id, claim.attempts),
            extra={"event": "stale_finish", "job_id": claim.id, "token": claim.fencing_token},
        )
        failpoint(FailurePoint.REFUSED)
        self.database.ask(
            lambda c: stale.record(c, claim.id, claim.fencing_token, worker=process_name(), outcome=wanted)
        )
        return "stale"


def is_news(claims: Sequence[Claim]) -> bool:
    """Whether `log_finished` would log one of these: asked first, it costs a worker some 20 nanoseconds a job."""
    return log.isEnabledFor(logging.DEBUG) or not {claim.job_name for claim in claims} <= _logged


def log_finished(finished: Sequence[tuple[Claim, float]], more: str = "") -> None:
    """Log finished jobs: the first of each name in this process at INFO, the others at DEBUG.

    Args:
        finished: Each with the seconds that it took.
        more: How to see the others, said only where they are not logged.
    """
    is_verbose = log.isEnabledFor(logging.DEBUG)
    for claim, seconds in finished:
        is_first = claim.job_name not in _logged
        _logged.add(claim.job_name)
        log.log(
            logging.INFO if is_first else logging.DEBUG,
            "job %d (%s) of queue %s finished in %s%s",
            *(claim.id, visible(claim.job_name), claim.queue, duration(seconds), "" if is_verbose else more),
            extra={"event": "job_finished", "job_id": claim.id, "seconds": round(seconds, 6)},
        )


def _tell_of_the_rest(claim: Claim, rest: Outcome) -> None:
    """Log what a job wanted that was finished already, since nobody will see it in a table."""
    match rest:
        case Failed(error) | GaveUp(error):
            told = error["traceback"]
        case Deferred():
            told = "it asked to be run later"
        case _:
            return
    log.error(
        "job %d (%s) is finished, and what it did after its transaction failed: %s",
        *(claim.id, visible(claim.job_name), visible(told, lines=True)),
        extra={"event": "failed_after_finish", "job_id": claim.id, "tag": claim.tag},
    )
