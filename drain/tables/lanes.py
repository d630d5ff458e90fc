"""Lanes of due staged jobs: ranges of `staged_jobs_in_lanes`.

Full queues are skipped, however many rows wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from drain.database.postgres import Connection
from drain.tables.columns import DUE, LANE_KIND, LANE_QUEUE, id_array
from drain.tables.staged import START, DueJob, Place

# Priorities up to 0 are urgent; `columns.LANE_KIND` computes the kind.
URGENT, URGENT_WITH_KEY, PATIENT, PATIENT_WITH_KEY = KINDS = range(4)


class Lane(NamedTuple):
    """A queue's rows of one kind."""

    kind: int
    queue: str


class Head(NamedTuple):
    """Up to `most` rows of a lane after a place."""

    lane: Lane
    most: int
    after: Place = START


# Bounds of queue names in collation "C".
_BEFORE_ALL, _BEHIND_ALL = "", "~"
# One look-up per lane found, in the gaps between known lanes, to skip their rows and dead entries. A row comparison
# would read on to the end of the kind.
_NEXT_LANE = f"""
    SELECT {{gap}}.kind, job.queue FROM staged_jobs_ready AS job
    WHERE {DUE} AND {LANE_KIND} = {{gap}}.kind AND job.{LANE_QUEUE} > {{behind}} AND job.{LANE_QUEUE} < {{gap}}.high
    ORDER BY job.{LANE_QUEUE}, job.priority, job.id LIMIT 1
"""
_LANES = f"""
WITH RECURSIVE heads AS (
    SELECT found.*, gap.high
    FROM unnest(%(kinds)s::integer[], %(lows)s::text[], %(highs)s::text[]) AS gap (kind, low, high),
        LATERAL ({_NEXT_LANE.format(gap="gap", behind="gap.low")}) AS found
    UNION ALL
    SELECT found.*, heads.high FROM heads, LATERAL ({_NEXT_LANE.format(gap="heads", behind="heads.queue")}) AS found
)
"""
# LIMIT ends the recursion.
FIND_LANES = f"{_LANES} SELECT kind, queue FROM heads LIMIT %(most)s::bigint"
_WITH_ROWS = f"""
SELECT lane.kind, lane.queue FROM unnest(%(kinds)s::integer[], %(queues)s::text[]) AS lane (kind, queue)
WHERE EXISTS (
    SELECT FROM staged_jobs_ready AS job
    WHERE {DUE} AND {LANE_KIND} = lane.kind AND job.{LANE_QUEUE} = lane.queue)
"""


_DUE_JOB = """job.id, job.queue, job.job_name, job.timeout_seconds, coalesce(job.expires_at <= now(), false),
    job.priority, job.key, job.unique_key"""
# Lanes with fewer rows need no second round trip: measured at 500 jobs/s, a tenth of the time to push.
FIRST_ROWS = 20
_LANES_WITH_ROWS = 50
# Stands for due scheduled rows: rare, but asking costs a round trip.
_SCHEDULED = Lane(-1, "")
SEARCH = f"""{_LANES}
SELECT lane.kind, lane.queue, first.*
FROM (SELECT *, row_number() OVER () AS number FROM (SELECT * FROM heads LIMIT %(most)s::bigint) AS found) AS lane
LEFT JOIN LATERAL (
    SELECT {_DUE_JOB} FROM staged_jobs_ready AS job
    WHERE {DUE} AND {LANE_KIND} = lane.kind AND job.{LANE_QUEUE} = lane.queue
    ORDER BY job.priority, job.id LIMIT CASE WHEN lane.number <= {_LANES_WITH_ROWS} THEN {FIRST_ROWS} ELSE 0 END
) AS first ON true
UNION ALL
SELECT {_SCHEDULED.kind}, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
WHERE EXISTS (SELECT FROM staged_jobs_scheduled WHERE scheduled_at <= now())
"""


class Found(NamedTuple):
    """Lanes with all rows if fewer than `FIRST_ROWS`, else the first or none."""

    first_rows: Mapping[Lane, Sequence[DueJob]]
    has_scheduled: bool


def find_lanes(
    connection: Connection, kinds: Iterable[int], known: Collection[Lane] = (), *, most: int | None = None
) -> list[Lane]:
    """Return unknown lanes with due rows."""
    parameters = _gaps(kinds, known) | {"most": most}
    return [Lane._make(row) for row in connection.execute(FIND_LANES, parameters)]


def walk(connection: Connection, kind: int, behind: str, most: int) -> list[Lane]:
    """Return the kind's next lanes after this queue name."""
    gap = {"kinds": id_array([kind]), "lows": _name_array([behind]), "highs": _name_array([_BEHIND_ALL])}
    return [Lane._make(row) for row in connection.execute(FIND_LANES, gap | {"most": most})]


def with_rows(connection: Connection, lanes: Collection[Lane]) -> list[Lane]:
    """Return lanes with due rows."""
    parameters = {"kinds": id_array(lane.kind for lane in lanes), "queues": [lane.queue for lane in lanes]}
    return [Lane._make(row) for row in connection.execute(_WITH_ROWS.encode(), parameters)]


def search(connection: Connection, kinds: Iterable[int], known: Collection[Lane], most: int) -> Found:
    """Find lanes, their first rows, and due scheduled rows."""
    parameters = _gaps(kinds, known) | {"most": most}
    rows = connection.execute(SEARCH, parameters, binary=True).fetchall()
    found = {
        Lane(*lane): [DueJob._make(row[2:]) for row in rows_of_lane if row[2] is not None]
        for lane, rows_of_lane in groupby(rows, itemgetter(0, 1))
    }
    has_scheduled = found.pop(_SCHEDULED, None) is not None
    return Found(found, has_scheduled)


def _gaps(kinds: Iterable[int], known: Collection[Lane]) -> dict[str, Any]:
    gaps: list[tuple[int, str, str]] = []
    for kind in kinds:
        queues = [_BEFORE_ALL, *sorted(lane.queue for lane in known if lane.kind == kind), _BEHIND_ALL]
        gaps += ((kind, low, high) for low, high in pairwise(queues))
    return {
        "kinds": id_array(kind for kind, _, _ in gaps),
        "lows": _name_array(low for _, low, _ in gaps),
        "highs": _name_array(high for _, _, high in gaps),
    }


_READ_DUE = f"""
SELECT due.* FROM unnest(
    %(kinds)s::integer[], %(queues)s::text[], %(priorities)s::integer[], %(ids)s::bigint[], %(limits)s::integer[])
    AS lane (kind, queue, priority, id, most), LATERAL (
    SELECT lane.kind, {_DUE_JOB} FROM staged_jobs_ready AS job
    WHERE {DUE} AND {LANE_KIND} = lane.kind AND job.{LANE_QUEUE} = lane.queue
        AND (job.priority, job.id) > (lane.priority, lane.id)
        AND job.id <> ALL (%(leave)s::bigint[])
    ORDER BY job.priority, job.id LIMIT lane.most {{lock}}) AS due
"""
READ_DUE = _READ_DUE.format(lock="")
_LANE = itemgetter(0, 2)


def read_due(
    connection: Connection, heads: Sequence[Head], *, leave: Sequence[int] = (), skip_locked: bool = False
) -> dict[Lane, list[DueJob]]:
    """Read the first rows of each lane, by `priority, id`, in a repeatable-read transaction.

    Later statements fail if a row was changed. `skip_locked` locks each row, so use it only after hitting a lock.
    """
    statement = _READ_DUE.format(lock="FOR UPDATE SKIP LOCKED") if skip_locked else READ_DUE
    parameters = {
        "kinds": id_array(head.lane.kind for head in heads),
        "queues": _name_array(head.lane.queue for head in heads),
        "priorities": id_array(head.after[0] for head in heads),
        "ids": id_array(head.after[1] for head in heads),
        "limits": id_array(head.most for head in heads),
        "leave": id_array(leave),
    }
    found: dict[Lane, list[DueJob]] = {head.lane: [] for head in heads}
    rows = connection.execute(statement, parameters, binary=True).fetchall()
    # Without grouping, this took 0.7 of 2.5 us per job.
    for (kind, queue), rows_of_lane in groupby(rows, _LANE):
        found[Lane(kind, queue)] += [DueJob._make(row[1:]) for row in rows_of_lane]
    return found


_MOST_HEADS = 1000
_MANY_LANES = 100
# One look-up per priority and lane.
_OLDEST_DUE = f"""
WITH RECURSIVE heads AS (
    SELECT lane.*, first.head FROM unnest(
        %(kinds)s::integer[], %(queues)s::text[], %(priorities)s::integer[], %(ids)s::bigint[])
        AS lane (kind, queue, priority, id), LATERAL (
        SELECT job.priority AS head FROM staged_jobs_ready AS job
        WHERE {DUE} AND {LANE_KIND} = lane.kind AND job.{LANE_QUEUE} = lane.queue
            AND (job.priority, job.id) > (lane.priority, lane.id)
        ORDER BY job.priority, job.id LIMIT 1) AS first
    UNION ALL
    SELECT heads.kind, heads.queue, heads.priority, heads.id, following.* FROM heads, LATERAL (
        SELECT job.priority FROM staged_jobs_ready AS job
        WHERE {DUE} AND {LANE_KIND} = heads.kind AND job.{LANE_QUEUE} = heads.queue AND job.priority > heads.head
        ORDER BY job.priority, job.id LIMIT 1) AS following
)
SELECT queue, greatest(0, extract(epoch FROM clock_timestamp() - min(due_at)))::float8
FROM (SELECT * FROM heads LIMIT {{most}}) AS first_heads, LATERAL (
    SELECT greatest(job.staged_at, job.matured_at) AS due_at FROM staged_jobs_ready AS job
    WHERE {DUE} AND {LANE_KIND} = first_heads.kind AND job.{LANE_QUEUE} = first_heads.queue
        AND job.priority = first_heads.head
        AND (job.priority, job.id) > (first_heads.priority, first_heads.id)
    ORDER BY job.priority, job.id LIMIT {{first}}) AS due
GROUP BY queue
"""
OLDEST_DUE = _OLDEST_DUE.format(first=100, most=_MOST_HEADS)
OLDEST_AT_A_GLANCE = _OLDEST_DUE.format(first=2, most=_MOST_HEADS)


def oldest_due_seconds(connection: Connection, after: Mapping[Lane, Place] | None = None) -> dict[str, float]:
    """Return the wait of each queue's oldest due row, after these places.

    Looks at the first hundred rows per priority, or two with many lanes.
    """
    if after is None:
        after = dict.fromkeys(find_lanes(connection, KINDS, most=_MOST_HEADS), START)
    parameters = {
        "kinds": id_array(lane.kind for lane in after),
        "queues": _name_array(lane.queue for lane in after),
        "priorities": id_array(place[0] for place in after.values()),
        "ids": id_array(place[1] for place in after.values()),
    }
    statement = OLDEST_DUE if len(after) <= _MANY_LANES else OLDEST_AT_A_GLANCE
    return dict(connection.execute(statement.encode(), parameters).fetchall()) if after else {}


COUNT_DUE = f"""
SELECT lane.queue, due.number FROM unnest(%(kinds)s::integer[], %(queues)s::text[]) AS lane (kind, queue), LATERAL (
    SELECT count(*) AS number FROM (
        SELECT FROM staged_jobs_ready AS job
        WHERE {DUE} AND {LANE_KIND} = lane.kind AND job.{LANE_QUEUE} = lane.queue
        LIMIT %(up_to)s::bigint) AS counted) AS due
"""


def count_due(
    connection: Connection, up_to: int, *, most: int | None = None, named: Iterable[str] = ()
) -> dict[str, int]:
    """Count due rows by queue, up to a number per lane.

    Args:
        most: Maximum number of lanes.
        named: Queues counted in any case.
    """
    lanes = find_lanes(connection, KINDS, most=most)
    if len(lanes) == most:
        lanes = [*{*lanes, *with_rows(connection, [Lane(kind, queue) for queue in named for kind in KINDS])}]
    parameters = {
        "kinds": id_array(lane.kind for lane in lanes),
        "queues": _name_array(lane.queue for lane in lanes),
        "up_to": up_to,
    }
    numbers = Counter[str]()
    for queue, number in connection.execute(COUNT_DUE, parameters):
        numbers[queue] += number
    return numbers


def _name_array(queues: Iterable[str]) -> str:
    """Format names as a PostgreSQL array, even invalid ones."""
    escaped = (queue.replace("\\", r"\\").replace('"', r"\"") for queue in queues)
    return "{" + ",".join(f'"{queue}"' for queue in escaped) + "}"
