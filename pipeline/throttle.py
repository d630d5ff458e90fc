"""Pauses between commits."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep
from typing import TYPE_CHECKING

from drain.database.postgres import fetch_one
from drain.errors import DrainError
from drain.formatting import duration
from drain.pipeline import interruption
from drain.tables.columns import HAS_RUN

if TYPE_CHECKING:
    from drain.database.postgres import Connection
    from drain.pipeline.runs import Run

_LOOK_SECONDS = 0.5
# Then the run ends; it can be repeated.
_PATIENCE_SECONDS = 600.0
# Others' finished jobs, to measure delay.
_LATEST = 10_000
_LATELY_SECONDS = 10.0
_UNNOTICED_SECONDS = 0.1

# Replica lag is invisible without full rights. Slots keep WAL.
_PRESSURE = """
SELECT coalesce((SELECT date_part('epoch', max(replay_lag)) FROM pg_stat_replication), 0),
    coalesce((SELECT max(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)) FROM pg_replication_slots), 0)::float8
"""
# Other rows never reach Redis.
_DELAY = f"""
SELECT date_part('epoch', percentile_disc(0.99) WITHIN GROUP (ORDER BY moved_at - greatest(staged_at, scheduled_at)))
FROM (SELECT * FROM finished_jobs ORDER BY finished_xid DESC LIMIT %s) AS latest
WHERE {HAS_RUN} AND priority < %s AND finished_at > clock_timestamp() - make_interval(secs => %s)
"""


class Throttle:
    """Throttle of one run; `connection` has no transaction between commits."""

    def __init__(self, connection: Connection, run: Run, report: Callable[[str], None]) -> None:
        self._connection = connection
        self._run = run
        self._report = report
        self._longest = max(run.limits.delay_factor * self._delay(), _UNNOTICED_SECONDS)

    def pause(self, rows: int, seconds: float) -> None:
        """Return once more rows may be committed; DrainError after ten minutes of overload."""
        with interruption.at_once():
            if self._run.rows_per_second is not None:
                self._report("waiting until these jobs are due")
                sleep(max(rows / self._run.rows_per_second - seconds, 0.0))
            self._recover()

    def _recover(self) -> None:
        deadline = monotonic() + _PATIENCE_SECONDS
        while reason := self._reason():
            if monotonic() > deadline:
                raise DrainError(
                    f"paused for {duration(_PATIENCE_SECONDS)}, because {reason}; run this again later"
                )
            self._report(f"paused: {reason}")
            sleep(_LOOK_SECONDS)

    def _reason(self) -> str | None:
        lag, wal = fetch_one(self._connection, _PRESSURE)
        delay = self._delay()
        if lag > self._run.limits.lag_seconds:
            return f"a replica lags {duration(lag)} behind"
        if wal > self._run.limits.wal_bytes:
            return f"a replication slot keeps {wal / 2**20:,.0f} MB of WAL"
        if delay > self._longest:
            return f"other jobs reach Redis after {duration(delay)} (99th percentile)"
        return None

    def _delay(self) -> float:
        (delay,) = fetch_one(self._connection, _DELAY, (_LATEST, self._run.priority, _LATELY_SECONDS))
        return float(delay or 0)
