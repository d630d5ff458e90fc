"""Tags of the next jobs in line."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from drain.database.postgres import Connection
from drain.tables import lanes
from drain.tables.columns import DELIVERED, DUE, LANE_KIND, LANE_QUEUE, id_array
from drain.tables.waiting import WAITS_SINCE

COUNT_TAGS = f"""
SELECT tag, count(*) AS number, greatest(0, date_part('epoch', clock_timestamp() - min(since))) FROM (
    SELECT delivered.* FROM pg_catalog.unnest(%(queues)s::text[]) AS known (queue), LATERAL (
        SELECT tag, {WAITS_SINCE} AS since FROM inflight_jobs AS job
        WHERE {DELIVERED} AND job.queue = known.queue
        ORDER BY job.queue, job.delivery LIMIT %(most)s::bigint) AS delivered
    UNION ALL
    SELECT due.* FROM unnest(%(kinds)s::integer[], %(lanes)s::text[]) AS lane (kind, queue), LATERAL (
        SELECT tag, greatest(staged_at, matured_at) AS since FROM staged_jobs_ready AS job
        WHERE {DUE} AND {LANE_KIND} = lane.kind AND job.{LANE_QUEUE} = lane.queue
        ORDER BY job.priority, job.id LIMIT %(most)s::bigint) AS due
) AS waiting WHERE tag <> '' GROUP BY tag ORDER BY number DESC, tag LIMIT %(tags)s::bigint
"""


class Tag(NamedTuple):
    """Tag of waiting jobs."""

    tag: str
    number: int
    seconds: float


def count_tags(connection: Connection, queues: Collection[str], *, most: int, tags: int) -> list[Tag]:
    """Count due jobs by tag, most frequent first.

    Args:
        connection: With sequential scans off.
        queues: For delivered jobs; staged ones are counted in all queues.
        most: Rows to read, shared by queues and lanes, at least one each.
    """
    found = lanes.find_lanes(connection, lanes.KINDS, most=most)
    parameters = {
        "queues": list(queues),
        "kinds": id_array(lane.kind for lane in found),
        "lanes": [lane.queue for lane in found],
        "most": max(1, most // max(1, len(queues) + len(found))),
        "tags": tags,
    }
    return [Tag._make(row) for row in connection.execute(COUNT_TAGS, parameters)]
