"""Ticks without a job despite a leader, or with several."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from drain.audit.report import SAMPLES, Breach, queue_names
from drain.database.postgres import Connection
from drain.formatting import clock, visible
from drain.read import queries
from drain.tables import crons

# Replayed, manually started or moved jobs have another time.
_OF_TICK = (
    "pg_catalog.starts_with(tag, 'cron:'::text) AND context ->> 'cron'::text IS NOT NULL "
    "AND scheduled_at < staged_at"
)
_SEVERAL = f"""
WITH ticked AS (
    SELECT id, tag, scheduled_at FROM staged_jobs WHERE {_OF_TICK}
    UNION ALL SELECT id, tag, scheduled_at FROM inflight_jobs WHERE {_OF_TICK}
    UNION ALL SELECT id, tag, scheduled_at FROM dead_jobs WHERE {_OF_TICK}
    UNION ALL SELECT id, tag, scheduled_at FROM finished_jobs
        WHERE finished_at > now() - interval '1 day' AND {_OF_TICK}
)
SELECT tag, scheduled_at, count(*), (pg_catalog.array_agg(id ORDER BY id))[1:{SAMPLES}] FROM ticked
GROUP BY tag, scheduled_at HAVING count(*) > 1 ORDER BY tag, scheduled_at LIMIT 100
"""


class TicksCheck:
    """Check that each tick has one job.

    Args:
        seconds: Grace for a due tick, and for a new leader.
    """

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        self._late: set[str] | None = None
        self._refused: set[str] = set()
        self._several: list[Breach] = []

    @property
    def in_doubt(self) -> bool:
        """True while a tick looks late."""
        return bool(self._late)

    def look(self) -> None:
        """Find late schedules, or keep those still late."""
        late = crons.overdue(self._connection, self._seconds) if self._has_led_for_long() else set()
        if self._late is None:
            # These never clear.
            self._several = list(self._ticks_with_several())
        self._late = late if self._late is None else self._late & late
        self._refused = crons.refused(self._connection)

    def breaches(self) -> list[Breach]:
        """List late ticks, unstageable schedules, and ticks with several jobs."""
        late = f"schedules with a tick unstaged for more than {self._seconds:g} s"
        refused = "schedules without ticks, because their job cannot be staged (see `drain cron list`)"
        named = ((late, self._late), (refused, self._refused))
        found = [
            Breach("ticks", f"{text}: {queue_names(names)}", len(names)) for text, names in named if names
        ]
        return found + self._several

    def _ticks_with_several(self) -> Iterator[Breach]:
        for tag, at, count, ids in self._connection.execute(_SEVERAL.encode()):
            explanation = f"jobs for one tick, {clock(at)}, of schedule {visible(tag.removeprefix('cron:'))}"
            yield Breach("ticks", explanation, count, tuple(ids))

    def _has_led_for_long(self) -> bool:
        leader = queries.leader(self._connection)
        if leader is None:
            return False
        led = queries.now(self._connection) - datetime.fromisoformat(leader["since"])
        return led.total_seconds() > self._seconds

    def unchecked(self) -> dict[str, str]:
        """Return nothing: an audit needs PostgreSQL."""
        return {}
