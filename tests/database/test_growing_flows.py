"""Jobs that join a flow hold its end, whatever the leader is doing."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from drain.database import postgres
from drain.tables import edges, staged
from tests.flows import Flows, flows
from tests.helpers import PATIENCE_SECONDS, query, wait_until


@pytest.fixture
def jobs(database_url: str, redis_url: str) -> Iterator[Flows]:
    with flows(database_url, redis_url) as found:
        found.look()
        yield found


def growing(jobs: Flows) -> tuple[int, int, int]:
    """A flow with a callback and a member in flight."""
    with jobs.open() as one:
        flow, complete = jobs.flow("complete", on=one)
        member = jobs.stage(flow=flow, on=one)
        one.commit()
    jobs.look()
    jobs.move(member)
    return flow, complete, member


def check_growth(jobs: Flows, flow: int, complete: int, late: int) -> None:
    """Check that the flow waits for a job that joined."""
    assert jobs.states(flow, complete) == ["blocked", "blocked"]
    jobs.finish(late)
    jobs.look()
    assert jobs.states(flow, complete) == ["finished", "waiting"]


def test_a_member_adds_one_in_the_transaction_that_finishes_it(jobs: Flows) -> None:
    flow, complete, member = growing(jobs)
    with jobs.open() as one:
        late = jobs.stage(flow=flow, on=one)
        jobs.look()
        jobs.finish(member, on=one)
        jobs.look()
        one.commit()
    jobs.look()
    check_growth(jobs, flow, complete, late)


def test_a_job_that_has_joined_but_not_committed_holds_the_end(jobs: Flows) -> None:
    """The leader leaves the flow while a transaction has joined it, instead of waiting."""
    flow, complete, member = growing(jobs)
    with jobs.open() as one, jobs.open() as other:
        late = jobs.stage(flow=flow, on=one)
        jobs.stage(flow=flow, on=other)
        jobs.finish(member)
        jobs.look()
        assert jobs.state(flow) == "blocked"
        other.rollback()
        jobs.look()
        one.commit()
    jobs.look()
    check_growth(jobs, flow, complete, late)


@pytest.mark.parametrize("place", ["read_page", "outcomes", "lock_children"])
def test_a_job_that_joins_while_the_leader_compares_holds_the_end(
    jobs: Flows, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    flow, complete, member = growing(jobs)
    if place != "read_page":
        # As after a failure.
        jobs.enqueuer._unblocker._most = 1
    late: list[int] = []
    original: Callable[..., Any] = getattr(edges, place)

    def join_first(*given: Any, **named: Any) -> Any:
        if not late:
            late.append(jobs.stage(flow=flow))
        return original(*given, **named)

    jobs.finish(member)
    monkeypatch.setattr(edges, place, join_first)
    jobs.enqueuer.unblock_all()
    check_growth(jobs, flow, complete, *late)


def test_a_job_that_joins_while_the_flow_ends_waits_and_is_refused(
    jobs: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, complete, member = growing(jobs)
    jobs.finish(member)
    waiting = "SELECT FROM pg_locks WHERE NOT granted"
    with ThreadPoolExecutor(1) as thread, psycopg.connect(jobs.url) as other:
        joins = []
        unblock = staged.unblock

        def join_first(connection: postgres.Connection, ids: Any) -> dict[int, bool]:
            if flow in ids:
                joins.append(thread.submit(jobs.stage, flow=flow, on=other))
                wait_until(lambda: query(jobs.url, waiting), PATIENCE_SECONDS)
            return unblock(connection, ids)

        monkeypatch.setattr(staged, "unblock", join_first)
        jobs.look()
        with pytest.raises(psycopg.Error, match=f"flow {flow} has ended: start a new one"):
            joins[0].result(PATIENCE_SECONDS)
    assert jobs.states(flow, complete) == ["finished", "waiting"]


@pytest.mark.parametrize("level", ["READ_COMMITTED", "REPEATABLE_READ"])
def test_a_job_that_joins_while_the_callback_comes_free_joins_without_it(
    jobs: Flows, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    flow, complete, member = growing(jobs)
    jobs.die(member)
    waiting = "SELECT FROM pg_locks WHERE NOT granted"
    with ThreadPoolExecutor(1) as thread, psycopg.connect(jobs.url) as other:
        other.isolation_level = psycopg.IsolationLevel[level]
        joins = []
        unblock = staged.unblock

        def join_first(connection: postgres.Connection, ids: Any) -> dict[int, bool]:
            if complete in ids:
                joins.append(thread.submit(jobs.stage, flow=flow, on=other))
                wait_until(lambda: query(jobs.url, waiting), PATIENCE_SECONDS)
            return unblock(connection, ids)

        monkeypatch.setattr(staged, "unblock", join_first)
        jobs.look()
        if level == "REPEATABLE_READ":
            with pytest.raises(psycopg.errors.SerializationFailure):
                joins[0].result(PATIENCE_SECONDS)
            return
        late = joins[0].result(PATIENCE_SECONDS)
        other.commit()
    jobs.look()
    assert jobs.states(flow, complete, late) == ["blocked", "waiting", "waiting"]
    assert len(jobs.edges(flow)) == len(jobs.edges(complete)) + 1


def test_nothing_joins_a_flow_that_has_ended_or_is_cancelled(jobs: Flows) -> None:
    flow, *_ = jobs.flow()
    cancelled, *_ = jobs.flow()
    jobs.cancel(cancelled)
    jobs.look()
    with pytest.raises(psycopg.Error, match=f"flow {flow} has ended: start a new one"):
        jobs.stage(flow=flow)
    with pytest.raises(psycopg.Error, match=f"flow {cancelled} is cancelled: retry its end"):
        jobs.stage(flow=cancelled)


def test_a_cancelled_callback_is_left_alone_and_waits_again_when_retried(jobs: Flows) -> None:
    flow, complete, member = growing(jobs)
    jobs.cancel(complete)
    jobs.look()
    late = jobs.stage(flow=flow)
    jobs.finish(member)
    jobs.look()
    assert jobs.states(flow, complete) == ["blocked", "cancelled"]
    jobs.retry(complete)
    jobs.look()
    check_growth(jobs, flow, complete, late)
