"""Stack of a running job, requested from its worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from drain.database.postgres import Connection
from drain.errors import DrainError
from drain.formatting import clock, duration, visible
from drain.read import claimed, queries
from drain.read.tracebacks import calls_before_the_job
from drain.wire.live_workers import LiveWorker, LiveWorkers
from drain.wire.stacks import StackQuestions

PATIENCE_SECONDS = 5.0
# Heartbeats come every 15 seconds.
_SILENT_SECONDS = 40.0
# Per answer, and in characters.
_MOST_CALLS, _LONGEST_TEXT = 500, 1000
_ADVICE = "`py-spy dump --pid {pid}` on {host} reads the stack from outside"


class Call(NamedTuple):
    """Call of a job, without values."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class JobStack:
    """Stack of a running job.

    Attributes:
        place: Its thread or process.
        calls: Innermost last.
        beside: The event loop's calls while it is blocked, which blocks all async jobs.
    """

    claim: dict[str, Any]
    process: str
    place: str
    calls: list[Call]
    beside: list[Call]

    @property
    def outer(self) -> int:
        """Number of calls before the job's own."""
        return calls_before_the_job([call.file for call in self.calls], self.claim["job_name"])

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types."""
        return {
            "id": self.claim["id"],
            "job_name": self.claim["job_name"],
            "queue": self.claim["queue"],
            "attempt": self.claim["attempt"],
            "claimed_at": self.claim["claimed_at"],
            "lease_expires_at": self.claim["lease_expires_at"],
            "process": self.process,
            "place": self.place,
            "outer": self.outer,
            "calls": [call._asdict() for call in self.calls],
            "beside": [call._asdict() for call in self.beside],
        }


class NoStackError(DrainError):
    """The stack cannot be read."""


def running_claim(connection: Connection, job_id: int) -> dict[str, Any]:
    """Read the claim of a job that a worker is running or about to run.

    Raises:
        UnknownJobError: No table has the job.
        NoStackError: The job is not running.
    """
    claim = claimed.claim_of(connection, job_id)
    if claim is None:
        state = queries.job(connection, job_id)["state"]
        raise NoStackError(f"job {job_id} is {state}, not running: see `drain explain {job_id}`")
    if claim["lease_expires_at"] is None or claim["next_run_at"] is not None or not claim["claimed_by"]:
        raise NoStackError(f"job {job_id} is waiting: see `drain explain {job_id}`")
    return claim


def read_stack(
    redis_url: str, namespace: str, claim: dict[str, Any], *, seconds: float = PATIENCE_SECONDS
) -> JobStack:
    """Ask the worker of a `running_claim` where the job is.

    Raises:
        NoStackError: The worker does not answer within `seconds`, or the job is not running.
        UnavailableError: Redis does not answer.
    """
    host, pid = claimed.host_and_pid(claim["claimed_by"])
    with closing(LiveWorkers(redis_url)) as workers:
        found = [each for each in workers.at(claim["queue"], host, pid) if each.is_ours]
    if not found:
        raise NoStackError(_gone(claim))
    with closing(StackQuestions(redis_url, namespace)) as questions:
        return _ask(questions, found[0], claim, seconds)


def _ask(questions: StackQuestions, worker: LiveWorker, claim: dict[str, Any], seconds: float) -> JobStack:
    word, heard = questions.publish(worker.name, claim["id"], claim["fencing_token"])
    if not heard:
        raise NoStackError(_gone(claim))
    answer = questions.wait(word, seconds)
    if answer is None:
        raise NoStackError(_silent(claim, worker, seconds))
    process, place = _text(answer.get("process")), _text(answer.get("place"))
    if (state := answer.get("state")) != "running":
        raise NoStackError(_UNREADABLE.get(str(state), _unknown)(claim, place))
    calls, beside = (list(_calls(answer.get(name))) for name in ("frames", "beside"))
    return JobStack(claim, process, place, calls, beside)


def _gone(claim: dict[str, Any]) -> str:
    host, pid = claimed.host_and_pid(claim["claimed_by"])
    return (
        f"process {pid} on {visible(host)}, which claimed job {claim['id']}, is not listening: it has exited, or is a "
        f"stock `rq worker`, which cannot report stacks; {_lease(claim)}"
    )


def _lease(claim: dict[str, Any]) -> str:
    at: datetime = claim["lease_expires_at"]
    if claim["is_over"]:
        return f"its lease expired at {clock(at)}, and the leader will deliver the job again"
    return f"its lease lasts until {clock(at)}, unless extended"


def _silent(claim: dict[str, Any], worker: LiveWorker, seconds: float) -> str:
    age = (claim["now"] - worker.seen_at).total_seconds() if worker.seen_at else 0.0
    seen = f", and was last seen {duration(age)} ago" if age > _SILENT_SECONDS else ""
    advice = _ADVICE.format(pid=worker.pid, host=visible(worker.host))
    return (
        f"process {worker.pid} on {visible(worker.host)} did not answer within {duration(seconds)}{seen}: it is "
        f"stopped, or its job holds the interpreter in C code; {advice}"
    )


def _unanswered(claim: dict[str, Any], place: str) -> str:
    host, _ = claimed.host_and_pid(claim["claimed_by"])
    where = visible(place) or "its process"
    return (
        f"{where} on {visible(host)}, which runs job {claim['id']} in isolation, did not answer: it has just started "
        f"or ended, or the job holds the interpreter in C code; `py-spy dump` there reads the stack from outside"
    )


def _unknown(claim: dict[str, Any], _place: str) -> str:
    return f"its process is no longer running job {claim['id']}: the job has just ended, or lost its claim"


def _waiting(claim: dict[str, Any], _place: str) -> str:
    return f"job {claim['id']} has not started: it is waiting in its worker process behind another job"


_UNREADABLE: dict[str, Callable[[dict[str, Any], str], str]] = {
    "silent": _unanswered,
    "waiting": _waiting,
    "ended": _unknown,
    "unknown": _unknown,
}


def _calls(frames: object) -> Iterable[Call]:
    """Validate calls: others may write to Redis."""
    for frame in frames[:_MOST_CALLS] if isinstance(frames, list) else ():
        if isinstance(frame, list) and len(frame) == 3 and type(frame[1]) is int:
            yield Call(_text(frame[0]), frame[1], _text(frame[2]))


def _text(value: object) -> str:
    return value[:_LONGEST_TEXT] if isinstance(value, str) else ""
