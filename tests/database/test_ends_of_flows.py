"""Flows end after their members and never earlier, and each callback runs exactly once."""

from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Any

import pytest

from drain.audit import audit
from drain.enqueuer.housekeeping import PastEdges, PastFlows
from drain.tables import edges
from drain.tables.columns import MARKER
from tests.flows import Flows, flows
from tests.helpers import query

EVENTS = ("success", "complete", "dead")


@pytest.fixture
def jobs(database_url: str, redis_url: str) -> Iterator[Flows]:
    with flows(database_url, redis_url) as found:
        found.look()
        yield found


def test_a_flow_without_members_ends_at_once(jobs: Flows) -> None:
    flow, success, complete, dead = jobs.flow(*EVENTS)
    after = jobs.stage(flow)
    jobs.look()
    assert jobs.states(flow, success, complete, after) == ["finished", "waiting", "waiting", "waiting"]
    assert jobs.states(dead) == ["finished"]
    assert query(jobs.url, "SELECT id, superseded_by FROM finished_jobs ORDER BY id") == [
        (flow, None),
        (dead, flow),
    ]


@pytest.mark.parametrize("count", [1, 3])
def test_a_flow_ends_after_its_last_member(jobs: Flows, count: int) -> None:
    with jobs.open() as one:
        flow, success, complete, dead = jobs.flow(*EVENTS, on=one)
        members = [jobs.stage(flow=flow, on=one) for _ in range(count)]
        one.commit()
    for member in members:
        jobs.look()
        assert jobs.states(flow, success, complete, dead) == ["blocked"] * 4
        jobs.finish(member)
    jobs.look()
    assert jobs.states(flow, success, complete, dead) == ["finished", "waiting", "waiting", "finished"]
    jobs.finish(success, complete)
    jobs.look(walk=True)
    assert query(jobs.url, "SELECT count(*) FROM staged_jobs") == [(0,)]


def test_the_row_of_an_ended_flow_is_that_of_a_job_without_a_worker(jobs: Flows) -> None:
    jobs.flow(queue="mail", tag="t")
    jobs.look()
    columns = "job_name, queue, tag, attempts, fencing_token, finished_by, superseded_by, result"
    assert query(jobs.url, f"SELECT {columns} FROM finished_jobs") == [
        (MARKER, "mail", "t", 0, 0, None, None, None)
    ]
    times = (
        "SELECT claimed_at = finished_at, moved_at = finished_at, scheduled_at = staged_at FROM finished_jobs"
    )
    assert query(jobs.url, times) == [(True, True, True)]


def test_members_wait_for_each_other(jobs: Flows) -> None:
    with jobs.open() as one:
        flow, *_ = jobs.flow(on=one)
        first = jobs.stage(flow=flow, node="first", on=one)
        second = jobs.stage(first, flow=flow, node="second", on=one)
        one.commit()
    jobs.finish(first)
    jobs.look()
    assert jobs.states(flow, second) == ["blocked", "waiting"]
    jobs.finish(second)
    jobs.look()
    assert jobs.state(flow) == "finished"


# -- deaths -----------------------------------------------------------------------------------------------------------


def dying(jobs: Flows, count: int = 2) -> tuple[tuple[int, ...], list[int]]:
    """A flow with all callbacks, whose first member died."""
    with jobs.open() as one:
        flow = jobs.flow(*EVENTS, on=one)
        members = [jobs.stage(flow=flow[0], on=one) for _ in range(count)]
        one.commit()
    jobs.look()
    jobs.die(members[0])
    jobs.look()
    return flow, members


def test_the_first_death_runs_its_callback_once(jobs: Flows) -> None:
    (flow, success, complete, dead), members = dying(jobs)
    assert jobs.states(flow, success, complete, dead) == ["blocked", "blocked", "blocked", "waiting"]
    jobs.finish(dead)
    for _ in range(2):
        jobs.retry(members[0])
        jobs.look()
        jobs.die(members[0])
        jobs.look(walk=True)
    jobs.die(members[1])
    jobs.look(walk=True)
    assert jobs.states(flow, success, complete, dead) == ["blocked", "blocked", "waiting", "finished"]
    jobs.finish(complete)
    jobs.retry(*members)
    jobs.finish(*members)
    jobs.look(walk=True)
    assert jobs.states(flow, success, complete, dead) == ["finished", "waiting", "finished", "finished"]


def test_a_death_is_heard_by_a_job_staged_later(jobs: Flows) -> None:
    (flow, *_), _ = dying(jobs)
    later = jobs.stage((flow, "only"))
    jobs.look()
    assert jobs.state(later) == "waiting"


def test_a_cancelled_callback_that_is_retried_hears_an_earlier_death(jobs: Flows) -> None:
    with jobs.open() as one:
        flow, dead = jobs.flow("dead", on=one)
        member = jobs.stage(flow=flow, on=one)
        one.commit()
    jobs.cancel(dead)
    jobs.die(member)
    jobs.look()
    jobs.retry(dead)
    jobs.look()
    assert jobs.state(dead) == "waiting"


def test_a_dead_member_that_is_discarded_cancels_the_end(jobs: Flows) -> None:
    (flow, success, complete, dead), members = dying(jobs)
    jobs.discard(members[0])
    jobs.look()
    assert jobs.states(flow, success, complete, dead) == ["cancelled", "blocked", "blocked", "waiting"]
    assert jobs.progress(flow) == (2, 0, 1, 1, "cancelled")
    jobs.finish(members[1])
    jobs.look()
    assert jobs.states(success, complete) == ["blocked", "waiting"]
    # The end then waits for the others only.
    jobs.retry(flow)
    jobs.look()
    assert jobs.states(flow, success) == ["finished", "waiting"]


def test_a_cancelled_end_is_a_death(jobs: Flows) -> None:
    flow, success, complete, dead = jobs.flow(*EVENTS)
    with jobs.open() as one:
        member = jobs.stage(flow=flow, on=one)
        one.commit()
        jobs.cancel(flow)
    jobs.look()
    assert jobs.states(flow, success, complete, dead) == ["cancelled", "blocked", "blocked", "waiting"]
    jobs.retry(flow)
    jobs.look()
    assert jobs.states(flow, success, complete) == ["blocked", "blocked", "blocked"]
    jobs.finish(member)
    jobs.look()
    assert jobs.states(flow, success, complete) == ["finished", "waiting", "waiting"]


@pytest.mark.parametrize("how", ["discard", "cancel", "expire", "supersede", "finish"])
def test_the_complete_callback_counts_every_end(jobs: Flows, how: str) -> None:
    with jobs.open() as one:
        flow, complete = jobs.flow("complete", on=one)
        member = jobs.stage(flow=flow, on=one, unique_key="k", keep="last")
        one.commit()
    jobs.look()
    if how == "finish":
        jobs.finish(member)
    elif how == "cancel":
        jobs.cancel(member)
    elif how == "supersede":
        other = jobs.stage(unique_key="k", keep="last")
        jobs.enqueuer.drain()
        jobs.look()
        assert jobs.states(member, complete) == ["finished", "blocked"]
        jobs.finish(other)
    else:
        jobs.die(member)
        jobs.connection.execute(
            f"UPDATE dead_jobs SET reason = '{'expired' if how == 'expire' else 'failed'}'"
        )
    if how == "discard":
        jobs.discard(member)
    jobs.look()
    assert jobs.states(complete) == ["waiting"]
    held = {"cancel": "blocked", "expire": "blocked", "discard": "cancelled"}
    assert jobs.state(flow) == held.get(how, "finished")


def test_jobs_join_after_the_complete_callback_has_run(jobs: Flows) -> None:
    (flow, _, complete, _), members = dying(jobs, count=1)
    jobs.finish(complete)
    late = jobs.stage(flow=flow)
    jobs.retry(*members)
    jobs.finish(late, *members)
    jobs.look()
    assert jobs.states(flow, complete) == ["finished", "finished"]
    assert jobs.edges(complete) == ["met", "met"]


def test_a_callback_of_deaths_that_another_session_has_locked_runs_later(jobs: Flows) -> None:
    with jobs.open() as one:
        flow, dead = jobs.flow("dead", on=one)
        member = jobs.stage(flow=flow, on=one)
        one.commit()
    jobs.look()
    with jobs.open() as other:
        other.execute("SELECT FROM staged_jobs WHERE id = %s FOR UPDATE", (dead,))
        jobs.die(member)
        jobs.look()
        assert jobs.state(dead) == "blocked"
        other.rollback()
    jobs.look()
    assert jobs.state(dead) == "waiting"


# -- afterwards -------------------------------------------------------------------------------------------------------


def test_rows_of_a_flow_are_deleted_with_its_end(jobs: Flows) -> None:
    (flow, *callbacks), _ = dying(jobs)
    jobs.connection.execute("DELETE FROM staged_jobs WHERE id = %s", (flow,))
    connection = jobs.enqueuer.connection
    assert (PastFlows(connection).run_once(), PastEdges(connection).run_once()) == (1, 3)
    assert query(jobs.url, "SELECT count(*) FROM flows") == [(0,)]
    children = query(jobs.url, "SELECT array_agg(DISTINCT child_id ORDER BY child_id) FROM job_edges")
    assert children == [(callbacks,)]


def test_an_audit_finds_callbacks_of_deaths_that_do_not_run(jobs: Flows) -> None:
    with jobs.open() as one:
        flow, dead = jobs.flow("dead", on=one)
        member = jobs.stage(flow=flow, on=one)
        one.commit()
    jobs.look()
    jobs.die(member)

    def breaches() -> list[tuple[str, tuple[int, ...]]]:
        found = audit(jobs.connection, overdue_seconds=60, patience_seconds=0.2).breaches
        return [(each.check, each.ids) for each in found]

    assert breaches() == []
    jobs.connection.execute("UPDATE dead_jobs SET died_at = now() - interval '2 minutes'")
    assert breaches() == [("blocked", (dead,))]
    jobs.look()
    jobs.connection.execute("UPDATE staged_jobs SET staged_at = now() WHERE id = %s", (dead,))
    assert breaches() == []


def test_an_audit_accepts_ended_flows(jobs: Flows) -> None:
    jobs.flow(*EVENTS)
    jobs.look()
    found = audit(jobs.connection, overdue_seconds=60, patience_seconds=0.2)
    assert [each for each in found.breaches if each.check != "attended"] == []


def test_the_leader_ends_a_retried_flow_without_other_members(jobs: Flows) -> None:
    (flow, success, *_), members = dying(jobs, count=1)
    jobs.discard(*members)
    jobs.look()
    jobs.retry(flow)
    assert jobs.state(flow) == "blocked"
    late = jobs.stage(flow=flow)
    jobs.look()
    assert jobs.state(flow) == "blocked"
    jobs.finish(late)
    jobs.look()
    assert jobs.states(flow, success) == ["finished", "waiting"]


def test_a_worker_can_run_the_end_of_a_flow() -> None:
    assert resolve_name(MARKER)() is None


def test_an_end_that_is_locked_is_not_compared_with_all_its_members_again(
    jobs: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that adds a member may hold the lock for minutes."""
    (flow,) = jobs.flow()
    first, *_ = [jobs.stage(flow=flow) for _ in range(20)]
    jobs.look()
    numbers, read_page = [], edges.read_page

    def read(*given: Any, **more: Any) -> edges.Page | None:
        page = read_page(*given, **more)
        numbers.append(page.number if page else 0)
        return page

    monkeypatch.setattr(edges, "read_page", read)
    with jobs.open() as other:
        jobs.stage(flow=flow, on=other)
        jobs.finish(first)
        for _ in range(3):
            jobs.look()
        assert (max(numbers), jobs.edges(flow).count("met")) == (1, 1)
        other.rollback()
    jobs.look()
    assert jobs.edges(flow).count("met") == 2
