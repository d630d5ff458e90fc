"""List entries that belong to no job or no delivery."""

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
    "in Redis ({queues}) but in no table: discarded or archived since, "
    "or from another database with the same namespace"
)
_AHEAD = (
    "in Redis ({queues}) with numbers that were never assigned: PostgreSQL has lost its latest commits, "
    "or another database has the same namespace"
)

# One statement is one snapshot, so that no job is between tables.
_IN_NO_TABLE = """
SELECT id FROM pg_catalog.unnest(%s::bigint[]) AS listed (id)
WHERE NOT EXISTS (SELECT FROM staged_jobs AS job WHERE job.id = listed.id)
    AND NOT EXISTS (SELECT FROM inflight_jobs AS job WHERE job.id = listed.id)
    AND NOT EXISTS (SELECT FROM finished_jobs AS job WHERE job.id = listed.id)
    AND NOT EXISTS (SELECT FROM dead_jobs AS job WHERE job.id = listed.id)
"""


class Entry(NamedTuple):
    """Redis list entry."""

    queue: str
    id: int
    delivery: int


def orphans_among(connection: Connection, entries: Collection[Entry]) -> set[Entry]:
    """Find entries without a job, or with an unissued delivery number."""
    if not entries:
        return set()
    unknown = _ids_in_no_table(connection, entries)
    # Read after the list: numbers are issued before they are pushed.
    last = leader_progress.progress(connection).last_delivery
    return {entry for entry in entries if entry.id in unknown or entry.delivery > last}


def orphan_breaches(connection: Connection, orphans: set[Entry]) -> list[Breach]:
    """Build a breach for each reason."""
    ids = _ids_in_no_table(connection, orphans)
    unknown = {entry for entry in orphans if entry.id in ids}
    return [
        Breach(
            "redis",
            explanation.format(queues=queue_names({entry.queue for entry in found})),
            len(found),
            samples({entry.id for entry in found}),
        )
        for found, explanation in ((unknown, _UNKNOWN), (orphans - unknown, _AHEAD))
        if found
    ]


def _ids_in_no_table(connection: Connection, entries: Collection[Entry]) -> set[int]:
    unknown: set[int] = set()
    for slice_ in slices(entries, _IDS_PER_STATEMENT):
        ids = id_array(entry.id for entry in slice_)
        unknown.update(id_ for (id_,) in connection.execute(_IN_NO_TABLE, (ids,)))
    return unknown
