"""Rows that should have left their table long ago.

A late commit makes an old row look overdue, so only rows found at every look count. Held rows are excluded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from drain.audit.obstacles import NOTHING_HOLDS_RETRY, NOTHING_HOLDS_STAGED, Held, read_held
from drain.audit.recheck import no_leader_note, slices
from drain.audit.report import Breach, samples
from drain.database.postgres import Connection
from drain.tables import waiting
from drain.tables.columns import id_array

# Rows to recheck, longest overdue first.
_LIMIT = 1_000_000
_IDS_PER_STATEMENT = 10_000


class Reason(NamedTuple):
    """Condition under which a row long past `due` is overdue."""

    table: str
    due: str
    explanation: str
    condition: str = "true"


REASONS = (
    # A retried dead job is due from its retry on.
    Reason(
        "staged_jobs",
        "greatest(scheduled_at, staged_at, matured_at)",
        "due and not drained",
        NOTHING_HOLDS_STAGED,
    ),
    Reason("inflight_jobs", "lease_expires_at", "claimed, and not delivered again since the lease expired"),
    # A failing queue's retries wait for each other.
    Reason(
        "inflight_jobs",
        "next_run_at",
        "due for their next attempt and not delivered",
        f"queue <> ALL (%(failing)s::text[]) AND {NOTHING_HOLDS_RETRY}",
    ),
)

_LATE = "WHERE {due} < now() - make_interval(secs => %(seconds)s) AND {condition}"
_LATEST = f"SELECT id FROM {{table}} AS job {_LATE} ORDER BY {{due}} LIMIT {_LIMIT}"
_STILL_LATE = f"""
SELECT id FROM pg_catalog.unnest(%(ids)s::bigint[]) AS doubtful (id) JOIN {{table}} AS job USING (id) {_LATE}
"""


class OverdueCheck:
    """Check that no row has been due for more than `seconds`."""

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._held = Held([], [], [])
        self._late: dict[Reason, set[int]] | None = None

    @property
    def in_doubt(self) -> bool:
        """True while a row looks overdue."""
        return any((self._late or {}).values())

    def look(self) -> None:
        """Find overdue rows, or keep those that still are."""
        self._held = read_held(self._connection)
        failing = [queue.queue for queue in waiting.retrying_queues(self._connection) if queue.failing]
        if self._late is None:
            self._late = {reason: self._ids(_LATEST, reason, failing) for reason in REASONS}
        else:
            self._late = {reason: self._still(reason, ids, failing) for reason, ids in self._late.items()}

    def breaches(self) -> list[Breach]:
        """Return a breach per reason, for rows found every time."""
        return [
            Breach(
                "overdue",
                f"{reason.explanation}, for more than {self._seconds:g} s{no_leader_note(self._connection)}",
                len(ids),
                samples(ids),
            )
            for reason, ids in (self._late or {}).items()
            if ids
        ]

    def unchecked(self) -> dict[str, str]:
        """Return nothing: an audit needs PostgreSQL."""
        return {}

    def _ids(self, statement: str, reason: Reason, failing: Sequence[str], ids: str = "{}") -> set[int]:
        statement = statement.format(table=reason.table, due=reason.due, condition=reason.condition)
        parameters = {"seconds": self._seconds, "failing": failing, "ids": ids, **self._held._asdict()}
        return {id_ for (id_,) in self._connection.execute(statement, parameters)}

    def _still(self, reason: Reason, ids: Iterable[int], failing: Sequence[str]) -> set[int]:
        still: set[int] = set()
        for slice_ in slices(ids, _IDS_PER_STATEMENT):
            still |= self._ids(_STILL_LATE, reason, failing, id_array(slice_))
        return still
