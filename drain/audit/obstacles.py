"""Excuses of a late row: pauses, unique keys, and queues or keys that cannot start jobs.

Without a leader, limits, rates and full lists excuse nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from drain.admission.depths import SHORTEST, room_of
from drain.database.postgres import Connection
from drain.read import causes, queries, waiting_by_cause
from drain.tables import pauses, rules
from drain.tables.columns import IS_BLOCKED
from drain.tables.pauses import IS_PAUSED, Pauses

# With the parameters of `Held`.
IS_HELD = """(queue = ANY (%(held_queues)s::text[]) OR (key IS NOT NULL AND (job.queue, job.key) IN (
    SELECT held.queue, held.key
    FROM unnest(%(queues_of_keys)s::text[], %(held_keys)s::text[]) AS held (queue, key))))"""
IS_QUIET = f"""(quiet_seconds IS NOT NULL AND EXISTS (
    SELECT FROM staged_jobs AS other WHERE other.unique_key = job.unique_key AND other.job_name = job.job_name
        AND NOT other.{IS_BLOCKED}
        AND other.staged_at > now() - make_interval(secs => job.quiet_seconds + %(seconds)s::float8)))"""
NOTHING_HOLDS_STAGED = f"NOT {IS_PAUSED} AND NOT {IS_HELD} AND NOT {IS_QUIET}"
NOTHING_HOLDS_RETRY = f"NOT {IS_PAUSED} AND NOT {IS_HELD}"
_BUSY = """
SELECT DISTINCT queue FROM inflight_jobs WHERE lease_expires_at IS NOT NULL AND lease_expires_at > now()
"""


class Held(NamedTuple):
    """Queues that cannot start jobs now, and keys, parallel to theirs."""

    held_queues: list[str]
    queues_of_keys: list[str]
    held_keys: list[str]


def read_held(connection: Connection) -> Held:
    """Find queues and keys that cannot start jobs."""
    if queries.leader(connection) is None:
        return Held([], [], [])
    queues = _full_lists(connection)
    keys: list[tuple[str, str]] = []
    followed = rules.read_of(connection, queries.queues(connection))
    paused = Pauses(pauses.read(connection))
    standings = causes.read_standings(connection, followed.values(), paused, most=None, heads=None)
    for each in followed.values():
        standing = standings[each.queue]
        if standing.is_full or standing.rate_is_used_up:
            queues.add(each.queue)
        keys += ((each.queue, key) for key in standing.full_keys | standing.empty_keys)
    return Held(sorted(queues), [queue for queue, _ in keys], [key for _, key in keys])


def _full_lists(connection: Connection) -> set[str]:
    """Guess which lists are full, without Redis: too many delivered, or any while workers are busy."""
    busy = {queue for (queue,) in connection.execute(_BUSY)}
    delivered = waiting_by_cause.count_delivered(connection, SHORTEST)
    return {queue for queue, number in delivered.items() if queue in busy or not room_of(SHORTEST, number)}
