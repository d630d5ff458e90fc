"""Schedules whose tick has come and whose job is not staged, though there is a leader."""

from __future__ import annotations

from datetime import datetime

from drain.audit.report import Breach, queue_names
from drain.database.postgres import Connection
from drain.tables import crons, queries


class TicksCheck:
    """Checks that no schedule waits for the job of its tick; without a leader, none is late.

    Args:
        connection: In autocommit mode.
        seconds: Time that a tick may be due, and that a new leader has to stage it.
    """

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection = connection
        self._seconds = seconds
        # None before the first look.
        self._late: set[str] | None = None
        self._refused: set[str] = set()

    @property
    def in_doubt(self) -> bool:
        """True while a tick looks late."""
        return bool(self._late)

    def look(self) -> None:
        """Find schedules whose tick is late; from the second look on, keep those where it still is."""
        late = crons.overdue(self._connection, self._seconds) if self._has_led_for_long() else set()
        self._late = late if self._late is None else self._late & late
        self._refused = crons.refused(self._connection)

    def breaches(self) -> list[Breach]:
        """Build a breach of the ticks that have been late at every look, and one of schedules that cannot be staged."""
        late = f"schedules with a tick that came more than {self._seconds:g} s ago and is not staged"
        refused = "schedules without ticks, since their job cannot be staged (`drain cron list` says why)"
        return [
            Breach("ticks", f"{explanation}: {queue_names(names)}", len(names))
            for explanation, names in ((late, self._late), (refused, self._refused))
            if names
        ]

    def _has_led_for_long(self) -> bool:
        leader = queries.leader(self._connection)
        if leader is None:
            return False
        led = queries.now(self._connection) - datetime.fromisoformat(leader["since"])
        return led.total_seconds() > self._seconds

    def unchecked(self) -> dict[str, str]:
        """Return nothing: without PostgreSQL there is no audit."""
        return {}
