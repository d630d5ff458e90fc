"""What is in a list and should be in none."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from drain.audit.recheck import slices
from drain.audit.report import Breach, queue_names, samples
from drain.database.postgres import Connection
from drain.tables import leader_progress
from drain.tables.columns import id_array

_IDS_PER_STATEMENT = 10_000

_UNKNOWN = (
    "in Redis ({queues}) and in no table: discarded or archived since, "
    "or of another database with the same namespace"
)
_AHEAD = (
    "in Redis ({queues}) under numbers that were never handed out: PostgreSQL has forgotten its latest commits, "
    "or another database has the same namespace"
)

# One statement, and so one snapshot: a job is never seen between two tables.
_IN_NO_TABLE = """
SELECT id FROM pg_catalog.unnest(%s::bigint[]) AS listed (id)
WHERE NOT EXISTS (SELECT FROM staged_jobs AS job WHERE job.id = listed.id)
    AND NOT EXISTS (SELECT FROM inflight_jobs AS job WHERE job.id = listed.id)
    AND NOT EXISTS (SELECT FROM finished_jobs AS job WHERE job.id = listed.id)
    AND NOT EXISTS (SELECT FROM dead_jobs AS job WHERE job.id = listed.id)
"""


class Stray(NamedTuple):
    """An entry in a list that should be in none."""

    queue: str
    id: int
    delivery: int


def astray(connection: Connection, entries: Collection[Stray]) -> set[Stray]:
    """Those of jobs that are in no table, or under numbers that were never handed out."""
    if not entries:
        return set()
    unknown = _unknown(connection, entries)
    # Asked after the list was read: a number is handed out before it is pushed.
    last = leader_progress.progress(connection).last_delivery
    return {entry for entry in entries if entry.id in unknown or entry.delivery > last}


def stray_breaches(connection: Connection, strays: set[Stray]) -> list[Breach]:
    """One for each of the two reasons."""
    ids = _unknown(connection, strays)
    unknown = {stray for stray in strays if stray.id in ids}
    return [
        Breach(
            "redis",
            explanation.format(queues=queue_names({stray.queue for stray in found})),
            len(found),
            samples({stray.id for stray in found}),
        )
        for found, explanation in ((unknown, _UNKNOWN), (strays - unknown, _AHEAD))
        if found
    ]


def _unknown(connection: Connection, entries: Collection[Stray]) -> set[int]:
    unknown: set[int] = set()
    for slice_ in slices(entries, _IDS_PER_STATEMENT):
        ids = id_array(entry.id for entry in slice_)
        unknown.update(id_ for (id_,) in connection.execute(_IN_NO_TABLE, (ids,)))
    return unknown
