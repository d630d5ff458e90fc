"""Lanes of the staged jobs that are due: which have rows, and the rows at their heads.

A lane is a queue's rows of one kind, and a range of the index `staged_jobs_in_lanes`. So a queue that takes no more
jobs is passed over, however many of its rows wait.
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

# Kinds of lanes: rows of a priority up to 0 are urgent, all others patient; `columns.LANE_KIND` is the kind of a row.
URGENT, URGENT_WITH_KEY, PATIENT, PATIENT_WITH_KEY = KINDS = range(4)


class Lane(NamedTuple):
    """A queue's rows of one kind."""

    kind: int
    queue: str


class Head(NamedTuple):
    """Rows to read: up to `most` of a lane, behind a place."""

    lane: Lane
    most: int
    after: Place = START


# Bounds of all names of queues, in the order of the index: its collation "C" compares bytes.
_BEFORE_ALL, _BEHIND_ALL = "", "~"
# One index look-up for each lane that is found. A gap is the range between two known lanes of one kind: the search does
# not step over the rows of these, nor over the dead entries before them. The bounds of a gap are two conditions: a scan
# whose bound is a comparison of rows goes on to the end of the kind.
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
# With a bound the recursion ends as soon as so many are found.
FIND_LANES = f"{_LANES} SELECT kind, queue FROM heads LIMIT %(most)s::bigint"
# Those of these lanes that have rows.
_WITH_ROWS = f"""
SELECT lane.kind, lane.queue FROM unnest(%(kinds)s::integer[], %(queues)s::text[]) AS lane (kind, queue)
WHERE EXISTS (
    SELECT FROM staged_jobs_ready AS job
    WHERE {DUE} AND {LANE_KIND} = lane.kind AND job.{LANE_QUEUE} = lane.queue)
"""


# Columns of `DueJob`.
_DUE_JOB = """job.id, job.queue, job.job_name, job.timeout_seconds, coalesce(job.expires_at <= now(), false),
    job.priority, job.key, job.unique_key"""
# Number of rows that a search reads of a lane which it finds. A lane that has fewer needs no other statement: measured
# at 500 jobs a second, that exchange took a tenth of the time from the commit of a job to its push.
FIRST_ROWS = 20
# Number of lanes of which a search reads rows, so that it does not read very many.
_LANES_WITH_ROWS = 50
# Stands for scheduled rows whose time has come. Looked for together with the lanes: most batches find no such row, and
# an exchange for that costs as much as that for the lanes.
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
    """Result of a search.

    Attributes:
        first_rows: Each lane that was found, with its rows in the order of their places: all of them if there are fewer
            than `FIRST_ROWS`, else the first, or none.
        has_scheduled: Scheduled rows have come due that `staged.mature` would mark.
    """

    first_rows: Mapping[Lane, Sequence[DueJob]]
    has_scheduled: bool


def find_lanes(
    connection: Connection, kinds: Iterable[int], known: Collection[Lane] = (), *, most: int | None = None
) -> list[Lane]:
    """Find the lanes of these kinds that have rows which are due, other than the known ones, up to a bound."""
    parameters = _gaps(kinds, known) | {"most": most}
    return [Lane._make(row) for row in connection.execute(FIND_LANES, parameters)]


def walk(connection: Connection, kind: int, behind: str, most: int) -> list[Lane]:
    """Find the next lanes of a kind, in the order of their names, behind this name."""
    gap = {"kinds": id_array([kind]), "lows": _name_array([behind]), "highs": _name_array([_BEHIND_ALL])}
    return [Lane._make(row) for row in connection.execute(FIND_LANES, gap | {"most": most})]


def with_rows(connection: Connection, lanes: Collection[Lane]) -> list[Lane]:
    """Return those of these lanes that have rows which are due."""
    parameters = {"kinds": id_array(lane.kind for lane in lanes), "queues": [lane.queue for lane in lanes]}
    return [Lane._make(row) for row in connection.execute(_WITH_ROWS.encode(), parameters)]


def search(connection: Connection, kinds: Iterable[int], known: Collection[Lane], most: int) -> Found:
    """Find lanes as `find_lanes` does, with their first rows, and whether scheduled rows have come due."""
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
# Kind and queue of a row of READ_DUE.
_LANE = itemgetter(0, 2)


def read_due(
    connection: Connection, heads: Sequence[Head], *, leave: Sequence[int] = (), skip_locked: bool = False
) -> dict[Lane, list[DueJob]]:
    """Read the rows at the heads of these lanes, each lane's in the order of `priority, id`.

    To be called in a repeatable-read transaction, so that the statements which follow see the same rows, and fail
    when another session has changed one of them.

    Args:
        connection: The leader's, with a transaction open.
        heads: Lanes, each with the place behind which its scan begins: rows before it are not read.
        leave: Ids to pass over.
        skip_locked: Lock the rows, passing over those that another session has locked. Costs a write for each row, so
            it is for the case that a batch ran into such a lock.
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
    # Lane by lane: measured, a look at the lane of each row took 0.7 us more of the leader's 2.5 us a job.
    for (kind, queue), rows_of_lane in groupby(rows, _LANE):
        found[Lane(kind, queue)] += [DueJob._make(row[1:]) for row in rows_of_lane]
    return found


# Upper bound of the lanes, and of their priorities, among which the oldest row is searched.
_MOST_HEADS = 1000
# Number of lanes from which on fewer rows of each are read.
_MANY_LANES = 100
# Oldest of the first rows of each priority: one index look-up for each priority that is in use in each lane, however
# many rows wait behind them.
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
    """Measure for how long the oldest due row of each queue has waited, of the rows behind these places, or of all.

    Of each priority the first hundred rows count; of very many lanes the first two.

    Returns:
        Seconds by queue; queues in which no such row waits are left out.
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
    """Count the due rows of each queue, each lane up to a bound; queues without such rows are left out.

    Args:
        connection: Any.
        up_to: Upper bound of the rows of a lane.
        most: Upper bound of the lanes; None for all.
        named: Queues that are counted also if there are more lanes than that.
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
    """Build the text of a PostgreSQL array of names of queues, also of those that no job can have."""
    escaped = (queue.replace("\\", r"\\").replace('"', r"\"") for queue in queues)
    return "{" + ",".join(f'"{queue}"' for queue in escaped) + "}"
