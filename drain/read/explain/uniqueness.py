"""Jobs that share a unique key.

The `keep` of the highest id decides which job stays: the first (or the one waiting in flight), or the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from drain.formatting import duration
from drain.read.causes import MOST
from drain.read.explain.estimates import in_, none
from drain.read.explain.explanation import Finding
from drain.read.explain.situation import Situation
from drain.tables.columns import IS_BLOCKED

_STAGED = f"""
SELECT id, keep, quiet_seconds, staged_at, scheduled_at <= now() FROM (
    SELECT * FROM staged_jobs WHERE unique_key = %(unique_key)s ORDER BY unique_key DESC, id DESC LIMIT {MOST}) AS job
WHERE job_name = %(job_name)s AND coalesce(expires_at > now(), true) AND NOT {IS_BLOCKED}
"""
_IN_FLIGHT = f"""
SELECT id FROM inflight_jobs
WHERE unique_key = %(unique_key)s AND unique_key IS NOT NULL AND lease_expires_at IS NULL AND job_name = %(job_name)s
LIMIT {MOST}
"""


class _Staged(NamedTuple):
    id: int
    keep: str | None
    quiet_seconds: float | None
    staged_at: datetime
    is_due: bool


def quiet(situation: Situation) -> Finding | None:
    """Report a staged job in its quiet time."""
    if situation.job["unique_key"] is None or situation.job["quiet_seconds"] is None:
        return None
    staged = _staged(situation)
    rows = [row for row in staged if row.quiet_seconds]
    last = max((row.staged_at for row in rows), default=situation.now)
    until = max((row.staged_at + timedelta(seconds=row.quiet_seconds or 0) for row in rows), default=last)
    rest = (until - situation.now).total_seconds()
    # A job scheduled for later waits until it is due.
    if rest <= 0 or situation.job["scheduled_at"] > until + timedelta(seconds=1):
        return None
    ago = duration(max(0.0, (situation.now - last).total_seconds()))
    quiet = duration(situation.job["quiet_seconds"])
    why = f"it is waiting for {quiet} without another job with its unique key; the last came {ago} ago"
    details = {"unique_key": situation.job["unique_key"], "jobs": sorted(row.id for row in rows)[:10]}
    estimate = in_(rest, "if no other job with its unique key is staged by then")
    if (stands := _standing(staged, [])) != situation.job["id"]:
        why += f"; then job {stands} will supersede it"
        estimate = none(f"job {stands} with the same unique key will start instead")
    return Finding("quiet", why, situation.job["staged_at"], estimate, details)


def gives_way(situation: Situation) -> Finding | None:
    """Report a due job that gives way."""
    if situation.job["unique_key"] is None:
        return None
    rows = [row for row in _staged(situation) if row.is_due]
    found = situation.connection.execute(_IN_FLIGHT, _scope(situation)).fetchall()
    stands = _standing(rows, [id_ for (id_,) in found])
    if stands == situation.job["id"]:
        return None
    why = f"job {stands} with the same unique key supersedes it: it will not run"
    return Finding("gives_way", why, situation.due_at, none("the job will not run"), {"stands": stands})


def _standing(rows: Sequence[_Staged], in_flight: Sequence[int]) -> int:
    ids = [row.id for row in rows]
    keeps_last = max(rows, key=lambda row: row.id).keep == "last"
    return max([*ids, *in_flight]) if keeps_last else min(in_flight or ids)


def _staged(situation: Situation) -> list[_Staged]:
    rows = situation.connection.execute(_STAGED, _scope(situation), binary=True)
    return [_Staged._make(row) for row in rows]


def _scope(situation: Situation) -> dict[str, str]:
    return {"unique_key": situation.job["unique_key"], "job_name": situation.job["job_name"]}
