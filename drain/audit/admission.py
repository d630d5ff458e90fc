"""Exceeded limits, rules that cannot be applied, duplicate unique keys.

A breach must be found by every look; anything else may settle a moment later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from drain.audit.obstacles import IS_HELD, read_held
from drain.audit.report import SAMPLES, Breach
from drain.audit.rules import FOLLOWED_SECONDS
from drain.database.postgres import Connection
from drain.formatting import visible
from drain.read import queries
from drain.tables.pauses import IS_PAUSED

_MOST = 100
# Time for the leader to settle two jobs with one unique key.
_SETTLED_SECONDS = 10

# Only a row added after the leader knew the limit is a breach: limits may be lowered below the running jobs. A retry is
# added at its latest failure. A cancelled job counts until its worker lets go.
_RUNNING = """
SELECT job.queue, {key} AS key, {limit} AS most, count(*) AS running,
    (pg_catalog.array_agg(job.id ORDER BY job.added_after DESC NULLS LAST, job.id))[1:{samples}]
FROM (
    SELECT id, queue, key, greatest(moved_at, failed_at) AS added_after FROM inflight_jobs WHERE next_run_at IS NULL
    UNION ALL
    SELECT id, queue, key, NULL FROM cancelled_claims WHERE lease_expires_at > now()
) AS job JOIN queues AS rules ON rules.queue = job.queue
WHERE {limit} IS NOT NULL AND {has_key}
GROUP BY job.queue, {key}, {limit}, rules.changed_at
HAVING count(*) > {limit} AND pg_catalog.max(job.added_after) > rules.changed_at + interval '{followed} seconds'
LIMIT {most}
"""
_LIMIT_OF_KEY = "least(rules.running_per_key, CASE WHEN rules.ordered THEN 1 END)"
_OVER_LIMITS = tuple(
    _RUNNING.format(
        key=key, limit=limit, has_key=has_key, samples=SAMPLES, most=_MOST, followed=FOLLOWED_SECONDS
    )
    for key, limit, has_key in (
        ("NULL::text", "rules.running", "true"),
        ("job.key", _LIMIT_OF_KEY, "job.key IS NOT NULL"),
    )
)
_HELD = f"SELECT queue, error FROM queues WHERE error IS NOT NULL ORDER BY queue LIMIT {_MOST}"
_SEVERAL = f"""
WITH waiting AS (
    SELECT id, job_name, unique_key FROM staged_jobs AS job
    WHERE unique_key IS NOT NULL AND quiet_seconds IS NULL AND NOT {IS_PAUSED} AND NOT {IS_HELD}
        AND greatest(scheduled_at, staged_at, matured_at) < now() - interval '{_SETTLED_SECONDS} seconds'
    UNION ALL
    SELECT id, job_name, unique_key FROM inflight_jobs
    WHERE unique_key IS NOT NULL AND lease_expires_at IS NULL
        AND moved_at < now() - interval '{_SETTLED_SECONDS} seconds'
)
SELECT job_name, unique_key, count(*), (pg_catalog.array_agg(id ORDER BY id))[1:{SAMPLES}] FROM waiting
GROUP BY job_name, unique_key HAVING count(*) > 1 ORDER BY job_name, unique_key LIMIT {_MOST}
"""


class Subject(NamedTuple):
    """Finding's identity."""

    check: str
    names: tuple[str | None, ...]


class AdmissionCheck:
    """Check of limits, rules and unique keys."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._found: dict[Subject, Breach] | None = None

    @property
    def in_doubt(self) -> bool:
        """True while anything looks wrong."""
        return bool(self._found)

    def look(self) -> None:
        """Find suspects, or keep the remaining ones."""
        found = dict([*self._over_limits(), *self._held(), *self._several()])
        known = self._found
        self._found = {subject: each for subject, each in found.items() if known is None or subject in known}

    def breaches(self) -> list[Breach]:
        """List the suspects found every time."""
        return list((self._found or {}).values())

    def unchecked(self) -> dict[str, str]:
        """Return nothing: an audit needs PostgreSQL."""
        return {}

    def _over_limits(self) -> Iterable[tuple[Subject, Breach]]:
        for statement in _OVER_LIMITS:
            for queue, key, most, running, ids in self._connection.execute(statement.encode()):
                of_key = "" if key is None else f" with key {visible(key)}"
                explanation = f"running in queue {queue}{of_key}, limit {most}; latest"
                yield Subject("limits", (queue, key)), Breach("limits", explanation, running, tuple(ids))

    def _held(self) -> Iterable[tuple[Subject, Breach]]:
        for queue, error in self._connection.execute(_HELD):
            explanation = f"queue held, {queue}: {visible(error)}"
            yield Subject("rules", (queue,)), Breach("rules", explanation)

    def _several(self) -> Iterable[tuple[Subject, Breach]]:
        # Only a leader settles them.
        if queries.leader(self._connection) is None:
            return
        for name, key, count, ids in self._connection.execute(
            _SEVERAL, read_held(self._connection)._asdict()
        ):
            explanation = f"jobs named {visible(name)} with unique key {visible(key)} waiting at once"
            yield Subject("unique", (name, key)), Breach("unique", explanation, count, tuple(ids))
