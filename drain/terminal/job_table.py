"""Table of jobs of one state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from rich.console import Console
from rich.text import Text

from drain.formatting import duration, relative, visible
from drain.read import queries
from drain.tables.columns import BLOCKED_UNTIL, PARKED_UNTIL
from drain.terminal.fitted_table import Column, fitted_table
from drain.terminal.values import as_text

Job: TypeAlias = dict[str, Any]


def show_jobs(state: str, jobs: Sequence[Job], now: datetime) -> None:
    """Print jobs of one state."""
    console = Console(highlight=False, markup=False)
    console.print(fitted_table(_columns_of(state, console.width), jobs, now, console.width))


def _ago(name: str) -> Callable[[Job, datetime], str]:
    return lambda job, now: relative(job[name], now)


def _field(name: str) -> Callable[[Job, datetime], str]:
    return lambda job, _now: " ".join(visible(as_text(job[name]), lines=True).split())


def _due(job: Job, now: datetime) -> str:
    return "blocked" if job["scheduled_at"] == BLOCKED_UNTIL else relative(job["scheduled_at"], now)


def _earliest(job: Job, now: datetime) -> str:
    return "" if job["starts_at"] is None else relative(job["starts_at"], now)


def _took(job: Job, _now: datetime) -> str:
    if job.get("superseded_by"):
        return ""
    return duration((job["finished_at"] - job["claimed_at"]).total_seconds())


def _tries(job: Job, _now: datetime) -> Text:
    tries = job["attempts"] + bool(job.get("batched"))
    return Text(str(tries), style="yellow" if tries > 1 else "")


def _state(job: Job, now: datetime) -> Text:
    word = queries.inflight_state(job, now)
    return Text(word, style={"stalled": "red", "retrying": "yellow"}.get(word, ""))


def _since(job: Job, now: datetime) -> str:
    is_queued = queries.inflight_state(job, now) == "queued"
    times = (job["moved_at"],) if is_queued else (job["claimed_at"], job["failed_at"])
    # An undone claim may leave no time.
    latest = max(filter(None, times), default=job["moved_at"])
    return duration(max(0.0, (now - latest).total_seconds()))


def _next_try(job: Job, now: datetime) -> str:
    at = job["next_run_at"]
    return "" if at in (None, PARKED_UNTIL) else relative(max(at, now), now)


def _worker(job: Job, _now: datetime) -> str:
    if job.get("superseded_by"):
        return f"superseded by {job['superseded_by']}"
    if not job.get("finished_by") and job.get("lease_expires_at") is None:
        return ""
    name: str = job.get("finished_by") or job.get("claimed_by") or ""
    host, *process = name.split(":")
    return visible(":".join([host.partition(".")[0], *process[:1]]))


def _error(job: Job, _now: datetime) -> Text:
    error = job["last_error"]
    if job["reason"] != "failed" or not isinstance(error, dict):
        return Text(_field("explanation")(job, _now), style="red")
    kind = str(error.get("type", "")).rpartition(".")[2]
    first = str(error.get("message", "")).strip().partition("\n")[0]
    return Text(visible(f"{kind}: {first}" if first else kind), style="red")


_ID = Column("id", _field("id"), is_number=True)
_JOB = Column("job", _field("job_name"), "start", share=1.5, least=15)
_QUEUE = Column("queue", _field("queue"), "end")
_TRIES = Column("attempts", _tries, is_number=True)
_WORKER = Column("worker", _worker, "start")
_ARGUMENTS = (Column("tag", _field("tag"), "end"), Column("arguments", _field("job_args"), "end"))
_SINCE = Column("since", _since)
_PRIORITY = Column("priority", _field("priority"), is_number=True)
_COLUMNS: dict[str, tuple[Column, ...]] = {
    "blocked": (
        *(_ID, Column("staged", _ago("staged_at")), Column("earliest start", _earliest)),
        *(_PRIORITY, _JOB, _QUEUE),
    ),
    "staged": (
        _ID,
        Column("staged", _ago("staged_at")),
        Column("due", _due),
        *(_PRIORITY, _JOB, _QUEUE),
    ),
    "inflight": (
        *(_ID, Column("state", _state), _SINCE, Column("next attempt", _next_try)),
        *(_TRIES, _JOB, _QUEUE, _WORKER),
    ),
    "finished": (
        _ID,
        Column("completed", _ago("finished_at")),
        Column("took", _took, is_number=True),
        *(_TRIES, _JOB, _QUEUE, _WORKER),
    ),
    "dead": (
        _ID,
        Column("died", _ago("died_at")),
        _TRIES,
        _JOB,
        _QUEUE,
        Column("error", _error, "end", share=3),
    ),
}
_WIDE = 120


def _columns_of(state: str, width: int) -> Sequence[Column]:
    columns: Sequence[Column] = _COLUMNS[state]
    if width < _WIDE:
        return columns
    # An error stays last.
    at = len(columns) - (columns[-1].title == "error")
    return (*columns[:at], *_ARGUMENTS, *columns[at:])
