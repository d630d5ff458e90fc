"""Jobs that wait for others: how they are read, changed, cancelled and retried. The leader is tested elsewhere."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from drain.__main__ import main
from drain.audit import audit, blocked
from drain.contrib.events.life import life
from drain.database import locks, postgres
from drain.database.postgres import Connection
from drain.jobs.cancelling import cancel
from drain.read import dependencies, queries
from drain.read.explain.timeline import hops_of
from drain.tables import cancellations, changes, dead, time_travel, unique, waiting
from drain.tables.changes import Change, change_staged
from drain.tables.columns import BLOCKED_UNTIL
from drain.tables.selections import Selection
from tests.helpers import environment

SOON = datetime(2090, 1, 31, 8, 30, tzinfo=UTC)
FINISH = """
WITH gone AS (DELETE FROM staged_jobs WHERE id = %s RETURNING *)
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, finished_by, attempts, fencing_token)
SELECT id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, now(), now(), now(), 'w', 1, 1
FROM gone
"""
BURY = """
WITH gone AS (DELETE FROM staged_jobs WHERE id = %s RETURNING *)
INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, fencing_token,
    attempts, reason, explanation)
SELECT id, job_name, job_args, job_kwargs, queue, priority, staged_at, staged_at, 1, 1, %s, 'it broke'
FROM gone
"""


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with postgres.connect(database_url, "tests") as opened:
        yield opened


@pytest.fixture
def env(database_url: str, redis_url: str) -> dict[str, str]:
    return environment(database_url, redis_url)


def stage(connection: Connection, after: list[Any] | None = None, **options: Any) -> int:
    given = json.dumps({**options, **({"after": after} if after else {})})
    ((job_id,),) = connection.execute("SELECT drain_stage('m.f', '[]', %s)", (given,)).fetchall()
    return int(job_id)


def one(connection: Connection, columns: str, table: str, job_id: int) -> tuple[Any, ...]:
    (row,) = connection.execute(f"SELECT {columns} FROM {table} WHERE id = %s", (job_id,), binary=True)
    return tuple(row)


def edges(connection: Connection, child: int) -> list[tuple[int, str, bool]]:
    """Parent, state, and whether the latest change of the row is recorded."""
    statement = """
    SELECT parent_id, state, changed_xid::xid = xmin FROM job_edges WHERE child_id = %s ORDER BY parent_id
    """
    return connection.execute(statement, (child,)).fetchall()


def end_edges(connection: Connection, child: int, state: str) -> None:
    connection.execute("UPDATE job_edges SET state = %s WHERE child_id = %s", (state, child))


def drain(env: dict[str, str], *words: object) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words], env=env | {"COLUMNS": "100"})
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_cancelled_job_has_the_time_at_which_it_would_have_started(connection: Connection) -> None:
    first = stage(connection)
    at_once, later = stage(connection, [first]), stage(connection, [first], run_at=SOON.isoformat())
    assert set(cancel(connection, [at_once, later]).waiting) == {at_once, later}
    scheduled_at, staged_at = one(connection, "scheduled_at, staged_at", "dead_jobs", at_once)
    assert scheduled_at == staged_at
    assert one(connection, "scheduled_at", "dead_jobs", later) == (SOON,)


def test_the_explanation_of_a_cancelled_job_says_that_a_retry_waits_again(
    connection: Connection, env: dict[str, str]
) -> None:
    first = stage(connection)
    child = stage(connection, [first])
    cancel(connection, [child])
    why = json.loads(drain(env, "explain", child, "--json"))["why"]
    assert why.endswith(f"`drain dead retry {child}` stages it again, to wait for job {first}")


def test_a_moved_job_stays_blocked_until_its_predecessors_finish(connection: Connection) -> None:
    first = stage(connection)
    blocked, free = stage(connection, [first]), stage(connection)
    change = Change(queue="slow", priority=7, run_at=SOON)
    assert set(change_staged(connection, Selection((blocked, free)), change)) == {blocked, free}
    columns = "queue, priority, scheduled_at, starts_at, matured_at"
    assert one(connection, columns, "staged_jobs", blocked) == ("slow", 7, BLOCKED_UNTIL, SOON, None)
    assert one(connection, columns, "staged_jobs", free) == ("slow", 7, SOON, None, None)


@pytest.mark.parametrize("per_second", [None, 10.0])
@pytest.mark.parametrize("state", ["idle", "waiting"])
def test_a_retried_job_waits_again_for_predecessors_that_have_not_finished(
    connection: Connection, state: str, per_second: float | None
) -> None:
    met, unmet = stage(connection), stage(connection)
    child = stage(connection, [met, unmet], run_at=SOON.isoformat())
    cancel(connection, child)
    connection.execute(
        "UPDATE job_edges SET state = CASE parent_id WHEN %s THEN 'met' ELSE %s END", (met, state)
    )
    assert dead.revive(connection, dead.Selection((child,)), per_second) == 1
    scheduled_at, starts_at, matured_at = one(
        connection, "scheduled_at, starts_at, matured_at", "staged_jobs_scheduled", child
    )
    assert (scheduled_at, matured_at) == (BLOCKED_UNTIL, None)
    assert starts_at == SOON if per_second is None else starts_at < SOON
    assert edges(connection, child) == [(met, "met", False), (unmet, "waiting", True)]


@pytest.mark.parametrize("per_second", [None, 10.0])
def test_a_retried_job_does_not_wait_for_discarded_predecessors(
    connection: Connection, per_second: float | None
) -> None:
    parent = stage(connection)
    child = stage(connection, [[parent, "hold"]])
    cancel(connection, [parent, child])
    end_edges(connection, child, "idle")
    dead.discard(connection, dead.Selection((parent,)))
    dead.revive(connection, dead.Selection((child,)), per_second)
    assert edges(connection, child) == [(parent, "met", True)]
    scheduled_at, starts_at = one(connection, "scheduled_at, starts_at", "staged_jobs", child)
    assert scheduled_at < BLOCKED_UNTIL
    assert starts_at is None


def test_a_job_whose_predecessors_finished_is_retried_at_once(connection: Connection) -> None:
    child = stage(connection, [stage(connection)])
    end_edges(connection, child, "met")
    connection.execute(BURY, (child, "failed"))
    dead.revive(connection, dead.Selection())
    assert one(connection, "matured_at IS NOT NULL, starts_at", "staged_jobs_ready", child) == (True, None)


def test_parent_and_child_are_retried_in_one_statement(connection: Connection) -> None:
    parent = stage(connection)
    child = stage(connection, [parent])
    cancel(connection, [parent, child])
    end_edges(connection, child, "idle")
    assert dead.revive(connection, dead.Selection()) == 2
    assert edges(connection, child) == [(parent, "waiting", True)]
    assert one(connection, "scheduled_at", "staged_jobs", child) == (BLOCKED_UNTIL,)
    assert one(connection, "matured_at IS NOT NULL", "staged_jobs", parent) == (True,)


def test_a_blocked_job_is_not_a_candidate_of_its_unique_key(connection: Connection) -> None:
    first = stage(connection)
    options: dict[str, Any] = {"unique_key": "k", "quiet": 60}
    stage(connection, [first], **options)
    waiting = stage(connection, **options)
    (found,) = unique.read_candidates(connection, [("m.f", "k")], 10).values()
    assert [candidate.id for candidate in found] == [waiting]


def test_time_that_passes_in_a_test_does_not_unblock(connection: Connection) -> None:
    first = stage(connection)
    blocked, later = (
        stage(connection, [first], run_at=SOON.isoformat()),
        stage(connection, run_at=SOON.isoformat()),
    )
    time_travel.shift(connection, timedelta(days=1))
    time_travel.shift_staged(connection, [blocked, later], timedelta(days=1))
    assert one(connection, "scheduled_at, starts_at", "staged_jobs", blocked) == (
        BLOCKED_UNTIL,
        SOON - timedelta(days=1),
    )
    assert one(connection, "scheduled_at", "staged_jobs", later) == (SOON - timedelta(days=2),)


def explain(env: dict[str, str], job_id: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(drain(env, "explain", job_id, "--json"))
    state = "blocked" if found["cause"] == "blocked" else f"blocked: {found['cause']}"
    assert f"state   {state}\n" in drain(env, "explain", job_id)
    return found


@contextmanager
def leader(connection: Connection) -> Iterator[None]:
    connection.execute("UPDATE drain_state SET leader = 'other', leader_since = now()")
    key = locks.LEADER
    connection.execute("SELECT pg_advisory_lock(%s, %s)", (key.first, key.second))
    yield
    connection.execute("SELECT pg_advisory_unlock(%s, %s)", (key.first, key.second))


def test_the_explanation_names_the_job_at_the_start_of_the_chain(
    connection: Connection, env: dict[str, str]
) -> None:
    first = stage(connection, run_at=SOON.isoformat())
    second = stage(connection, [first])
    third = stage(connection, [second, stage(connection)], run_at=SOON.isoformat())
    found = explain(env, third)
    assert (found["state"], found["cause"], found["estimate"]["seconds"]) == ("blocked", "blocked", None)
    assert found["why"].startswith(
        f"it waits for job {second} and 1 other, and 1 job further back for job {first}; job {first} is scheduled: "
        "it is scheduled for 2090-01-31 08:30:00Z, in "
    )
    assert "; it will not start before 2090-01-31 08:30:00Z" in found["why"]
    assert found["details"]["holder"] == first
    assert found["details"]["holder_cause"] == "scheduled"


def test_a_dead_predecessor_that_holds_is_to_be_retried_or_discarded(
    connection: Connection, env: dict[str, str]
) -> None:
    fine, broken = stage(connection), stage(connection)
    child = stage(connection, [[fine, "cancel"], [broken, "hold"]])
    connection.execute(BURY, (broken, "failed"))
    found = explain(env, child)
    assert found["why"] == (
        f"it waits for job {broken} and 1 other; job {broken} is dead: retry it with `drain dead retry {broken}`, "
        "or discard it, which cancels the jobs that it holds"
    )


@pytest.mark.parametrize(
    ("reason", "on_failure", "what"),
    [(None, "cancel", "unblock"), ("failed", "run", "unblock"), ("failed", "cancel", "cancel")],
)
def test_a_predecessor_that_has_ended_leaves_only_the_leader_to_wait_for(
    connection: Connection, env: dict[str, str], reason: str | None, on_failure: str, what: str
) -> None:
    parent = stage(connection)
    child = stage(connection, [[parent, on_failure]])
    if reason is None:
        connection.execute(FINISH, (parent,))
    else:
        connection.execute(BURY, (parent, reason))
    assert explain(env, child)["cause"] == "no_leader"
    with leader(connection):
        assert f"the leader is about to {what} the jobs that wait for it" in explain(env, child)["why"]


def test_broken_and_circular_chains_are_reported(connection: Connection, env: dict[str, str]) -> None:
    first = stage(connection)
    second = stage(connection, [first])
    third = stage(connection, [second])
    connection.execute("UPDATE job_edges SET awaited_id = %s WHERE child_id = %s", (third, second))
    assert "the chain is circular, broken, or longer than 1,000 jobs" in explain(env, third)["why"]
    connection.execute("DELETE FROM job_edges")
    assert explain(env, third)["why"] == "it is blocked, but waits for no job: see `drain audit`"


def test_a_long_chain_is_followed_up_to_a_bound(connection: Connection, env: dict[str, str]) -> None:
    connection.execute("""
    INSERT INTO staged_jobs (job_name, scheduled_at) SELECT 'm.f', '9999-12-29Z' FROM generate_series(1, 1002);
    INSERT INTO job_edges (child_id, parent_id, awaited_id) SELECT id, id - 1, id - 1 FROM staged_jobs WHERE id > 1
    """)
    connection.execute("UPDATE staged_jobs SET scheduled_at = %s WHERE id = 1", (SOON,))
    assert "and 999 jobs further back for job 1; job 1 is scheduled" in explain(env, 1001)["why"]
    assert "longer than 1,000 jobs" in explain(env, 1002)["why"]


def test_blocked_jobs_are_counted_apart_from_scheduled_ones(
    connection: Connection, env: dict[str, str]
) -> None:
    first = stage(connection, run_at=SOON.isoformat())
    for _ in range(3):
        stage(connection, [first])
    status = json.loads(drain(env, "status", "--json"))
    assert [status[name] for name in ("staged", "scheduled", "blocked", "overdue")] == [4, 1, 3, 0]
    assert status["queues"]["default"]["waiting"] == {"scheduled": 1, "blocked": 3}
    assert "staged    4: 1 scheduled, 3 blocked, 0 overdue" in drain(env, "status")
    connection.execute("DELETE FROM staged_jobs WHERE id = %s", (first,))
    assert waiting.seconds_to_next_scheduled(connection, 1.0) is None


def test_lists_and_details_of_blocked_jobs(connection: Connection, env: dict[str, str]) -> None:
    first = stage(connection)
    child = stage(connection, [[first, "run"]])
    listed = json.loads(drain(env, "list", "blocked", "--json"))
    assert [job["id"] for job in listed] == [child]
    assert "blocked" in drain(env, "list", "staged")
    assert "9999" not in drain(env, "list", "staged") + drain(env, "list", "blocked") + drain(
        env, "show", child
    )
    shown = json.loads(drain(env, "show", child, "--json"))
    assert shown["state"] == "blocked"
    waits = {"id": first, "state": "waiting", "on_failure": "run", "is_met": False}
    assert shown["waits_for"] == {"count": 1, "jobs": [waits]}
    assert f"job {first}, waiting; if it dies: run" in drain(env, "show", child)
    only = stage(connection, [[first, "only"]])
    assert f"job {first}, waiting; if it dies: run only then" in drain(env, "show", only)
    for _ in range(23):
        stage(connection, [first])
    waited = json.loads(drain(env, "show", first, "--json"))["waited_for_by"]
    assert (waited["count"], len(waited["jobs"])) == (25, 20)
    assert waited["jobs"][0] == {"id": child, "state": "blocked"}
    assert "and 5 more" in drain(env, "show", first)


def breaches(connection: Connection) -> dict[str, tuple[int, ...]]:
    found = audit(connection, overdue_seconds=60, patience_seconds=0.2)
    return {
        each.explanation.partition(";")[0]: each.ids for each in found.breaches if each.check == "blocked"
    }


def test_an_audit_finds_jobs_that_no_longer_need_to_be_blocked(connection: Connection) -> None:
    finished, failed, ended, held, running = [stage(connection) for _ in range(5)]
    of_nothing = stage(connection, [running])
    end_edges(connection, of_nothing, "met")
    of_finished = stage(connection, [[finished, "hold"], running])
    of_failed = stage(connection, [[failed, "run"]])
    stage(connection, [[held, "hold"], running])
    connection.execute(FINISH, (finished,))
    connection.execute(BURY, (failed, "failed"))
    connection.execute(BURY, (held, "failed"))
    assert breaches(connection) == {"blocked, but waits for nothing": (of_nothing,)}
    connection.execute("UPDATE dead_jobs SET died_at = now() - interval '2 minutes'")
    connection.execute("UPDATE finished_jobs SET finished_at = now() - interval '2 minutes'")
    of_unknown = stage(connection, [[ended, "hold"]])
    connection.execute(
        "UPDATE staged_jobs SET staged_at = now() - interval '1 hour' WHERE id = %s", (of_unknown,)
    )
    connection.execute("DELETE FROM staged_jobs WHERE id = %s", (ended,))
    assert breaches(connection) == {
        "blocked, but waits for nothing": (of_nothing,),
        "blocked, though a predecessor finished, more than 60 s ago": (of_finished,),
        "blocked, though a predecessor died, with on_failure cancel or run, more than 60 s ago": (of_failed,),
        "blocked, though a predecessor is in no table": (of_unknown,),
    }


def test_events_and_the_timeline_of_a_blocked_job_have_no_due_time(connection: Connection) -> None:
    child = stage(connection, [stage(connection)])
    row = queries.job(connection, child)
    (event,) = life(row)
    assert (event.event, event.until) == ("staged", None)
    assert [hop["hop"] for hop in hops_of(row, {})] == ["staged"]


MANY = """
INSERT INTO staged_jobs (job_name) SELECT 'm.f' FROM generate_series(1, 5000);
INSERT INTO staged_jobs (job_name, scheduled_at) SELECT 'm.f', '9999-12-29Z' FROM generate_series(1, 5000);
INSERT INTO job_edges (child_id, parent_id, awaited_id)
SELECT id, id - 5000, id - 5000 FROM staged_jobs_scheduled
"""


@pytest.mark.parametrize("analyzed", [False, True])
def test_no_statement_about_one_job_reads_all_blocked_ones(connection: Connection, *, analyzed: bool) -> None:
    connection.execute(MANY)
    if analyzed:
        connection.execute("ANALYZE")
    ((child, parent),) = connection.execute("SELECT max(child_id), max(parent_id) FROM job_edges").fetchall()
    selected = Selection((child,))
    given = {
        **selected.parameters(),
        **dead.Selection((child,)).parameters(),
        "id": child,
        "most": 20,
        "new_run_at": SOON,
    }
    for statement in (
        dependencies._ALL,
        dependencies._WAITING,
        cancellations.staged_statement(selected),
        changes._CHANGE_STAGED.format(assignments=changes._OF_STAGED["new_run_at"], rows=selected.condition),
        dead.REVIVE,
        *(
            blocked._STILL.format(table=reason.place[0], is_held=reason.place[1], condition=reason.condition)
            for reason in blocked.REASONS
        ),
    ):
        assert rows_read(connection, statement, {**given, "ids": [child], "seconds": 60}) < 100, statement
    for statement in (dependencies._SUCCESSORS, dependencies._COUNT_SUCCESSORS):
        assert rows_read(connection, statement, {**given, "id": parent}) < 100, statement


def rows_read(connection: Connection, statement: str, given: dict[str, Any]) -> float:
    """Rows that the nodes of the plan returned or filtered out."""
    ((((plan,),),),) = [connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", given).fetchall()]
    return total(plan["Plan"])


def total(node: dict[str, Any]) -> float:
    rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
    return float(rows * node["Actual Loops"]) + sum(map(total, node.get("Plans", ())))
