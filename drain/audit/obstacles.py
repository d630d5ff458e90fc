"""Obstacles that explain why a row is overdue: pauses, unique keys, and queues or keys that may start nothing now.

Limits, rates and full lists are kept by a leader. Without one they explain nothing: a row that waits for a leader is
overdue.
"""

from __future__ import annotations

from typing import NamedTuple

from drain.admission.depths import SHORTEST, room_of
from drain.database.postgres import Connection
from drain.read import causes, queries, waiting_by_cause
from drain.tables import pauses, rules
from drain.tables.pauses import IS_PAUSED, Pauses

# Condition on a row of `job`: its queue or its key may start nothing now; the parameters are those of `Held`.
IS_HELD = """(queue = ANY (%(held_queues)s::text[]) OR (key IS NOT NULL AND (job.queue, job.key) IN (
    SELECT held.queue, held.key
    FROM unnest(%(queues_of_keys)s::text[], %(held_keys)s::text[]) AS held (queue, key))))"""
# Condition on a row of `job`: none of its unique key may have come lately, and one has.
IS_QUIET = """(quiet_seconds IS NOT NULL AND EXISTS (
    SELECT FROM staged_jobs AS other WHERE other.unique_key = job.unique_key AND other.job_name = job.job_name
        AND other.staged_at > now() - make_interval(secs => job.quiet_seconds + %(seconds)s::float8)))"""
# Condition on a staged row of `job`, and on one that waits for its next attempt: nothing explains why it waits.
NOTHING_HOLDS_STAGED = f"NOT {IS_PAUSED} AND NOT {IS_HELD} AND NOT {IS_QUIET}"
NOTHING_HOLDS_RETRY = f"NOT {IS_PAUSED} AND NOT {IS_HELD}"
_BUSY = """
SELECT DISTINCT queue FROM inflight_jobs WHERE lease_expires_at IS NOT NULL AND lease_expires_at > now()
"""


class Held(NamedTuple):
    """Queues, and keys of queues, of which nothing may start now; the lists of keys and of their queues go together."""

    held_queues: list[str]
    queues_of_keys: list[str]
    held_keys: list[str]


def read_held(connection: Connection) -> Held:
    """Find the queues and keys that limits, rates, dead jobs or full lists hold back."""
    if queries.leader(connection) is None:
        return Held([], [], [])
    queues = _full_lists(connection)
    keys: list[tuple[str, str]] = []
    followed = rules.read_of(connection, queries.queues(connection))
    standings = causes.read_standings(connection, followed.values(), Pauses(pauses.read(connection)))
    for each in followed.values():
        standing = standings[each.queue]
        if standing.is_full or standing.rate_is_used_up:
            queues.add(each.queue)
        keys += ((each.queue, key) for key in standing.full_keys | standing.empty_keys)
    return Held(sorted(queues), [queue for queue, _ in keys], [key for _, key in keys])


def _full_lists(connection: Connection) -> set[str]:
    """Name the queues whose lists may be full: more than any list takes wait there, or some do while workers are busy.

    The audit may have no Redis to ask for the bounds of the lists.
    """
    busy = {queue for (queue,) in connection.execute(_BUSY)}
    delivered = waiting_by_cause.count_delivered(connection, SHORTEST)
    return {queue for queue, number in delivered.items() if queue in busy or not room_of(SHORTEST, number)}
