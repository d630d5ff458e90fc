"""Blocked and parked jobs that the leader should have let run long ago."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from drain.audit.recheck import no_leader_note, slices
from drain.audit.report import Breach, samples
from drain.database.postgres import Connection
from drain.tables.columns import IS_BLOCKED, MARKER, PARKED, id_array
from drain.tables.flow_pauses import GATE

# Rows to recheck, lowest ids first.
_LIMIT = 1_000_000
_IDS_PER_STATEMENT = 10_000

_EDGE = "SELECT FROM job_edges AS edge {join} WHERE edge.child_id = job.id AND edge.state = 'waiting'"
_LATE = "< now() - make_interval(secs => %(seconds)s)"
_ENDED = "JOIN {table} AS ended ON ended.id = edge.awaited_id"
_IN_NO_TABLE = " AND ".join(
    f"NOT EXISTS (SELECT FROM {table} AS other WHERE other.id = edge.awaited_id)"
    for table in ("staged_jobs", "inflight_jobs", "dead_jobs", "finished_jobs")
)


_WAIT = "SELECT FROM job_waits AS wait WHERE wait.job_id = job.id"
_BLOCKED, _PARKED = (("staged_jobs_scheduled", IS_BLOCKED), ("inflight_jobs", PARKED))


class Reason(NamedTuple):
    """Condition under which a blocked or parked job should not be so."""

    explanation: str
    condition: str
    has_grace: bool = True
    place: tuple[str, str] = _BLOCKED


REASONS = (
    # Both change in one transaction.
    Reason(
        "blocked, but waits for nothing",
        f"job_name <> '{GATE}' AND NOT EXISTS ({_EDGE.format(join='')})",
        has_grace=False,
    ),
    Reason(
        "blocked, though a predecessor finished",
        f"EXISTS ({_EDGE.format(join=_ENDED.format(table='finished_jobs'))} AND ended.finished_at {_LATE})",
    ),
    Reason(
        "blocked, though a predecessor died, with on_failure cancel or run",
        f"EXISTS ({_EDGE.format(join=_ENDED.format(table='dead_jobs'))} AND edge.on_failure <> 'hold' "
        f"AND ended.died_at {_LATE})",
    ),
    # A retried job notices at the leader's next walk.
    Reason(
        "blocked, though a member of its flow died, with on_failure only",
        f"job.history IS NULL AND EXISTS (SELECT FROM job_edges AS edge "
        f"JOIN staged_jobs_scheduled AS marker ON marker.id = edge.awaited_id AND marker.job_name = '{MARKER}' "
        f"JOIN job_edges AS member ON member.child_id = marker.id "
        f"JOIN dead_jobs AS ended ON ended.id = member.awaited_id "
        f"WHERE edge.child_id = job.id AND edge.state = 'waiting' AND edge.on_failure = 'only' "
        f"AND member.state = 'waiting' AND member.on_failure = 'hold' AND ended.died_at {_LATE})",
    ),
    # A discard leaves no time: found at every look.
    Reason(
        "blocked, though a predecessor is in no table",
        f"job.staged_at {_LATE} AND EXISTS ({_EDGE.format(join='')} AND {_IN_NO_TABLE})",
        has_grace=False,
    ),
    Reason("parked, but waits for nothing", f"NOT EXISTS ({_WAIT})", has_grace=False, place=_PARKED),
    Reason(
        "parked, though its deadline has passed", f"EXISTS ({_WAIT} AND wait.deadline {_LATE})", place=_PARKED
    ),
    Reason(
        "parked, though its event was emitted",
        f"EXISTS ({_WAIT} AND wait.began_at {_LATE} AND EXISTS (SELECT FROM job_events AS event "
        f"WHERE event.name = wait.event AND event.emitted_by = wait.staged_by AND event.emitted_at {_LATE}))",
        place=_PARKED,
    ),
)

_FIND = f"SELECT id FROM {{table}} AS job WHERE {{is_held}} AND {{condition}} ORDER BY id LIMIT {_LIMIT}"
_STILL = """
SELECT id FROM {table} AS job WHERE id = ANY (%(ids)s::bigint[]) AND ({is_held} AND {condition}) IS TRUE
"""


class BlockedCheck:
    """Check that each blocked job waits for one that has not ended, and each parked one, with `seconds` of grace."""

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._found: dict[Reason, set[int]] | None = None

    @property
    def in_doubt(self) -> bool:
        """True while a job looks blocked without need."""
        return any((self._found or {}).values())

    def look(self) -> None:
        """Find such jobs, or keep those that still are."""
        if self._found is None:
            self._found = {reason: self._ids(_FIND, reason) for reason in REASONS}
        else:
            self._found = {reason: self._still(reason, ids) for reason, ids in self._found.items()}

    def breaches(self) -> list[Breach]:
        """Return a breach per reason, for jobs found every time."""
        note = no_leader_note(self._connection) if self.in_doubt else ""
        return [
            Breach("blocked", f"{reason.explanation}{self._grace(reason)}{note}", len(ids), samples(ids))
            for reason, ids in (self._found or {}).items()
            if ids
        ]

    def unchecked(self) -> dict[str, str]:
        """Return nothing: an audit needs PostgreSQL."""
        return {}

    def _grace(self, reason: Reason) -> str:
        return f", more than {self._seconds:g} s ago" if reason.has_grace else ""

    def _ids(self, statement: str, reason: Reason, ids: str = "{}") -> set[int]:
        parameters = {"seconds": self._seconds, "ids": ids}
        table, is_held = reason.place
        statement = statement.format(table=table, is_held=is_held, condition=reason.condition)
        rows = self._connection.execute(statement, parameters)
        return {id_ for (id_,) in rows}

    def _still(self, reason: Reason, ids: Iterable[int]) -> set[int]:
        still: set[int] = set()
        for slice_ in slices(ids, _IDS_PER_STATEMENT):
            still |= self._ids(_STILL, reason, id_array(slice_))
        return still
