"""The leader's questions about jobs that wait for others are answered by index, whatever else the tables hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from drain.database import postgres
from drain.enqueuer.enqueuer import SESSION
from drain.read import dependencies
from drain.tables import cancellations, dead, edge_looks, edges, finished, staged, steps, unique
from drain.tables.columns import MARKER, id_array
from drain.tables.edge_looks import Snapshot
from tests.database.test_partitions import partition_of
from tests.database.test_query_plans import explained, scans_of
from tests.database.test_retention import finish, make
from tests.helpers import query

MANY, ASKED = 20_000, 20
# Ids of unfinished predecessors, of the blocked jobs, ten of each, and of the predecessor of as many more.
PARENTS, CHILDREN, WIDE = 100_000, 200_000, 150_000
# Of flows with a member and a callback each, and of flows that wait for nothing.
MARKERS, MEMBERS, ENDED = 300_000, 400_000, 500_000
_JOB = "job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at"
_VALUES = "'m.f', '[]', '{}', 'default', 0, now(), now()"
_FINISHED = (
    f"INSERT INTO finished_jobs (id, {_JOB}, moved_at, claimed_at, fencing_token, finished_at, attempts) "
)
_OF_FINISHED = f"{_VALUES}, now(), now(), 1, now(), 1"
_DEAD = f"INSERT INTO dead_jobs (id, {_JOB}, attempts, reason, explanation) "
_OF_DEAD = f"{_VALUES}, 1, 'failed', ''"
_EDGE = "INSERT INTO job_edges (child_id, parent_id, awaited_id, on_failure) "
_WAITING = "INSERT INTO job_edges (child_id, parent_id, awaited_id) "
FILL = (
    f"{_FINISHED} SELECT id, {_OF_FINISHED} FROM generate_series(1, {MANY}) AS id",
    f"{_DEAD} SELECT id, {_OF_DEAD} FROM generate_series({MANY + 1}, {2 * MANY}) AS id",
    (
        f"INSERT INTO inflight_jobs (id, {_JOB}, delivery) SELECT {PARENTS} + id, {_VALUES}, id "
        f"FROM generate_series(1, {MANY // 10}) AS id"
    ),
    (
        "INSERT INTO staged_jobs (id, job_name, scheduled_at) OVERRIDING SYSTEM VALUE "
        f"SELECT {CHILDREN} + id, 'm.f', '9999-12-29Z' FROM generate_series(1, {2 * MANY}) AS id"
    ),
    (
        f"{_WAITING} SELECT {CHILDREN} + id, {PARENTS} + id / 10, {PARENTS} + id / 10 "
        f"FROM generate_series(10, {MANY}) AS id"
    ),
    f"{_WAITING} SELECT {CHILDREN} + id, {WIDE}, {WIDE} FROM generate_series({MANY + 1}, {2 * MANY}) AS id",
    (
        "INSERT INTO staged_jobs (id, job_name, scheduled_at) OVERRIDING SYSTEM VALUE "
        f"SELECT base + id, '{MARKER}', '9999-12-29Z' "
        f"FROM generate_series(1, {MANY // 10}) AS id, unnest(ARRAY[{MARKERS}, {ENDED}]) AS base"
    ),
    (
        f"{_EDGE} SELECT edge.* FROM generate_series(1, {MANY // 10}) AS id, LATERAL (VALUES "
        f"({MARKERS} + id, {MEMBERS} + id, {MEMBERS} + id, 'hold'), "
        f"({MEMBERS} + id, {MARKERS} + id, {MARKERS} + id, 'only')) AS edge"
    ),
    (
        "INSERT INTO job_edges (child_id, parent_id, awaited_id, state) "
        f"SELECT {CHILDREN} + id, 1 + id / 10, 1 + id / 10, 'met' FROM generate_series(1, {MANY}) AS id"
    ),
)
# After the last look.
LATER = (
    f"{_FINISHED} SELECT {PARENTS} + id, {_OF_FINISHED} FROM generate_series(100, {99 + ASKED}) AS id",
    f"{_DEAD} SELECT {PARENTS} + id, {_OF_DEAD} FROM generate_series(200, {199 + ASKED}) AS id",
    f"{_WAITING} SELECT {CHILDREN} + id, {PARENTS}, {PARENTS} FROM generate_series(500, {499 + ASKED}) AS id",
)
_NUMBERS = range(1000, 1000 + ASKED)
_PAGE: dict[str, Any] = {"child": 0, "parent": 0, "most": ASKED, "meets": "finished"}
_CHILDREN = id_array(CHILDREN + number for number in _NUMBERS)
_EDGES = {"children": _CHILDREN, "parents": id_array(PARENTS + number // 10 for number in _NUMBERS)}
_TEXTS = "{" + ",".join(["dead"] * ASKED) + "}"
Given = Sequence[Any] | Mapping[str, Any]
ASKED_OF: dict[str, tuple[str, Given]] = {
    "first look": (edge_looks.FIRST_LOOK, ()),
    "page of awaited": (
        edges.PAGE_OF_AWAITED,
        _PAGE | {"ids": id_array(PARENTS + number for number in _NUMBERS)},
    ),
    "page of a wide fan": (
        edges.PAGE_OF_AWAITED,
        _PAGE | {"ids": id_array([WIDE]), "child": CHILDREN + MANY},
    ),
    "page of finished": (
        edges.PAGE_OF_AWAITED,
        _PAGE | {"ids": id_array(PARENTS + number for number in _NUMBERS), "meets": "all"},
    ),
    "page of children": (edges.PAGE_OF_CHILDREN, _PAGE | {"ids": _CHILDREN}),
    "page of all": (edges.PAGE_OF_ALL, _PAGE | {"child": CHILDREN + 9000}),
    "outcomes": (edges.OUTCOMES, (id_array([*range(1, 11), *range(MANY + 1, MANY + 11)]),)),
    "lock": (edges.LOCK_CHILDREN, {"ids": _CHILDREN, "versions": id_array([7] * ASKED)}),
    "meet": (edges.MEET, _EDGES),
    "follow": (edges.FOLLOW, _EDGES | {"awaited": id_array([PARENTS + 7] * ASKED)}),
    "idle": (edges.IDLE, {"ids": _CHILDREN, "most": ASKED}),
    "alarmed": (edges.ALARMED, {"ids": id_array([*range(MARKERS + 1, MARKERS + ASKED)])}),
    "alarmed by no flow": (edges.ALARMED, {"ids": _CHILDREN}),
    "unblock": (staged.UNBLOCK, (_CHILDREN,)),
    "end flows": (staged.UNBLOCK, (id_array(range(ENDED + 1, ENDED + ASKED)),)),
    "supersede": (unique.SUPERSEDE_STAGED, {"ids": _CHILDREN, "stand": _CHILDREN}),
    "cancel": (cancellations.CANCEL_BLOCKED, {"ids": _CHILDREN, "texts": _TEXTS}),
}


class Prepared:
    """Statements of a leader's session, planned where they are prepared."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        connection.execute("; ".join(SESSION).encode())
        none = Snapshot("1", "{}")._asdict()
        asked = ASKED_OF | {
            "look": (edge_looks.LOOK, none),
            "look for edges": (edge_looks.LOOK_FOR_EDGES, none),
        }
        for name, (statement, given) in asked.items():
            self.prepare(name, statement, given)
            # The first execution plans.
            with connection.transaction(force_rollback=True):
                connection.execute(self.executed(name, given))

    def prepare(self, name: str, statement: str, given: Given) -> None:
        names = list(given) if isinstance(given, Mapping) else [""]

        def number(match: re.Match[str]) -> str:
            return f"${names.index(match[1] or '') + 1}"

        numbered = re.sub(r"%(?:\((\w+)\))?s", number, statement)
        self.connection.execute(f'PREPARE "{name}" AS {numbered}'.encode())

    def executed(self, name: str, given: Given) -> bytes:
        values = list(given.values()) if isinstance(given, Mapping) else given
        literals = ", ".join(f"'{value}'" for value in values)
        return f'EXECUTE "{name}"{f"({literals})" if values else ""}'.encode()

    def scans(self, name: str, given: Given) -> dict[str, int]:
        return scans_of(self.connection, self.executed(name, given).decode())


def fill(connection: psycopg.Connection, url: str, when: str) -> Snapshot:
    """Fill the tables; return the snapshot of the last look, before the later rows."""
    with connection.transaction():
        for statement in FILL:
            connection.execute(statement.encode())
        if when == "analyzed before the commit":
            query(url, "ANALYZE")
    ((text,),) = connection.execute("SELECT pg_current_snapshot()::text").fetchall()
    for statement in LATER:
        connection.execute(statement.encode())
    return Snapshot.parse(text)


WHEN = (
    *("prepared while empty", "analyzed while empty", "analyzed before the commit"),
    *("never analyzed", "analyzed"),
)


@pytest.mark.parametrize("when", WHEN)
def test_statements_about_blocked_jobs_read_no_others(database_url: str, when: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        if when == "analyzed while empty":
            connection.execute("VACUUM ANALYZE")
        early = Prepared(connection) if when == "prepared while empty" else None
        seen = fill(connection, database_url, when)
        if when == "analyzed":
            connection.execute("ANALYZE")
        leader = early or Prepared(connection)
        found = {name: leader.scans(name, given) for name, (_, given) in ASKED_OF.items()}
        found["look"] = leader.scans("look", seen._asdict())
        # As many transactions as a busy server has.
        old = seen._replace(running=id_array(range(3, 103)))
        found["look with running transactions"] = leader.scans("look", old._asdict())
        found["look for edges"] = leader.scans("look for edges", old._asdict())
    assert not {name: scans for name, scans in found.items() if sum(scans.values()) > 12 * ASKED}


@pytest.mark.parametrize("waits", [False, True])
def test_a_look_steps_over_no_edges_of_an_open_transaction(database_url: str, *, waits: bool) -> None:
    with psycopg.connect(database_url) as other, postgres.connect(database_url, "test") as connection:
        connection.execute("; ".join(SESSION))
        if waits:
            connection.execute(f"{_WAITING} VALUES (2, 1, 1)")
        last = edge_looks.look(connection, None)
        other.execute(FILL[4].encode())
        # A later transaction ends, so the next look lists this one as running.
        connection.execute("SELECT pg_current_xact_id()")
        last = edge_looks.look(connection, last)
        assert last.waits is waits
        statement = edge_looks.LOOK if waits else edge_looks.LOOK_FOR_EDGES
        (explained_,) = explained(connection, statement, last.snapshot._asdict(), "ANALYZE, BUFFERS, ")
    assert explained_["Plan"]["Shared Hit Blocks"] < 2 * ASKED


_READ = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::integer FROM pg_stat_xact_user_tables"
_DROPS = (
    "drain_drop_old_day(1)",
    "drain_checksum_of('{0}') AS found, drain_drop_day('{0}', counted, checksum)",
)
_FLOW = """
SELECT drain_stage('m.f', '[]', jsonb_build_object('flow', flow.id) || more)
FROM drain_flow('{"idempotency_key": "k", "undo": true}') AS flow, unnest(ARRAY['{"on": "complete"}', '{"on": "dead"}',
    '{"node": "a"}', '{"node": "b", "idempotency_key": "b"}', '{"after": [100001]}']::jsonb[]) AS more
"""
_STEPS = f"""
INSERT INTO job_steps (job_id, name, result, seconds, fencing_token, undo, undone_by)
SELECT {MARKERS} + id, 'a', '1', 0, 1, '{{}}', {CHILDREN} + id FROM generate_series(1, {MANY}) AS id
"""
_CLAIM = f"""
WITH moved AS (DELETE FROM staged_jobs WHERE id = %(id)s)
INSERT INTO inflight_jobs (id, {_JOB}, delivery, claimed_by, fencing_token)
VALUES (%(id)s, {_VALUES}, 1, 'w', 1)
"""
_DIE = f"WITH ended AS (DELETE FROM inflight_jobs WHERE id = %(id)s) {_DEAD} VALUES (%(id)s, {_OF_DEAD})"


@pytest.mark.parametrize("when", WHEN[1:])
def test_statements_that_undo_a_flow_read_no_others(database_url: str, when: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        if when == "analyzed while empty":
            connection.execute("VACUUM ANALYZE")
        fill(connection, database_url, when)
        connection.execute(_STEPS.encode())
        connection.execute("SELECT setval('staged_jobs_id_seq', 1000000)")
        connection.execute(_FLOW.encode())
        if when == "analyzed":
            connection.execute("ANALYZE")
        member = "SELECT parent_id FROM job_edges WHERE child_id = 1000001 AND node = 'a'"
        ((job_id,),) = connection.execute(member).fetchall()
        record = "SELECT drain_record_undoable_step(%(id)s, 1, NULL, 'w', 'a', '1', 0, '{}')"
        given = {"id": job_id, **dead.Selection((job_id,)).parameters()}
        read = {}
        for name, statement, more in (
            ("claim", _CLAIM, {}),
            ("record", record, {}),
            ("die", _DIE, {}),
            ("read", steps.READ_UNDOABLE, {"id": 1000002, "undone": 1000001}),
            ("explain", dependencies._UNDO, {}),
            ("refuse", dead.BEING_UNDONE, {}),
            ("retry", dead.REVIVE, {}),
        ):
            with connection.transaction():
                assert connection.execute(statement.encode(), given | more).rowcount or name == "refuse"
                ((rows,),) = connection.execute(_READ).fetchall()
            read[name] = rows or 0
    assert all(number < 12 * ASKED for number in read.values()), read


@pytest.mark.parametrize("when", WHEN)
def test_functions_that_make_flows_read_no_others(database_url: str, when: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        if when == "analyzed while empty":
            connection.execute("VACUUM ANALYZE")
        if when == "prepared while empty":
            with connection.transaction(force_rollback=True):
                connection.execute(_FLOW.replace(", '{\"after\": [100001]}'", ""))
        fill(connection, database_url, when)
        connection.execute("SELECT setval('staged_jobs_id_seq', 1000000)")
        if when == "analyzed":
            connection.execute("ANALYZE")
        read = {}
        with connection.transaction():
            for name, statement in {
                "make": _FLOW,
                "grow": "SELECT drain_stage('m.f', '[]', '{\"flow\": 1000001}')",
                "count": "SELECT * FROM drain_flow_progress(1000001)",
            }.items():
                ((before,),) = connection.execute(_READ).fetchall()
                assert connection.execute(statement.encode()).rowcount
                ((after,),) = connection.execute(_READ).fetchall()
                read[name] = after - (before or 0)
    assert all(number < 12 * ASKED for number in read.values()), read


@pytest.mark.parametrize("drop", _DROPS)
@pytest.mark.parametrize("when", WHEN[1:])
def test_the_drop_of_a_day_reads_no_edges_to_later_jobs(database_url: str, when: str, drop: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        if when == "analyzed while empty":
            connection.execute("VACUUM ANALYZE")
        fill(connection, database_url, when)
        day = finished.today(connection) - timedelta(days=2)
        make(database_url, day)
        finish(database_url, day, 2 * MANY + 1)
        if when == "analyzed":
            connection.execute("ANALYZE")
        with connection.transaction():
            connection.execute(f"SELECT FROM {drop.format(partition_of(day))}".encode())
            ((rows,),) = connection.execute(_READ).fetchall()
    assert query(database_url, f"SELECT to_regclass('{partition_of(day)}')") == [(None,)]
    assert (rows or 0) < ASKED
