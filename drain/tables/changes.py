"""Changes of waiting jobs: another queue, priority or time.

Delivered, unclaimed rows cannot be claimed until redelivered; claimed rows stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from drain.database.postgres import Connection, fetch_one
from drain.tables.columns import BLOCKED_AT, DELIVERED, IS_BLOCKED, IS_CLAIMED, PARKED, RETRYING
from drain.tables.selections import Selection


class Change(NamedTuple):
    """Change of waiting jobs; None keeps a value, `priority` is for staged jobs."""

    queue: str | None = None
    priority: int | None = None
    run_at: datetime | None = None

    @property
    def reaches_deliveries(self) -> bool:
        """True if jobs in flight change."""
        return self.queue is not None or self.run_at is not None


class Counted(NamedTuple):
    """Job counts of a selection."""

    staged: int
    delivered: int
    retrying: int
    parked: int
    running: int


_COUNT = f"""
SELECT (SELECT count(*) FROM staged_jobs WHERE {{rows}}),
    count(*) FILTER (WHERE {DELIVERED}), count(*) FILTER (WHERE {RETRYING}),
    count(*) FILTER (WHERE {PARKED}), count(*) FILTER (WHERE {IS_CLAIMED})
FROM inflight_jobs WHERE {{rows}}
"""


def count(connection: Connection, selection: Selection) -> Counted:
    """Count selected jobs in one snapshot."""
    with connection.transaction():
        # Lock before the snapshot: a partition truncated afterwards would look empty.
        connection.execute("LOCK TABLE staged_jobs IN ACCESS SHARE MODE")
        return Counted._make(
            fetch_one(connection, _COUNT.format(rows=selection.condition), selection.parameters())
        )


# A matured row keeps its mark, and so its partition, unless its time changes. A blocked one stays blocked.
_OF_STAGED = {
    "new_queue": "queue = %(new_queue)s",
    "new_priority": "priority = %(new_priority)s",
    "new_run_at": f"""matured_at = NULL,
    scheduled_at = CASE WHEN {IS_BLOCKED} THEN {BLOCKED_AT} ELSE %(new_run_at)s END,
    starts_at = CASE WHEN {IS_BLOCKED} THEN %(new_run_at)s ELSE starts_at END""",
}
_OF_INFLIGHT = {
    "new_queue": "queue = %(new_queue)s",
    "new_priority": "priority = %(new_priority)s",
    "new_run_at": "scheduled_at = %(new_run_at)s",
}
_CHANGE_STAGED = """
UPDATE staged_jobs SET {assignments} WHERE id = ANY (ARRAY (
    SELECT id FROM staged_jobs WHERE {rows} ORDER BY id FOR UPDATE))
RETURNING id
"""
_CHANGE_INFLIGHT = """
UPDATE inflight_jobs SET {assignments},
    next_run_at = coalesce(%(new_run_at)s::timestamptz, next_run_at, now())
WHERE id = ANY (ARRAY (
    SELECT id FROM inflight_jobs WHERE {rows} AND lease_expires_at IS NULL ORDER BY id FOR UPDATE))
RETURNING id
"""
# No trigger fires if a change makes a row due.
_WAKE = "SELECT pg_notify('staged_jobs', '')"


def change_staged(connection: Connection, selection: Selection, change: Change) -> list[int]:
    """Change staged jobs; return their ids.

    Raises:
        psycopg.errors.SerializationFailure: A scheduled row came due; call again.
        psycopg.IntegrityError: A CHECK refuses the change.
    """
    return _change(connection, _CHANGE_STAGED, _OF_STAGED, selection, change)


def change_inflight(connection: Connection, selection: Selection, change: Change) -> list[int]:
    """Change unclaimed jobs in flight, after `change_staged`; return their ids."""
    return _change(connection, _CHANGE_INFLIGHT, _OF_INFLIGHT, selection, change)


def wake_leader(connection: Connection) -> None:
    """Wake a sleeping leader."""
    connection.execute(_WAKE)


def _change(
    connection: Connection,
    statement: str,
    assignments: Mapping[str, str],
    selection: Selection,
    change: Change,
) -> list[int]:
    given = {f"new_{name}": value for name, value in change._asdict().items()}
    parameters: dict[str, Any] = {**given, **selection.parameters()}
    text = statement.format(
        assignments=", ".join(assignments[name] for name, value in given.items() if value is not None),
        rows=selection.condition,
    )
    return [job_id for (job_id,) in connection.execute(text, parameters)]
