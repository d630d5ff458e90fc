"""Events of one job, from its row's times.

A row keeps its latest claim, and the errors of ten failed attempts; other attempts only count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from drain.tables.columns import BLOCKED_UNTIL, PARKED_UNTIL
from drain.tables.failures import earlier_errors, is_interruption, seconds_of, summary_of, time_of

ENDS = frozenset({"finished", "superseded", "dead", "cancelled", "expired"})
# Ordered for equal times.
EVENTS = ("staged", "moved", "delivered_again", "claimed", "failed", "interrupted", "deferred", *sorted(ENDS))
_DEATHS = frozenset({"dead", "cancelled", "expired"})
_RANKS = {name: rank for rank, name in enumerate(EVENTS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Event of a job; fields that do not apply are None.

    Attributes:
        at: By the database's clock.
        event: One of `EVENTS`.
        error: Type and first line.
        until: When the job's wait ends.
        seconds: From claim to end.
        reason: Of a death, for programs.
        superseded_by: Id of the job that stands.
        is_exact: False for a look's time, if no row keeps it.
        order: Sort time, no earlier than the previous event's.
    """

    at: datetime
    event: str
    id: int
    job_name: str
    queue: str
    tag: str | None = None
    attempt: int | None = None
    worker: str | None = None
    error: str | None = None
    until: datetime | None = None
    seconds: float | None = None
    reason: str | None = None
    superseded_by: int | None = None
    is_exact: bool = True
    order: datetime

    @property
    def place(self) -> tuple[datetime, int]:
        """Place among the job's events."""
        return self.order, _RANKS[self.event]

    def as_json(self) -> dict[str, Any]:
        """Return the fields that apply as JSON types."""
        return {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in asdict(self).items()
            if value is not None and name != "order"
        }


def life(row: Mapping[str, Any]) -> list[Event]:
    """List the events of a row of any table, in order."""
    found = sorted(_before_the_end(row), key=lambda event: event.place)
    end = _end(row)
    if end is not None:
        # A death has its transaction's start time, before the failure that caused it.
        last = max([end.at, *(event.order for event in found)])
        found.append(replace(end, at=last if end.event in _DEATHS else end.at, order=last))
    return found


def now_waiting(row: Mapping[str, Any], event: str, now: datetime) -> Event:
    """Return an event whose time no row keeps."""
    return _event(row, event, now, is_exact=False, until=_until(row))


def _until(row: Mapping[str, Any]) -> datetime | None:
    at: datetime | None = row.get("next_run_at")
    return None if at == PARKED_UNTIL else at


def _event(row: Mapping[str, Any], event: str, at: datetime, **more: Any) -> Event:
    common = {name: row[name] for name in ("id", "job_name", "queue", "tag")}
    return Event(at=at, event=event, order=at, **common, **more)


def _before_the_end(row: Mapping[str, Any]) -> Iterator[Event]:
    # A job that gave way while staged, or marks the end of a flow, was neither moved nor claimed.
    has_run = row.get("attempts") or not row.get("finished_at")
    later = row["scheduled_at"] if row["staged_at"] < row["scheduled_at"] != BLOCKED_UNTIL else None
    yield _event(row, "staged", row["staged_at"], until=later)
    yield from _former_deaths(row)
    moved_at = row.get("moved_at")
    if moved_at and moved_at != row.get("finished_at"):
        yield _event(row, "moved", moved_at)
    attempt = row.get("attempts", 0) + bool(row.get("batched"))
    if row.get("claimed_at") and has_run:
        worker = row.get("finished_by") or row.get("claimed_by")
        yield _event(row, "claimed", row["claimed_at"], attempt=max(attempt, 1), worker=worker)
    errors = row.get("errors")
    for error in earlier_errors(errors):
        yield from _claim(row, error)
        if past := _failure({**row, "claimed_at": None}, error, 0):
            yield replace(past, until=None)
    if isinstance(errors, Mapping):
        yield from _claim(row, errors)
    if failure := _failure(row, row.get("last_error"), attempt):
        yield failure


def _claim(row: Mapping[str, Any], error: Mapping[str, Any]) -> Iterator[Event]:
    at = time_of(error.get("claimed_at"))
    if at and at != row.get("claimed_at"):
        yield _event(row, "claimed", at, attempt=error.get("attempt"), worker=error.get("worker"))


def _former_deaths(row: Mapping[str, Any]) -> Iterator[Event]:
    """Yield earlier deaths, each after its failures."""
    for death in row.get("history") or ():
        if isinstance(death, Mapping) and (at := time_of(death.get("died_at"))):
            error = death.get("last_error")
            errors = (
                [(error.get("first"), 1), (error, death.get("attempts"))]
                if isinstance(error, Mapping)
                else []
            )
            failures = [
                replace(found, until=None)
                for error, attempt in errors
                if (found := _failure({**row, "claimed_at": None, "failed_at": None}, error, attempt or 0))
            ]
            yield from failures
            yield _death(row, max([at, *(each.at for each in failures)]), death)


def _death(row: Mapping[str, Any], at: datetime, death: Mapping[str, Any]) -> Event:
    reason = str(death.get("reason"))
    event = reason if reason in ("cancelled", "expired") else "dead"
    why = str(death.get("explanation")).partition("\n")[0]
    return _event(row, event, at, attempt=death.get("attempts") or None, reason=reason, error=why)


def _failure(row: Mapping[str, Any], error: object, attempt: int) -> Event | None:
    if not isinstance(error, Mapping):
        return None
    at = time_of(error.get("at")) or row.get("failed_at")
    if at is None:
        return None
    event = "interrupted" if is_interruption(error) else "failed"
    claimed_at = row.get("claimed_at")
    # A later claim has its own number; older versions did not record the failure's.
    recorded = error.get("attempt")
    number = attempt if claimed_at is None or at >= claimed_at else attempt - 1
    if isinstance(recorded, int):
        number = recorded
    return _event(
        row,
        event,
        at,
        attempt=number if event == "failed" and number > 0 else None,
        worker=error.get("worker"),
        error=summary_of(error),
        until=_until(row),
        seconds=seconds_of(error),
    )


def _end(row: Mapping[str, Any]) -> Event | None:
    if row.get("finished_at"):
        if row.get("superseded_by"):
            return _event(row, "superseded", row["finished_at"], superseded_by=row["superseded_by"])
        seconds = (row["finished_at"] - row["claimed_at"]).total_seconds()
        attempt, worker = max(row["attempts"], 1), row.get("finished_by")
        return _event(
            row, "finished", row["finished_at"], attempt=attempt, worker=worker, seconds=max(seconds, 0.0)
        )
    if row.get("died_at"):
        return _death(row, row["died_at"], row)
    return None
