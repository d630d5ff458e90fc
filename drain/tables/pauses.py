"""Rows of `queue_pauses`, which hold matching jobs.

An indefinite pause and a timed one may coexist. `drain.jobs.executors` needs parameters as `%(name)s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, NamedTuple

from drain.database.postgres import Connection
from drain.tables.followed import FollowedTable


class Pause(NamedTuple):
    """Pause; a queue, name or key of None matches all.

    `until` is None if indefinite; `paused_by` is a database role or worker.
    """

    queue: str | None
    job_name: str | None
    key: str | None
    until: datetime | None
    reason: str | None
    paused_by: str | None
    paused_at: datetime

    def applies(self, queue: str, job_name: str, key: str | None) -> bool:
        """Return True if it holds this job."""
        mine = ((self.queue, queue), (self.job_name, job_name), (self.key, key))
        return all(wanted is None or wanted == given for wanted, given in mine)


_NEVER = datetime.max.replace(tzinfo=UTC)
_NAMES = "coalesce(queue, ''), coalesce(job_name, ''), coalesce(key, '')"
_HOLDS = "(until IS NULL OR until > clock_timestamp())"
_COLUMNS = "queue, job_name, key, until, reason, paused_by, paused_at"
READ = f"""
SELECT {_COLUMNS} FROM queue_pauses
WHERE {_HOLDS}
ORDER BY paused_at, number
"""
# A pause is only extended; a past time is a no-op.
PAUSE = f"""
INSERT INTO queue_pauses (queue, job_name, key, until, reason, paused_by)
SELECT wanted.* FROM (
    SELECT CAST(%(queue)s AS text), CAST(%(job_name)s AS text), CAST(%(key)s AS text),
        coalesce(CAST(%(until)s AS timestamptz),
            clock_timestamp() + make_interval(secs => CAST(%(seconds)s AS double precision))) AS until,
        CAST(%(reason)s AS text), coalesce(CAST(%(paused_by)s AS text), CAST(session_user AS text))) AS wanted
WHERE {_HOLDS}
ON CONFLICT ({_NAMES}, (until IS NULL)) DO UPDATE SET
    until = greatest(queue_pauses.until, EXCLUDED.until), reason = EXCLUDED.reason, paused_by = EXCLUDED.paused_by
RETURNING until
"""
RESUME = """
DELETE FROM queue_pauses
WHERE queue IS NOT DISTINCT FROM CAST(%(queue)s AS text)
    AND job_name IS NOT DISTINCT FROM CAST(%(job_name)s AS text) AND key IS NOT DISTINCT FROM CAST(%(key)s AS text)
RETURNING until IS NULL OR until > clock_timestamp()
"""
_PRUNE = "DELETE FROM queue_pauses WHERE until <= clock_timestamp()"
# Each of eight possible pauses of the row `job` is one look-up in `queue_pauses_once`, where '' matches all.
# With `= ANY` on three columns, PostgreSQL 15 read all of a queue's pauses per row.
IS_PAUSED = """EXISTS (
    SELECT FROM (VALUES (job.queue), ('')) AS in_queue (name), (VALUES (job.job_name), ('')) AS of_job (name),
        (VALUES (coalesce(job.key, '')), ('')) AS with_key (name)
    CROSS JOIN LATERAL (
        SELECT FROM queue_pauses AS pause
        WHERE coalesce(pause.queue, '') = in_queue.name AND coalesce(pause.job_name, '') = of_job.name
            AND coalesce(pause.key, '') = with_key.name AND (pause.until IS NULL OR pause.until > now())
        LIMIT 1) AS found)"""


def read(connection: Connection) -> list[Pause]:
    """Read current pauses, oldest first."""
    return rows_of(connection.execute(READ, binary=True))


def rows_of(rows: Iterable[Any]) -> list[Pause]:
    """Convert rows of `READ`."""
    return [Pause._make(row) for row in rows]


def longest_first(pauses: Iterable[Pause]) -> list[Pause]:
    """Sort by latest end, then oldest first."""
    return sorted(pauses, key=lambda pause: pause.until or _NEVER, reverse=True)


def prune(connection: Connection) -> int:
    """Delete ended pauses."""
    return connection.execute(_PRUNE).rowcount


def pause_for(
    connection: Connection,
    queue: str,
    key: str | None,
    when: float | datetime,
    *,
    reason: str,
    paused_by: str,
) -> None:
    """Pause a key, or else the queue, until a time or for some seconds."""
    until, seconds = (when, None) if isinstance(when, datetime) else (None, when)
    parameters = {
        "queue": queue,
        "job_name": None,
        "key": key,
        "until": until,
        "seconds": seconds,
        "reason": reason,
        "paused_by": paused_by,
    }
    connection.execute(PAUSE, parameters)


class Pauses:
    """Current pauses, with constant-time look-ups."""

    def __init__(self, pauses: Sequence[Pause] = ()) -> None:
        self._pauses = tuple(pauses)
        self._queues = frozenset(
            pause.queue for pause in pauses if pause.job_name is None and pause.key is None
        )
        # None: all queues.
        self._names: dict[str | None, set[str]] = {}
        self._keys: dict[str | None, dict[str, datetime | None]] = {}
        self._both: dict[str | None, set[tuple[str, str]]] = {}
        for pause in pauses:
            self._add(pause)

    def _add(self, pause: Pause) -> None:
        if pause.job_name is not None and pause.key is not None:
            self._both.setdefault(pause.queue, set()).add((pause.key, pause.job_name))
        elif pause.job_name is not None:
            self._names.setdefault(pause.queue, set()).add(pause.job_name)
        elif pause.key is not None:
            keys = self._keys.setdefault(pause.queue, {})
            keys[pause.key] = _later(keys[pause.key], pause.until) if pause.key in keys else pause.until

    def __bool__(self) -> bool:
        return bool(self._pauses)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pauses) and self._pauses == other._pauses

    def __hash__(self) -> int:
        return hash(self._pauses)

    def queue(self, name: str) -> bool:
        """Return True if the whole queue is paused."""
        return name in self._queues

    def job_names(self, queue: str) -> frozenset[str]:
        """Return job names paused here."""
        return frozenset(self._names.get(None, ())) | frozenset(self._names.get(queue, ()))

    def keys(self, queue: str) -> Mapping[str, datetime | None]:
        """Return keys paused here, with their ends."""
        everywhere, here = self._keys.get(None, {}), self._keys.get(queue, {})
        both = {key: _later(everywhere[key], here[key]) for key in everywhere.keys() & here.keys()}
        return everywhere | here | both

    def pairs(self, queue: str) -> frozenset[tuple[str, str]]:
        """Return pairs of key and name paused here."""
        return frozenset(self._both.get(None, ())) | frozenset(self._both.get(queue, ()))

    def names_any(self, queue: str) -> bool:
        """Return True if each row must be checked."""
        kinds = (self._names, self._keys, self._both)
        return any(where in kind for where in (None, queue) for kind in kinds)

    def applies(self, queue: str, job_name: str, key: str | None) -> bool:
        """Return True if this job is paused."""
        if queue in self._queues:
            return True
        return any(
            job_name in self._names.get(where, ())
            or (
                key is not None
                and (key in self._keys.get(where, ()) or (key, job_name) in self._both.get(where, ()))
            )
            for where in (None, queue)
        )

    @property
    def queues(self) -> frozenset[str] | None:
        """Queues with pauses; None for all."""
        names = [pause.queue for pause in self._pauses]
        return None if None in names else frozenset(name for name in names if name is not None)


class FollowedPauses:
    """Pauses in memory; `pauses` is the same object until one changes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._table = FollowedTable("queue_pauses", f"number, {_COLUMNS}", lambda row: Pause._make(row[1:]))
        self._next_end: datetime | None = None
        self.pauses = Pauses()

    def look(self) -> Pauses:
        """Read changes; return the current pauses."""
        changed, now = self._table.look(self._connection), self._table.now
        if changed or (now and self._next_end and now >= self._next_end):
            held = [
                each for each in self._table.rows.values() if not (each.until and now and each.until <= now)
            ]
            self._next_end = min((each.until for each in held if each.until), default=None)
            self.pauses = Pauses(sorted(held, key=attrgetter("paused_at")))
        return self.pauses


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return None if one is None or other is None else max(one, other)
