"""The leader's questions about jobs that wait for others are answered by index, whatever else the tables hold."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
import pytest

from drain.enqueuer.enqueuer import SESSION
from drain.tables import cancellations, edges, staged
from drain.tables.columns import id_array
from drain.tables.edges import Snapshot
from tests.database.test_query_plans import scans_of
from tests.helpers import query

MANY, ASKED = 20_000, 20
# Ids of unfinished predecessors, of the blocked jobs, ten of each, and of the predecessor of as many more.
PARENTS, CHILDREN, WIDE = 100_000, 200_000, 150_000
_JOB = "job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at"
_VALUES = "'m.f', '[]', '{}', 'default', 0, now(), now()"
_FINISHED = (
    f"INSERT INTO finished_jobs (id, {_JOB}, moved_at, claimed_at, fencing_token, finished_at, attempts) "
)
_OF_FINISHED = f"{_VALUES}, now(), now(), 1, now(), 1"
_DEAD = f"INSERT INTO dead_jobs (id, {_JOB}, attempts, reason, explanation) "
_OF_DEAD = f"{_VALUES}, 1, 'failed', ''"
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
_PAGE: dict[str, Any] = {"child": 0, "parent": 0, "most": ASKED}
_CHILDREN = id_array(CHILDREN + number for number in _NUMBERS)
_EDGES = {"children": _CHILDREN, "parents": id_array(PARENTS + number // 10 for number in _NUMBERS)}
_TEXTS = "{" + ",".join(["dead"] * ASKED) + "}"
Given = Sequence[Any] | Mapping[str, Any]
ASKED_OF: dict[str, tuple[str, Given]] = {
    "first look": (edges.FIRST_LOOK, ()),
    "page of awaited": (
        edges.PAGE_OF_AWAITED,
        _PAGE | {"ids": id_array(PARENTS + number for number in _NUMBERS)},
    ),
    "page of a wide fan": (
        edges.PAGE_OF_AWAITED,
        _PAGE | {"ids": id_array([WIDE]), "child": CHILDREN + MANY},
    ),
    "page of children": (edges.PAGE_OF_CHILDREN, _PAGE | {"ids": _CHILDREN}),
    "page of all": (edges.PAGE_OF_ALL, _PAGE | {"child": CHILDREN + 9000}),
    "outcomes": (edges.OUTCOMES, (id_array([*range(1, 11), *range(MANY + 1, MANY + 11)]),)),
    "lock": (edges.LOCK_CHILDREN, {"ids": _CHILDREN, "versions": id_array([7] * ASKED)}),
    "meet": (edges.MEET, _EDGES),
    "follow": (edges.FOLLOW, _EDGES | {"awaited": id_array([PARENTS + 7] * ASKED)}),
    "idle": (edges.IDLE, {"ids": _CHILDREN, "most": ASKED}),
    "unblock": (staged.UNBLOCK, (_CHILDREN,)),
    "cancel": (cancellations.CANCEL_BLOCKED, {"ids": _CHILDREN, "texts": _TEXTS}),
}


class Prepared:
    """Statements of a leader's session, planned where they are prepared."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection
        connection.execute("; ".join(SESSION).encode())
        none = Snapshot("1", "{}")._asdict()
        asked = ASKED_OF | {"look": (edges.LOOK, none), "look for edges": (edges.LOOK_FOR_EDGES, none)}
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
