"""Due rows of a queue with rules: heads of keys and lanes, and the rows that follow.

Scans start from a place, so that they skip drained rows under an old snapshot.
"""

# One thing: statements about due rows that share conditions and pauses.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from drain.database.postgres import Connection, fetch_one
from drain.tables import lanes
from drain.tables.columns import DUE, LANE_KIND, LANE_QUEUE, id_array
from drain.tables.staged import DueJob, Place

# `pairs` joins key and name by a line feed, which names lack.
_NOT_PAUSED = """job_name <> ALL (%(names)s::text[])
        AND coalesce(key || E'\\n' || job_name, '') <> ALL (%(pairs)s::text[])"""
_WITH_KEY = f"{DUE} AND key IS NOT NULL AND queue = %(queue)s"

HEADS = f"""
WITH RECURSIVE heads AS (
    (SELECT key, priority, id FROM staged_jobs_ready
     WHERE {_WITH_KEY} AND key > %(key)s::text AND {_NOT_PAUSED}
     ORDER BY key, priority, id LIMIT 1)
    UNION ALL
    SELECT following.* FROM heads, LATERAL (
        SELECT key, priority, id FROM staged_jobs_ready
        WHERE {_WITH_KEY} AND key > heads.key AND {_NOT_PAUSED}
        ORDER BY key, priority, id LIMIT 1) AS following
)
SELECT key, priority, id FROM heads LIMIT %(limit)s
"""
# One look-up per lane, or per lane and priority.
LANES = f"""
WITH RECURSIVE kinds AS (
    SELECT pg_catalog.unnest(%(kinds)s::integer[]) AS kind
), heads AS (
    SELECT kinds.kind, first.priority, first.id FROM kinds, LATERAL (
        SELECT priority, id FROM staged_jobs_ready
        WHERE {DUE} AND {LANE_KIND} = kinds.kind AND {LANE_QUEUE} = %(queue)s
            AND {_NOT_PAUSED} AND coalesce(key, '') <> ALL (%(keys)s::text[])
        ORDER BY priority, id LIMIT 1) AS first
    UNION ALL
    SELECT heads.kind, following.* FROM heads, LATERAL (
        SELECT priority, id FROM staged_jobs_ready
        WHERE %(each)s AND {DUE} AND {LANE_KIND} = heads.kind AND {LANE_QUEUE} = %(queue)s AND priority > heads.priority
            AND {_NOT_PAUSED} AND coalesce(key, '') <> ALL (%(keys)s::text[])
        ORDER BY priority, id LIMIT 1) AS following
)
SELECT kind, priority, id FROM heads LIMIT %(limit)s
"""

READ_KEYS = f"""
SELECT wanted.number, job.priority, job.id
FROM unnest(%(keys)s::text[], %(priorities)s::integer[], %(ids)s::bigint[], %(counts)s::integer[]) WITH ORDINALITY
    AS wanted (wanted_key, after_priority, after_id, count, number),
LATERAL (
    SELECT priority, id FROM staged_jobs_ready
    WHERE {_WITH_KEY} AND key = wanted.wanted_key
        AND (priority, id) > (wanted.after_priority, wanted.after_id) AND {_NOT_PAUSED}
    ORDER BY priority, id LIMIT wanted.count) AS job
"""
# The key's next row of any priority.
_FOLLOWING = (
    "pg_catalog.lead(priority) OVER (ORDER BY priority, id), pg_catalog.lead(id) OVER (ORDER BY priority, id)"
)
_BEHIND_FIRST = f"""(
    SELECT true FROM staged_jobs_ready WHERE {DUE} AND {LANE_KIND} = %s AND {LANE_QUEUE} = %%(queue)s
        AND priority > (SELECT min(priority) FROM firsts)
    ORDER BY priority, id LIMIT 1)"""
# Most queues have one priority and skip the second look-up: 17, not 26 us per admission.
_HAS_PRIORITIES = f"({_BEHIND_FIRST % lanes.URGENT_WITH_KEY} OR {_BEHIND_FIRST % lanes.PATIENT_WITH_KEY})"
# Even paused rows, which hold those behind them. From each key's start: late commits, moves and unmatured rows may come
# first. IS TRUE makes the planner hash the keys.
FIRST_OF_KEYS = f"""
WITH RECURSIVE firsts (key, priority, id, following_priority, following_id) AS MATERIALIZED (
    SELECT first.* FROM pg_catalog.unnest(%(keys)s::text[]) AS wanted (wanted_key), LATERAL (
        SELECT key, priority, id, {_FOLLOWING} FROM staged_jobs_ready
        WHERE {_WITH_KEY} AND key = wanted.wanted_key
        ORDER BY priority, id LIMIT 1) AS first
), heads AS (
    SELECT * FROM firsts
    UNION ALL
    SELECT following.* FROM heads, LATERAL (
        SELECT key, priority, id, {_FOLLOWING} FROM staged_jobs_ready
        WHERE {_HAS_PRIORITIES}
            AND heads.following_id IS NOT NULL AND {_WITH_KEY} AND key = heads.key AND priority > heads.priority
        ORDER BY priority, id LIMIT 1) AS following
)
SELECT *, true FROM heads
UNION ALL
SELECT key, min(priority), min(id), NULL, NULL, false FROM staged_jobs_scheduled
WHERE scheduled_at <= now() AND queue = %(queue)s
    AND (key IN (SELECT * FROM pg_catalog.unnest(%(keys)s::text[]))) IS TRUE
GROUP BY key
"""
READ_LANES = f"""
SELECT wanted.number, job.priority, job.id, job.due_at
FROM unnest(%(kinds)s::integer[], %(priorities)s::integer[], %(ids)s::bigint[], %(up_to)s::integer[],
        %(counts)s::integer[]) WITH ORDINALITY
    AS wanted (kind, after_priority, after_id, up_to, count, number),
LATERAL (
    SELECT priority, id, extract(epoch FROM greatest(scheduled_at, staged_at, matured_at))::float8 AS due_at
    FROM staged_jobs_ready
    WHERE {DUE} AND {LANE_KIND} = wanted.kind AND {LANE_QUEUE} = %(queue)s
        AND (priority, id) > (wanted.after_priority, wanted.after_id) AND priority <= wanted.up_to
        AND {_NOT_PAUSED} AND coalesce(key, '') <> ALL (%(keys)s::text[])
    ORDER BY priority, id LIMIT wanted.count) AS job
"""
# Excludes rows moved to another queue.
READ_ROWS = """
SELECT id, queue, job_name, timeout_seconds, coalesce(expires_at <= now(), false), priority, key, unique_key
FROM staged_jobs_ready WHERE id = ANY (%s::bigint[])
"""
RECENT = f"""
WITH recent AS MATERIALIZED (
    SELECT id, queue, key, priority, {LANE_KIND} AS kind, job_name FROM staged_jobs_ready
    WHERE id > %(after)s ORDER BY id LIMIT %(limit)s
)
SELECT kind, key, priority, min(id) FROM recent WHERE queue = %(queue)s AND {_NOT_PAUSED} GROUP BY kind, key, priority
UNION ALL
SELECT NULL, NULL, count(*)::integer, max(id) FROM recent
"""
RECENT_QUEUES = """
WITH recent AS MATERIALIZED (SELECT id, queue FROM staged_jobs_ready WHERE id > %(after)s ORDER BY id LIMIT %(limit)s)
SELECT queue, max(id) FROM recent GROUP BY queue
"""
_LAST_ID = "SELECT coalesce((SELECT id FROM staged_jobs_ready ORDER BY id DESC LIMIT 1), 0)"
# Keys of dead jobs or waiting retries. OFFSET keeps the planner from doing look-ups twice.
HELD_KEYS = """
SELECT key, is_dead, waiting FROM (
    SELECT wanted.key, %(dead)s AND coalesce((
            SELECT true FROM dead_jobs AS job
            WHERE job.queue = %(queue)s AND job.key = wanted.key AND job.key IS NOT NULL AND reason <> 'cancelled'
            LIMIT 1), false) AS is_dead,
        CASE WHEN %(waiting)s THEN (
            SELECT id FROM inflight_jobs AS job
            WHERE job.queue = %(queue)s AND job.key = wanted.key AND job.key IS NOT NULL AND next_run_at IS NOT NULL
            ORDER BY id LIMIT 1) END AS waiting
    FROM pg_catalog.unnest(%(keys)s::text[]) AS wanted (key) OFFSET 0) AS held
WHERE is_dead OR waiting IS NOT NULL
"""
LOCK = """
SELECT id FROM staged_jobs_ready WHERE id = ANY (%s::bigint[]) AND queue = %s FOR UPDATE SKIP LOCKED
"""


@dataclass(frozen=True, slots=True)
class Paused:
    """Rows to skip: job `names`, `pairs` of key and name, and, in lanes, `keys`."""

    names: Sequence[str] = ()
    pairs: Sequence[tuple[str, str]] = ()
    keys: Sequence[str] = ()

    def parameters(self) -> dict[str, list[str]]:
        """Return statement parameters."""
        pairs = [f"{key}\n{name}" for key, name in self.pairs]
        return {"names": list(self.names), "pairs": pairs}

    def applies_to(self, row: DueJob) -> bool:
        """Return True if the row is paused."""
        return row.job_name in self.names or (row.key or "", row.job_name) in self.pairs


class Head(NamedTuple):
    """First row of a key or lane, or a lower bound."""

    kind: int
    key: str | None
    priority: int
    id: int


class Wanted(NamedTuple):
    """Up to `most` rows after a place; `up_to` is a priority."""

    key: str
    after: Place
    most: int
    kind: int = 0
    up_to: int = 0


def heads_of_keys(connection: Connection, queue: str, key: str, limit: int, paused: Paused) -> list[Head]:
    """Return the first rows of keys after `key`."""
    parameters = {"queue": queue, "key": key, "limit": limit, **paused.parameters()}
    return [Head(0, *row) for row in connection.execute(HEADS, parameters, binary=True)]


def heads_of_lanes(
    connection: Connection, queue: str, kinds: Sequence[int], paused: Paused, *, each: bool, limit: int
) -> list[Head]:
    """Return the first row of each lane, or of its priorities."""
    parameters = {
        "each": each,
        "limit": limit,
        "queue": queue,
        "kinds": id_array(kinds),
        "keys": list(paused.keys),
        **paused.parameters(),
    }
    return [Head(row[0], None, *row[1:]) for row in connection.execute(LANES, parameters, binary=True)]


def read_keys(
    connection: Connection, queue: str, wanted: Sequence[Wanted], paused: Paused
) -> list[list[Place]]:
    """Return the places of each key's next rows."""
    parameters = _parameters(queue, wanted, paused) | {"keys": [each.key for each in wanted]}
    found: list[list[Place]] = [[] for _ in wanted]
    for number, priority, id_ in connection.execute(READ_KEYS, parameters, binary=True).fetchall():
        found[number - 1].append((priority, id_))
    return found


class First(NamedTuple):
    """Due row with its key's lowest id, `is_ready` if matured; `following` is the next place."""

    priority: int
    id: int
    is_ready: bool
    following: Place | None = None


def _earlier(one: First, other: First) -> First:
    first, second = (one, other) if one.id < other.id else (other, one)
    if first.following and first.following[1] <= second.id:
        return first
    return first._replace(following=(second.priority, second.id))


def first_of_keys(connection: Connection, queue: str, keys: Sequence[str]) -> dict[str, First]:
    """Return each key's due row with the lowest id, even if paused."""
    found: dict[str, First] = {}
    parameters = {"queue": queue, "keys": list(keys)}
    rows = connection.execute(FIRST_OF_KEYS, parameters, binary=True)
    for key, priority, id_, following_priority, following_id, is_ready in rows.fetchall():
        following = (following_priority, following_id) if following_id else None
        first = First(priority, id_, is_ready, following)
        found[key] = _earlier(found[key], first) if key in found else first
    return found


def read_lanes(
    connection: Connection, queue: str, wanted: Sequence[Wanted], paused: Paused
) -> list[list[tuple[Place, float]]]:
    """Return places and due times of lanes' next rows."""
    parameters = _parameters(queue, wanted, paused) | {
        "kinds": id_array(each.kind for each in wanted),
        "up_to": id_array(each.up_to for each in wanted),
        "keys": list(paused.keys),
    }
    found: list[list[tuple[Place, float]]] = [[] for _ in wanted]
    for number, priority, id_, due_at in connection.execute(READ_LANES, parameters, binary=True).fetchall():
        found[number - 1].append(((priority, id_), due_at))
    return found


def read_rows(connection: Connection, queue: str, ids: Iterable[int]) -> dict[int, DueJob]:
    """Read staged rows by id, without missing ones."""
    rows = connection.execute(READ_ROWS, (id_array(ids),), binary=True).fetchall()
    return {row[0]: DueJob._make(row) for row in rows if row[1] == queue}


def _parameters(queue: str, wanted: Sequence[Wanted], paused: Paused) -> dict[str, Any]:
    return {
        "queue": queue,
        "priorities": id_array(each.after[0] for each in wanted),
        "ids": id_array(each.after[1] for each in wanted),
        "counts": id_array(each.most for each in wanted),
        **paused.parameters(),
    }


def recent(
    connection: Connection, queue: str, after: int, limit: int, paused: Paused
) -> tuple[list[Head], int]:
    """Return first rows per key and priority, and the last id.

    A hint only: it misses lower ids that commit later.
    """
    parameters = {"queue": queue, "after": after, "limit": limit, **paused.parameters()}
    *rows, (_, _, _, last) = connection.execute(RECENT, parameters, binary=True).fetchall()
    return [Head._make(row) for row in rows], max(after, last or after)


def recent_queues(connection: Connection, after: int, limit: int) -> tuple[set[str], int]:
    """Return the queues of the next rows, and the last id."""
    found = dict(connection.execute(RECENT_QUEUES, {"after": after, "limit": limit}, binary=True).fetchall())
    return set(found), max(found.values(), default=after)


def last_id(connection: Connection) -> int:
    """Return the highest ready id, or 0."""
    (found,) = fetch_one(connection, _LAST_ID)
    return int(found)


def held_keys(
    connection: Connection, queue: str, keys: Sequence[str], *, dead: bool, waiting: bool
) -> dict[str, int | None]:
    """Return held keys with the lowest waiting retry, or None for a dead job.

    Dead jobs, unless cancelled, hold their keys if `dead`; waiting retries hold higher ids if `waiting`.
    """
    parameters = {"queue": queue, "keys": list(keys), "dead": dead, "waiting": waiting}
    rows = connection.execute(HELD_KEYS, parameters, binary=True)
    return {key: None if is_dead else job_id for key, is_dead, job_id in rows}


def lock(connection: Connection, queue: str, ids: Iterable[int]) -> set[int]:
    """Lock staged rows; return the ids neither locked elsewhere nor moved."""
    return {job_id for (job_id,) in connection.execute(LOCK, (id_array(ids), queue))}
