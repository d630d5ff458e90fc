"""Decisions about ended attempts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

from drain.formatting import count, duration, visible
from drain.jobs.options import JobOptions, backoff_seconds
from drain.tables import finishes, outcomes, waits
from drain.tables.claims import Claim
from drain.workers.execution.death import Death
from drain.workers.execution.outcome import (
    AlreadyFinished,
    Deferred,
    Failed,
    Finished,
    GaveUp,
    Interrupted,
    Lost,
    Outcome,
    Recorded,
    Slowed,
    Unreadable,
    Waiting,
)

log = logging.getLogger(__name__)

# Words in RQ's records and a worker's counters.
FINISHED, RETRYING, INTERRUPTED, DEFERRED, DEAD = "finished", "retrying", "interrupted", "deferred", "dead"
RECORDED, STALE, REFUSED, CANCELLED = "recorded", "stale", "refused", "cancelled"
# In `stale_finishes`: the attempt knew that its job was claimed elsewhere.
_NOTHING = "nothing"

_LEASE_RAN_OUT = "its worker died or stalled on the last attempt, and the lease ran out"
_EXPIRED = "its expires_at had passed before a worker could start it"
_NO_REASON = "the job gave up without a reason"
# Only if the sequence was set back.
_ID_IS_TAKEN = Unreadable("it ran, but another job with its id has already finished")
# Lets another worker take the job, and keeps loops from spinning.
_INTERRUPTED_SECONDS = 1.0

# Called with connection, claim, and the decision's values. None or False: nothing was changed.
Statement = Callable[..., object]


class LogLine(NamedTuple):
    """Line of the log.

    Attributes:
        answer: Field for the statement's answer, if wanted.
    """

    level: int
    text: str
    arguments: tuple[object, ...]
    extra: dict[str, object]
    answer: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Consequence of an ended attempt.

    Attributes:
        word: State of the job, once the row has changed.
        statement: None if already executed.
        log: Logged once the row has changed.
        otherwise: Outcome if the statement changes nothing; None for a stale claim.
        if_forbidden: Outcome if a constraint forbids the statement.
        stale_outcome: For `stale_finishes`.
    """

    word: str
    statement: Statement | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    log: LogLine | None = None
    death: Death | None = None
    otherwise: Outcome | None = None
    if_forbidden: Outcome | None = None
    stale_outcome: str = ""


def decide(claim: Claim, result: Outcome) -> Decision:  # noqa: C901, PLR0911  (one return for each outcome)
    """Decide by an attempt's outcome."""
    match result:
        case AlreadyFinished(rest):
            return _after_finish(claim, rest)
        case Recorded(dead, word):
            return Decision(word) if dead is None else _died_elsewhere(claim, dead)
        case Finished(kept):
            values = {} if kept is None else {"result": kept}
            return Decision(
                FINISHED, finishes.finish, values, if_forbidden=_ID_IS_TAKEN, stale_outcome=FINISHED
            )
        case Interrupted():
            return _interrupt(claim, result)
        case Failed():
            return _retry_or_bury(claim, result)
        case Slowed(when):
            return Decision(
                DEFERRED,
                outcomes.slow_down,
                {"when": when},
                log=_slowed(claim, when),
                stale_outcome=DEFERRED,
            )
        case Deferred(when):
            return Decision(DEFERRED, outcomes.defer, {"when": when}, stale_outcome=DEFERRED)
        case Waiting(name, event, when):
            wait = {"name": name, "event": event, "when": when}
            return Decision(DEFERRED, waits.park, wait, stale_outcome=DEFERRED)
        case GaveUp(error, cause):
            return _bury(claim, "gave up", result.reason or _NO_REASON, error, cause=cause)
        case Unreadable(explanation):
            return _bury(claim, "unreadable", explanation)


def error_of(word: str, result: Outcome) -> str | None:
    """Return the exception type of an attempt that failed with this `word`."""
    match result:
        case Recorded(error=str() as error):
            return error
        case Failed(error) | GaveUp(error) if word in (RETRYING, DEAD):
            return error["type"]
        case Unreadable() if word == DEAD:
            return Unreadable.__name__
    return None


def decide_unrun(claim: Claim) -> Decision:
    """Bury a job that has expired, or has no attempts left."""
    if claim.expired:
        return _bury(claim, "expired", _EXPIRED, ran=False)
    return _bury(claim, "lease", _LEASE_RAN_OUT, ran=False)


def retry_wait_seconds(attempts: int, options: JobOptions | None) -> float:
    """Return the wait after some failed attempts: as listed, or exponential and capped."""
    options = options or JobOptions()
    if options.retry_delays:
        return options.retry_delays[min(attempts, len(options.retry_delays)) - 1]
    return backoff_seconds(options.retry_base_seconds, options.retry_cap_seconds, attempts)


def _retry_or_bury(claim: Claim, failed: Failed) -> Decision:
    if claim.max_attempts and claim.attempts >= claim.max_attempts:
        explanation = f"failed {count(claim.attempts, 'time')}; last: {failed.line}"
        buried = _bury(claim, "failed", explanation, failed.error, cause=failed.cause)
        return replace(buried, stale_outcome=_NOTHING) if isinstance(failed, Lost) else buried
    wait = retry_wait_seconds(claim.attempts, failed.options) if failed.after is None else failed.after
    line = LogLine(
        logging.WARNING,
        "job %d (%s) failed on attempt %d; next one in %s: %s",
        (claim.id, visible(claim.job_name), claim.attempts, duration(wait), visible(failed.line)),
        _extra("job_failed", claim, failed.error),
    )
    return Decision(
        RETRYING,
        outcomes.retry_later,
        {"wait_seconds": wait, "error": failed.error},
        log=line,
        stale_outcome=_NOTHING if isinstance(failed, Lost) else RETRYING,
    )


def _slowed(claim: Claim, when: float | datetime) -> LogLine:
    until = f"until {when}" if isinstance(when, datetime) else f"for {duration(when)}"
    return LogLine(
        logging.INFO,
        "job %d (%s) is rate limited: its key, or its queue if it has none, pauses %s",
        (claim.id, visible(claim.job_name), until),
        _extra("rate_limited", claim),
    )


def _interrupt(claim: Claim, interrupted: Interrupted) -> Decision:
    line = LogLine(
        logging.WARNING,
        "job %d (%s) was interrupted on attempt %d, which does not count, and will run again: %s",
        (claim.id, visible(claim.job_name), claim.attempts, visible(interrupted.line)),
        _extra("job_interrupted", claim),
        answer="interruptions",
    )
    return Decision(
        INTERRUPTED,
        outcomes.interrupt,
        {"wait_seconds": _INTERRUPTED_SECONDS, "error": interrupted.error},
        log=line,
        otherwise=_too_often(interrupted),
    )


def _too_often(interrupted: Interrupted) -> Failed:
    most = outcomes.MOST_INTERRUPTIONS
    why = f"its worker stopped more than the {most} times that do not count (is the grace period too short?)"
    message = f"{why}: {interrupted.error['message']}"
    return Failed({**interrupted.error, "message": message}, interrupted.options, interrupted.cause)


def _bury(
    claim: Claim,
    reason: str,
    explanation: str,
    error: dict[str, str] | None = None,
    *,
    ran: bool = True,
    cause: BaseException | None = None,
) -> Decision:
    line = LogLine(
        logging.ERROR,
        "job %d (%s) is dead: %s",
        (claim.id, visible(claim.job_name), visible(explanation)),
        _extra("job_dead", claim, error),
    )
    return Decision(
        DEAD,
        outcomes.bury_claimed,
        {"reason": reason, "explanation": explanation, "error": error, "ran": ran},
        log=line,
        death=Death(
            claim.id, claim.queue, explanation, (error or {}).get("traceback", ""), cause, claim.job_name
        ),
        stale_outcome=DEAD,
    )


def _died_elsewhere(claim: Claim, explanation: str) -> Decision:
    return Decision(DEAD, death=Death(claim.id, claim.queue, explanation, job_name=claim.job_name))


def _after_finish(claim: Claim, rest: Outcome) -> Decision:
    if isinstance(rest, Finished) and rest.result is not None:
        return Decision(FINISHED, finishes.add_result, {"result": rest.result}, stale_outcome=FINISHED)
    return Decision(FINISHED, log=_failed_after_finish(claim, rest))


def _failed_after_finish(claim: Claim, rest: Outcome) -> LogLine | None:
    """Log a job's wish after its finish; no table shows it."""
    match rest:
        case Failed(error) | GaveUp(error):
            wanted = error["traceback"]
        case Deferred():
            wanted = "it asked to be run later"
        case _:
            return None
    return LogLine(
        logging.ERROR,
        "job %d (%s) is finished, but its code after the transaction failed: %s",
        (claim.id, visible(claim.job_name), visible(wanted, lines=True)),
        _extra("failed_after_finish", claim),
    )


def _extra(event: str, claim: Claim, error: Mapping[str, str] | None = None) -> dict[str, object]:
    extra: dict[str, object] = {"event": event, "job_id": claim.id, "tag": claim.tag}
    # The tables have it; in the log, a failing queue would fill the disk.
    if error and error.get("traceback") and log.isEnabledFor(logging.DEBUG):
        extra["traceback"] = error["traceback"]
    return extra
