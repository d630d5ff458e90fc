"""Flows and batches by name, and their slowest nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drain.database.postgres import fetch_one
from drain.pipeline.history import Instant
from drain.pipeline.lake.files import Archive
from drain.pipeline.stats.question import Question
from drain.pipeline.stats.report import PERCENTILES, Flows, Node, Times
from drain.tables.columns import HAS_RUN, MARKER

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, Row, SparkSession

_MOST_NODES = 100
_EXIST = "SELECT EXISTS (SELECT FROM flows)"
_IS_END = f"job_name = '{MARKER}'"
# Of seconds; percentiles last.
_TIMES = f"""
count(seconds) AS timed, avg(seconds) AS avg, min(seconds) AS min, max(seconds) AS max,
percentile(seconds, array({", ".join(f"{share}D" for share in PERCENTILES.values())})) AS percentiles
"""
_CHOSEN = """
SELECT id, coalesce(name, '') AS name, state, (unix_micros(finished_at) - unix_micros(staged_at)) / 1e6 AS seconds
FROM {flows} JOIN (
    SELECT id, 'finished' AS state, finished_at FROM {finished}
    UNION ALL SELECT id, 'unfinished', NULL FROM {staged} UNION ALL SELECT id, 'cancelled', NULL FROM {dead}) USING (id)
"""
# As drain_flow_progress counts them.
_MEMBERS = """
SELECT name, node, awaited_id AS id FROM {edges} JOIN {chosen} ON id = child_id
WHERE parent_id > child_id AND on_failure <> 'run'
"""
_FLOWS = f"""
SELECT *, coalesce(joined, 0) AS members, coalesce(lost, 0) AS dead FROM (
    SELECT name, count_if(state = 'finished') AS finished, count_if(state = 'unfinished') AS unfinished,
        count_if(state = 'cancelled') AS cancelled, {_TIMES} FROM {{chosen}} GROUP BY name)
LEFT JOIN (
    SELECT name, count(*) AS joined, count(died.id) AS lost
    FROM {{members}} AS member LEFT JOIN {{dead}} AS died USING (id) GROUP BY name) USING (name)
ORDER BY finished + unfinished + cancelled DESC, name
"""
_NODES = f"""
SELECT name, node, {_TIMES} FROM (
    SELECT name, node, greatest(unix_micros(finished_at) - unix_micros(claimed_at), 0) / 1e6 AS seconds
    FROM {{members}} JOIN {{ran}} USING (id) WHERE node IS NOT NULL)
GROUP BY name, node ORDER BY percentiles[2] DESC, name, node LIMIT {_MOST_NODES}
"""


def measure(
    spark: SparkSession, instant: Instant, question: Question, now: datetime, archive: str | None
) -> tuple[list[Flows], list[Node]]:
    """Compute figures of flows that have finished since the report's start, or not yet; none for selected jobs."""
    (exist,) = fetch_one(instant.connection, _EXIST)
    has_archived = archive is not None and Archive(archive, "flows").exists()
    if question.queue is not None or question.job is not None or not (exist or has_archived):
        return [], []
    begin = question.begin(now)
    since = begin.date() if begin else None

    def finished(names: list[str], where: str) -> DataFrame:
        conditions = " AND ".join(filter(None, [where, question.condition(now)]))
        return instant.finished(spark, names, archive=archive, where=conditions, since=since)

    flows = instant.related(spark, "flows", ["id", "name", "staged_at"], archive=archive, since=since)
    edges = instant.related(
        spark,
        "job_edges",
        ["child_id", "parent_id", "awaited_id", "on_failure", "node"],
        archive=archive,
        since=since,
    )
    dead = instant.table(spark, "dead_jobs", ["id"])
    chosen = spark.sql(
        _CHOSEN,
        flows=flows,
        finished=finished(["id", "finished_at"], _IS_END),
        staged=instant.table(spark, "staged_jobs", ["id"], where=_IS_END),
        dead=dead,
    )
    members = spark.sql(_MEMBERS, edges=edges, chosen=chosen)
    ran = finished(["id", "claimed_at", "finished_at"], HAS_RUN)
    by_name = spark.sql(_FLOWS, chosen=chosen, members=members, dead=dead).collect()
    nodes = spark.sql(_NODES, members=members, ran=ran).collect()
    return (
        [
            Flows(
                name=row.name,
                finished=row.finished,
                unfinished=row.unfinished,
                cancelled=row.cancelled,
                members=row.members,
                dead=row.dead,
                duration=_times(row),
            )
            for row in by_name
        ],
        [Node(flow=row.name, node=row.node, processing=times) for row in nodes if (times := _times(row))],
    )


def _times(row: Row) -> Times | None:
    if not row.timed:
        return None
    shares = dict(zip(PERCENTILES, row.percentiles, strict=True))
    return Times(row.timed, row.avg, row.min, row.max, **shares)
