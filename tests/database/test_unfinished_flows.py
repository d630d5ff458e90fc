"""The metrics of flows agree with `drain flow list`, and read a bounded number of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from drain import Flow
from drain.enqueuer.enqueuer import SESSION
from drain.read import flows as flows_read, unfinished_flows
from drain.tables import flow_pauses
from drain.tables.columns import MARKER
from tests.database.test_query_plans import scans_of
from tests.flows import Flows, flows
from tests.helpers import query

ENTRY = "INSERT INTO job_waits (job_id, name, deadline, fencing_token) VALUES (%s, 'sleep 1', now() + %s::interval, 1)"


@pytest.fixture
def jobs(database_url: str, redis_url: str) -> Iterator[Flows]:
    with flows(database_url, redis_url) as found:
        found.look()
        yield found


def counted(jobs: Flows) -> dict[str, int]:
    """States as the leader counts them, and as they are listed."""
    states = unfinished_flows.count(jobs.enqueuer.connection).states
    found = {state: number for state, number in states.items() if number}
    listed = Counter(flow.state for flow in flows_read.page(jobs.connection, 100))
    assert found == {state: listed[state] for state in states if listed[state]}
    return found


def test_flows_are_counted_by_state(jobs: Flows) -> None:
    assert counted(jobs) == {}
    (running,), (paused,) = jobs.flow(), jobs.flow()
    member = jobs.stage(flow=running)
    jobs.stage(flow=paused)
    (ended,) = jobs.flow()
    jobs.finish(jobs.stage(flow=ended))
    jobs.look()
    with jobs.connection.transaction():
        assert flow_pauses.pause(jobs.connection, paused) == 1
    assert counted(jobs) == {"running": 1, "paused": 1}
    assert unfinished_flows.count(jobs.enqueuer.connection).failing_seconds == 0

    jobs.die(member)
    jobs.look()
    query(jobs.url, "UPDATE dead_jobs SET died_at = died_at - interval '1 hour'")
    assert counted(jobs) == {"failed": 1, "paused": 1}
    assert unfinished_flows.count(jobs.enqueuer.connection).failing_seconds == pytest.approx(3600, abs=600)
    jobs.retry(member)
    jobs.look()
    assert counted(jobs) == {"running": 1, "paused": 1}


def test_a_sub_flow_is_not_counted(jobs: Flows) -> None:
    part, whole = Flow("part"), Flow("whole")
    part.add("a", "m.f")
    whole.add_flow("part", part)
    with jobs.connection.transaction():
        whole.stage(jobs.connection)
    assert counted(jobs) == {"running": 1}


def test_a_flow_fails_once_its_members_are_dead_or_wait_for_dead_ones(jobs: Flows) -> None:
    before = jobs.stage()
    (flow,) = jobs.flow()
    dies, other, outside = jobs.stage(flow=flow), jobs.stage(flow=flow), jobs.stage(before, flow=flow)
    held = jobs.stage((dies, "hold"), flow=flow)
    jobs.stage(held, other, flow=flow)
    jobs.die(dies)
    jobs.look()
    assert counted(jobs) == {"failing": 1}
    jobs.move(other)
    assert counted(jobs) == {"failing": 1}
    jobs.finish(other)
    assert counted(jobs) == {"failing": 1}
    jobs.look()
    # Only the one that waits for a job outside can run.
    assert counted(jobs) == {"failing": 1}
    jobs.finish(before)
    jobs.look()
    assert counted(jobs) == {"failing": 1}
    jobs.finish(outside)
    jobs.look()
    assert counted(jobs) == {"failed": 1}


def test_a_flow_that_is_undone_needs_no_operator(jobs: Flows) -> None:
    (flow,) = jobs.flow(undo=True)
    jobs.die(jobs.stage(flow=flow))
    jobs.look()
    ((undo_id,),) = query(jobs.url, "SELECT undone_by FROM flows")
    assert counted(jobs) == {}
    jobs.move(undo_id)
    assert counted(jobs) == {}
    jobs.die(undo_id)
    assert counted(jobs) == {"failed": 1}
    jobs.retry(undo_id)
    jobs.look()
    jobs.finish(undo_id)
    assert counted(jobs) == {}


def test_a_flow_of_too_many_members_to_look_at_is_not_called_failed(
    jobs: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unfinished_flows, "MOST", 2)
    (flow,) = jobs.flow()
    first, second, _ = [jobs.stage(flow=flow) for _ in range(3)]
    jobs.die(first, second)
    jobs.look()
    assert unfinished_flows.count(jobs.enqueuer.connection).states["failing"] == 1


def test_a_wait_is_overdue_from_its_deadline_on(jobs: Flows) -> None:
    leader = jobs.enqueuer.connection
    assert unfinished_flows.overdue_seconds(leader) == 0
    query(jobs.url, ENTRY, 1, "1 hour")
    assert unfinished_flows.overdue_seconds(leader) == 0
    query(jobs.url, ENTRY, 2, "-1 hour")
    assert unfinished_flows.overdue_seconds(leader) == pytest.approx(3600, abs=600)


MANY = 20_000
ASKED_OF: dict[str, dict[str, Any]] = {
    "COUNT": {},
    "FAILING": {},
    "STATES": {"ids": [50_001], "most": 10},
    "OVERDUE": {},
    "LATE": {"seconds": '{"a": 600}'},
    "ENDED": {"ids": [50_001, 50_002], "names": ["a"]},
}
# Blocked and scheduled jobs, unfinished and ended flows, one of them with many members, and waits.
FILL = (
    (
        "INSERT INTO staged_jobs (id, job_name, scheduled_at) OVERRIDING SYSTEM VALUE "
        f"SELECT id, 'm.f', '9999-12-29Z' FROM generate_series(100001, {100_000 + 2 * MANY}) AS id"
    ),
    (
        "INSERT INTO staged_jobs (job_name, scheduled_at) "
        f"SELECT 'm.f', now() + interval '1 day' FROM generate_series(1, {MANY})"
    ),
    (
        "INSERT INTO staged_jobs (id, job_name, scheduled_at) OVERRIDING SYSTEM VALUE "
        f"SELECT id, '{MARKER}', '9999-12-29Z' FROM generate_series(50001, 50020) AS id"
    ),
    f"INSERT INTO flows (id, staged_by) SELECT id, 'a' FROM generate_series(40001, {40_000 + MANY}) AS id",
    (
        "INSERT INTO job_edges (child_id, parent_id, awaited_id, on_failure) "
        f"SELECT 50001, id, id, 'hold' FROM generate_series(100001, {100_000 + MANY}) AS id"
    ),
    (
        "INSERT INTO job_edges (child_id, parent_id, awaited_id) "
        f"SELECT id, id - 1, id - 1 FROM generate_series(100002, {100_000 + MANY}) AS id"
    ),
    "DELETE FROM staged_jobs WHERE id = 100001",
    (
        "INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, "
        "attempts, reason, explanation) SELECT id, 'm.f', '[]', '{}', 'default', 0, now(), now(), 1, 'failed', '' "
        "FROM generate_series(100001, 100020) AS id"
    ),
    (
        "INSERT INTO job_waits (job_id, name, deadline, fencing_token) "
        f"SELECT id, 'a', now() + interval '1 day', 1 FROM generate_series(1, {MANY}) AS id"
    ),
)


@pytest.mark.parametrize(
    "when", ["analyzed while empty", "analyzed before the commit", "never analyzed", "analyzed"]
)
def test_a_measurement_reads_few_rows(database_url: str, when: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        if when == "analyzed while empty":
            connection.execute("VACUUM ANALYZE")
        with connection.transaction():
            for statement in FILL:
                connection.execute(statement.encode())
            if when == "analyzed before the commit":
                query(database_url, "ANALYZE")
        if when == "analyzed":
            connection.execute("ANALYZE")
        connection.execute("; ".join(SESSION).encode())
        read = {
            name: sum(scans_of(connection, getattr(unfinished_flows, name), given).values())
            for name, given in ASKED_OF.items()
        }
    assert all(number <= 200 for number in read.values()), read
