"""The job that undoes a flow runs once all members have ended and one is dead, and then no member is retried."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

import drain
from drain import StageError, failpoints
from drain.__main__ import main
from drain.audit import audit
from drain.enqueuer.housekeeping import PastSteps
from drain.failpoints import FailurePoint
from drain.tables import dead, edges, gone, staged
from tests.flows import Flows, flows
from tests.helpers import connected, query, wait_until


@pytest.fixture
def jobs(database_url: str, redis_url: str) -> Iterator[Flows]:
    with flows(database_url, redis_url) as found:
        found.look()
        yield found


def undoing(jobs: Flows, flow: int) -> int:
    ((undo_id,),) = query(jobs.url, "SELECT undone_by FROM flows WHERE id = %s", flow)
    return int(undo_id)


def opened(jobs: Flows, count: int = 2, **options: Any) -> tuple[int, int, list[int]]:
    """A flow with an undo; returns it, the undo and the members."""
    with jobs.open() as one:
        (flow,) = jobs.flow(on=one, **{"undo": True, **options})
        members = [jobs.stage(flow=flow, on=one) for _ in range(count)]
        one.commit()
    jobs.look()
    return flow, undoing(jobs, flow), members


def state(jobs: Flows, flow: int) -> str:
    return str(json.loads(_command(jobs, "flow", "show", str(flow), "--json"))["state"])


def _command(jobs: Flows, *words: str) -> str:
    return str(_run(jobs, *words).output)


def _run(jobs: Flows, *words: str) -> Result:
    return CliRunner(env={"COLUMNS": "300"}).invoke(main, [*words, "--database-url", jobs.url])


# -- when it runs -----------------------------------------------------------------------------------------------------


def test_it_is_superseded_if_the_flow_finishes(jobs: Flows) -> None:
    flow, undo, members = opened(jobs)
    jobs.finish(*members)
    jobs.look()
    assert jobs.states(flow, undo) == ["finished", "finished"]
    assert query(jobs.url, "SELECT superseded_by FROM finished_jobs WHERE id = %s", undo) == [(flow,)]
    assert state(jobs, flow) == "finished"


def test_it_waits_for_all_members_also_those_that_join_after_a_death(jobs: Flows) -> None:
    flow, undo, (first, second) = opened(jobs)
    jobs.die(first)
    jobs.look()
    assert (jobs.state(undo), state(jobs, flow)) == ("blocked", "failing")
    late = jobs.stage(flow=flow)
    jobs.finish(second)
    jobs.look(walk=True)
    assert jobs.state(undo) == "blocked"
    jobs.finish(late)
    jobs.look()
    assert (jobs.state(undo), state(jobs, flow)) == ("waiting", "undoing")
    jobs.die(undo)
    jobs.look()
    assert state(jobs, flow) == "failed"
    assert f"undo         job {undo} (dead): failed" in _command(jobs, "flow", "show", str(flow))
    jobs.retry(undo)
    jobs.look()
    assert state(jobs, flow) == "undoing"
    jobs.finish(undo)
    assert state(jobs, flow) == "undone"
    assert json.loads(_command(jobs, "flow", "list", "--state", "undone", "--json"))[0]["id"] == flow
    found = audit(jobs.connection, overdue_seconds=60, patience_seconds=0.2)
    assert [each for each in found.breaches if each.check == "blocked"] == []


def test_a_death_cancels_the_members_after_it_and_the_rest_is_undone(jobs: Flows) -> None:
    with jobs.open() as one:
        (flow,) = jobs.flow(on=one, undo=True)
        first = jobs.stage(flow=flow, on=one)
        second = jobs.stage(first, flow=flow, on=one)
        one.commit()
    jobs.look()
    jobs.die(first)
    jobs.look()
    assert jobs.states(first, second, undoing(jobs, flow)) == ["failed", "cancelled", "waiting"]


@pytest.mark.parametrize("when", ["before the look", "after it"])
def test_it_runs_if_a_dead_member_is_discarded(jobs: Flows, when: str) -> None:
    flow, undo, (first, second) = opened(jobs)
    jobs.die(first)
    if when == "after it":
        jobs.look()
    jobs.discard(first)
    jobs.look()
    assert jobs.states(flow, undo) == ["cancelled", "blocked"]
    jobs.finish(second)
    jobs.look()
    assert jobs.state(undo) == "waiting"


def test_it_runs_if_the_flow_is_cancelled(jobs: Flows) -> None:
    flow, undo, (first, second) = opened(jobs)
    jobs.finish(first)
    jobs.look()
    assert "cancelled" in _command(jobs, "flow", "cancel", str(flow), "--yes")
    jobs.look()
    assert jobs.states(flow, second, undo) == ["cancelled", "cancelled", "waiting"]
    assert f"undone by job {undo}" in _command(jobs, "flow", "retry", str(flow), "--yes")
    assert state(jobs, flow) == "cancelled"


def test_a_superseded_member_ends_with_the_job_that_superseded_it(jobs: Flows) -> None:
    with jobs.open() as one:
        (flow,) = jobs.flow(on=one, undo=True)
        jobs.stage(flow=flow, on=one, unique_key="k", keep="last")
        one.commit()
    undo, other = undoing(jobs, flow), jobs.stage(unique_key="k", keep="last")
    jobs.enqueuer.drain()
    jobs.look()
    assert jobs.state(undo) == "blocked"
    jobs.die(other)
    jobs.look()
    assert jobs.state(undo) == "waiting"
    assert dead.revive(jobs.connection, dead.Selection((other,))) == 0


def test_its_queue_is_that_of_the_option_or_of_the_end(jobs: Flows) -> None:
    for options, queue in (
        ({"undo": True}, "default"),
        ({"undo": True, "queue": "mail"}, "mail"),
        ({"undo": "orders", "queue": "mail"}, "orders"),
    ):
        (flow,) = jobs.flow(**options, tag="t")
        found = query(
            jobs.url, "SELECT queue, tag, job_args FROM staged_jobs WHERE id = %s", undoing(jobs, flow)
        )
        assert found == [(queue, "t", [flow])]
    (flow,) = jobs.flow(undo=False)
    assert query(jobs.url, "SELECT undone_by FROM flows WHERE id = %s", flow) == [(None,)]
    with pytest.raises(
        psycopg.errors.InvalidParameterValue, match='option "undo" is true or the name of a queue'
    ):
        jobs.flow(undo=1)


# -- retries ----------------------------------------------------------------------------------------------------------


def test_a_retry_before_the_leader_looked_wins(jobs: Flows) -> None:
    flow, undo, (first, second) = opened(jobs)
    jobs.finish(second)
    jobs.die(first)
    jobs.retry(first)
    jobs.look()
    assert jobs.states(first, undo) == ["waiting", "blocked"]
    jobs.finish(first)
    jobs.look()
    assert jobs.states(flow, undo) == ["finished", "finished"]


def test_after_the_leader_looked_no_member_is_retried(jobs: Flows) -> None:
    flow, undo, (first, second) = opened(jobs)
    jobs.die(first)
    jobs.look()
    end = f"flow {flow} has failed and is undone by job {undo}; stage a new flow"
    line = f"job {first} cannot be retried: {end}"

    def check() -> None:
        assert _command(jobs, "dead", "retry", str(first), "--yes") == f"Error: {line}; nothing was done\n"
        assert _command(jobs, "flow", "retry", str(flow), "--yes") == f"Error: {line}; nothing was done\n"
        assert line in _command(jobs, "dead", "retry", "--queue", "default", "--yes")
        assert dead.revive(jobs.connection, dead.Selection((first,))) == 0
        assert dead.revive(jobs.connection, dead.Selection((first,)), 10) == 0
        for held in (first, flow):
            explained = _command(jobs, "explain", str(held))
            assert f"undone by job {undo}" in explained
            assert "drain dead retry" not in explained
        assert "revives" not in _command(jobs, "flow", "explain", str(flow))

    check()
    jobs.finish(second)
    jobs.look()
    check()
    jobs.move(undo)
    check()
    jobs.finish(undo)
    check()


def test_a_retry_while_a_job_joins_reports_why_it_did_nothing(jobs: Flows) -> None:
    flow, undo, (first, second) = opened(jobs)
    other = jobs.stage()
    jobs.die(first)
    busy = "another transaction is changing their flow or its undo; try again"
    for words in (("dead", "retry", str(first)), ("dead", "retry", "--all"), ("flow", "retry", str(flow))):
        with jobs.open() as one:
            jobs.stage(flow=flow, on=one)
            result = _run(jobs, *words, "--yes")
        assert (result.exit_code, result.output) == (1, f"Error: {busy}; nothing was done\n"), words
    jobs.die(other)
    with jobs.open() as one:
        jobs.stage(flow=flow, on=one)
        result = _run(jobs, "dead", "retry", "--all", "--yes")
        assert (result.exit_code, result.output) == (0, f"retry: 1 job\nleft 1 job: {busy}\n")
        jobs.die(other)
        assert _run(jobs, "dead", "retry", str(first), str(other), "--yes").exit_code == 1
    assert jobs.states(first, other, undo) == ["failed", "failed", "blocked"]
    assert _run(jobs, "flow", "retry", str(flow), "--yes").exit_code == 0
    assert jobs.states(first, second) == ["waiting"] * 2


def test_other_dead_jobs_are_still_retried(jobs: Flows) -> None:
    _, _, (first, second) = opened(jobs)
    other = jobs.stage()
    jobs.die(first, other)
    jobs.look()
    assert dead.revive(jobs.connection, dead.Selection()) == 1
    assert jobs.states(first, second, other) == ["failed", "waiting", "waiting"]


def test_a_retry_and_the_leader_exclude_each_other(jobs: Flows) -> None:
    """Both have seen the dead member; the one that comes second does nothing."""
    _, undo, (first, _) = opened(jobs)
    jobs.die(first)

    def retry(point: FailurePoint) -> None:
        if point is FailurePoint.JUDGED:
            failpoints.set_hook(None)
            assert dead.revive(connected(jobs.url), dead.Selection((first,))) == 0

    failpoints.set_hook(retry)
    try:
        jobs.look()
    finally:
        failpoints.set_hook(None)
    assert jobs.states(first, undo) == ["failed", "blocked"]
    assert jobs.edges(undo) == ["met", "met", "waiting"]


def test_a_retry_sees_the_edges_that_the_leader_met_since_its_snapshot(jobs: Flows) -> None:
    _, _, (first, _) = opened(jobs)
    jobs.die(first)
    with jobs.open() as other, psycopg.connect(jobs.url, autocommit=True) as one:
        # The retry waits behind this lock, with an earlier snapshot.
        other.execute("UPDATE job_edges SET state = 'met' WHERE on_failure = 'only'")
        with ThreadPoolExecutor(1) as thread:
            revived = thread.submit(dead.revive, one, dead.Selection((first,)))
            wait_until(lambda: query(jobs.url, "SELECT FROM pg_locks WHERE NOT granted"))
            other.commit()
            assert revived.result() == 0


@pytest.mark.parametrize("place", ["outcomes", "lock_children"])
def test_the_leader_looks_again_after_a_retry(
    jobs: Flows, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    _, undo, (first, second) = opened(jobs)
    jobs.finish(second)
    jobs.look()
    jobs.die(first)
    original: Callable[..., Any] = getattr(edges, place)

    def retried(*given: Any) -> Any:
        found = original(*given) if place == "outcomes" else None
        monkeypatch.undo()
        assert dead.revive(connected(jobs.url), dead.Selection((first,))) == 1
        return original(*given) if found is None else found

    monkeypatch.setattr(edges, place, retried)
    jobs.look()
    assert jobs.states(first, undo) == ["waiting", "blocked"]
    jobs.die(first)
    jobs.look()
    assert jobs.state(undo) == "waiting"


def test_a_cancelled_undo_keeps_the_effects_and_lets_members_be_retried(jobs: Flows) -> None:
    flow, undo, (first, second) = opened(jobs)
    jobs.cancel(undo)
    jobs.look()
    jobs.die(first)
    jobs.look()
    assert state(jobs, flow) == "failing"
    jobs.retry(first)
    jobs.finish(first, second)
    jobs.look()
    assert jobs.states(flow, undo) == ["finished", "cancelled"]


def test_a_cancelled_undo_that_is_retried_after_the_death_runs(jobs: Flows) -> None:
    _, undo, (first, second) = opened(jobs)
    jobs.cancel(undo)
    jobs.look()
    jobs.die(first)
    jobs.look()
    jobs.retry(undo)
    jobs.look()
    assert jobs.state(undo) == "blocked"
    jobs.finish(second)
    jobs.look()
    assert jobs.state(undo) == "waiting"


def test_a_callback_of_deaths_that_is_retried_after_the_death_runs(jobs: Flows) -> None:
    with jobs.open() as one:
        flow, alarm = jobs.flow("dead", on=one)
        member = jobs.stage(flow=flow, on=one)
        one.commit()
    jobs.look()
    jobs.cancel(alarm)
    jobs.look()
    jobs.die(member)
    jobs.look()
    jobs.retry(alarm)
    jobs.look()
    assert jobs.state(alarm) == "waiting"


def test_a_cancelled_undo_may_be_discarded(jobs: Flows) -> None:
    flow, undo, (first, second) = opened(jobs)
    jobs.cancel(undo)
    jobs.look()
    jobs.discard(undo)
    assert gone.delete(jobs.connection, gone.DELETE_EDGES, 0, 100)[1] == 0
    late = jobs.stage(flow=flow)
    jobs.die(first)
    jobs.look()
    jobs.retry(first)
    jobs.finish(first, second, late)
    jobs.look()
    assert jobs.state(flow) == "finished"


def test_an_undo_discarded_after_a_death_still_excludes_retries(jobs: Flows) -> None:
    flow, undo, (first, second) = opened(jobs)
    jobs.die(first, second)
    jobs.look()
    jobs.die(undo)
    jobs.discard(undo)
    gone.delete(jobs.connection, gone.DELETE_EDGES, 0, 100)
    assert dead.revive(jobs.connection, dead.Selection((first,))) == 0
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="has failed"):
        jobs.stage(flow=flow)


@pytest.mark.parametrize("how", ["cancel", "discard"])
def test_no_member_of_a_cancelled_flow_is_retried(jobs: Flows, how: str) -> None:
    flow, undo, (first, second, third) = opened(jobs, 3)
    jobs.finish(first)
    if how == "cancel":
        _command(jobs, "flow", "cancel", str(flow), "--yes")
    else:
        jobs.die(second, third)
        jobs.look()
        jobs.discard(third)
    jobs.look()
    assert jobs.states(flow, undo) == ["cancelled", "waiting"]
    for _ in ("waiting", "finished"):
        assert f"undone by job {undo}" in _command(jobs, "dead", "retry", str(second), "--yes")
        assert dead.revive(jobs.connection, dead.Selection()) == 0
        if jobs.state(undo) == "waiting":
            jobs.finish(undo)


@pytest.mark.parametrize("place", ["blocked", "waiting", "in flight"])
def test_a_flow_that_is_being_undone_is_not_discarded(jobs: Flows, place: str) -> None:
    """Else its members could run while their steps are undone."""
    flow, undo, (first, second, third) = opened(jobs, 3)
    jobs.die(first, second, *([third] if place != "blocked" else []))
    jobs.look()
    jobs.discard(first)
    jobs.look()
    if place == "in flight":
        jobs.move(undo)
    assert jobs.states(flow, undo) == ["cancelled", place]
    line = "their flow is still being undone; try again when it is undone"
    refused = _run(jobs, "dead", "discard", str(flow), "--yes")
    assert (refused.exit_code, refused.output) == (1, f"Error: {line}; nothing was done\n")
    assert "undone" in _command(jobs, "dead", "retry", str(second), "--yes")
    left = _command(jobs, "dead", "discard", "--all", "--yes")
    assert left == f"discard: {'1 job' if place == 'blocked' else '2 jobs'}\nleft 1 job: {line}\n"
    if place == "blocked":
        jobs.finish(third)
        jobs.look()
    jobs.finish(undo)
    assert _run(jobs, "dead", "discard", str(flow), "--yes").exit_code == 0
    assert gone.delete(jobs.connection, gone.DELETE_FLOWS, 0, 100)[1] == 1


@pytest.mark.parametrize("end", ["finish", "discard"])
def test_dead_members_of_a_discarded_flow_are_ordinary_jobs(jobs: Flows, end: str) -> None:
    flow, undo, (first, second) = opened(jobs)
    jobs.die(first, second)
    jobs.look()
    jobs.discard(first)
    jobs.look()
    if end == "finish":
        jobs.finish(undo)
    else:
        jobs.die(undo)
    assert dead.revive(jobs.connection, dead.Selection((second,))) == 0
    jobs.discard(flow)
    if end == "discard":
        assert gone.delete(jobs.connection, gone.DELETE_FLOWS, 0, 100)[1] == 0
        jobs.discard(undo)
    jobs.retry(second)
    assert gone.delete(jobs.connection, gone.DELETE_FLOWS, 0, 100)[1] == 1
    jobs.finish(second)


def test_jobs_cancelled_by_tag_are_undone(jobs: Flows) -> None:
    with jobs.open() as one:
        (flow,) = jobs.flow(on=one, undo=True, tag="t")
        member = jobs.stage(flow=flow, on=one, tag="t")
        one.commit()
    undo = undoing(jobs, flow)
    assert drain.cancel(jobs.connection, tag="t").waiting == (flow, member)
    assert _command(jobs, "cancel", "--tag", "t", "--yes").startswith("Error: no waiting")
    jobs.look()
    assert jobs.state(undo) == "waiting"


@pytest.mark.parametrize("how", [{"ids": [1]}, {"queue": "q", "job": "drain.undo"}])
def test_an_undo_is_cancelled_by_its_id_or_name(jobs: Flows, how: dict[str, Any]) -> None:
    (flow,) = jobs.flow(undo="q")
    undo = undoing(jobs, flow)
    assert drain.cancel(jobs.connection, **how | ({"ids": undo} if "ids" in how else {})).waiting == (undo,)


# -- growth -----------------------------------------------------------------------------------------------------------


def test_no_job_joins_a_flow_that_is_undone(jobs: Flows) -> None:
    flow, undo, members = opened(jobs)
    jobs.die(*members)
    jobs.look()
    words = f"flow {flow} has failed, and job {undo} undoes it"
    for _ in ("waiting", "dead"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=words):
            jobs.stage(flow=flow)
        if jobs.state(undo) == "waiting":
            jobs.die(undo)


def test_a_member_that_joins_while_the_last_one_ends_holds_the_undo(jobs: Flows) -> None:
    flow, undo, (first, second) = opened(jobs)
    jobs.die(first)
    jobs.look()
    with jobs.open() as one:
        late = jobs.stage(flow=flow, on=one)
        jobs.finish(second)
        jobs.look()
        assert jobs.state(undo) == "blocked"
        one.commit()
    jobs.look()
    assert jobs.state(undo) == "blocked"
    jobs.finish(late)
    jobs.look()
    assert jobs.state(undo) == "waiting"


def test_a_job_that_joins_while_the_leader_starts_the_undo_waits_and_is_refused(
    jobs: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow, undo, members = opened(jobs)
    jobs.die(*members)
    unblock = staged.unblock
    with ThreadPoolExecutor(1) as thread, psycopg.connect(jobs.url) as other:
        joins: list[Any] = []

        def join_first(connection: Any, ids: Any) -> dict[int, bool]:
            if undo in ids and not joins:
                joins.append(thread.submit(jobs.stage, flow=flow, on=other))
                wait_until(lambda: query(jobs.url, "SELECT FROM pg_locks WHERE NOT granted"))
            return unblock(connection, ids)

        monkeypatch.setattr(staged, "unblock", join_first)
        jobs.look()
        with pytest.raises(psycopg.Error, match=f"job {undo} undoes it"):
            joins[0].result()
    assert jobs.state(undo) == "waiting"


def test_members_do_not_hold_for_each_other(jobs: Flows) -> None:
    earlier = jobs.stage()
    flow, _, (first, _) = opened(jobs)
    words = 'cannot wait with "hold" for another member: the flow is undone instead'
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=words):
        jobs.stage((first, "hold"), flow=flow)
    with jobs.open() as one:
        held = jobs.stage((first, "hold"), on=one)
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="which can be undone: it waits"):
            one.execute("SELECT drain_join(%s, ARRAY[%s], NULL)", (flow, held))
    jobs.stage((earlier, "hold"), (first, "run"), flow=flow)
    graph = drain.Flow("any", undo=True)
    graph.add("a", "m.f")
    graph.add("b", "m.f", after="a", on_failure="hold")
    with (
        psycopg.connect(jobs.url) as connection,
        pytest.raises(StageError, match="'b' of flow 'any' cannot hold for 'a'"),
    ):
        graph.stage(connection)


def test_a_job_is_in_one_flow_with_an_undo(jobs: Flows) -> None:
    with jobs.open() as one:
        (first,), (second,), (third,) = (jobs.flow(on=one, undo=undo) for undo in (True, False, True))
        job = jobs.stage(on=one)
        join = "SELECT drain_join(%s, ARRAY[%s], NULL)"
        one.execute(join, (first, job))
        one.execute(join, (second, job))
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="or is in another such flow"):
            one.execute(join, (third, job))


@pytest.mark.parametrize("which", ["the end", "the undo"])
def test_the_end_and_the_undo_of_a_flow_wait_for_no_foreign_job(jobs: Flows, which: str) -> None:
    """Else its role would hold or undo others' jobs."""
    with jobs.open() as one:
        (flow,) = jobs.flow(on=one, undo=True)
        ((undo,),) = one.execute("SELECT undone_by FROM flows WHERE id = %s", (flow,)).fetchall()
        child = flow if which == "the end" else undo
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"job {child} is not a blocked job"):
            one.execute("SELECT drain_after(ARRAY[%s], ARRAY[%s], '{run}')", (child, child - 1))


def test_a_sub_flow_has_no_undo_of_its_own() -> None:
    inner = drain.Flow("inner", undo="orders")
    inner.add("a", "m.f")
    with pytest.raises(StageError, match="no callbacks, undo or idempotency key"):
        drain.Flow("outer").add_flow("sub", inner)
    with pytest.raises(StageError, match="is not a queue name"):
        drain.Flow("any", undo="no queue!")


# -- steps ------------------------------------------------------------------------------------------------------------


def record(jobs: Flows, job_id: int, name: str = "charge") -> None:
    """Record a step with an undo for a job in flight."""
    jobs.connection.execute(
        "UPDATE inflight_jobs SET claimed_by = 'w', fencing_token = 1 WHERE id = %s", (job_id,)
    )
    call = "drain_record_undoable_step(id, 1, salt, 'w', %s, '1', 0, '{}')"
    ((is_recorded,),) = query(jobs.url, f"SELECT {call} FROM inflight_jobs WHERE id = %s", name, job_id)
    assert is_recorded


def undone_by(jobs: Flows, job_id: int) -> list[tuple[Any, ...]]:
    return query(jobs.url, "SELECT undone_by FROM job_steps WHERE job_id = %s ORDER BY recorded_at", job_id)


def test_the_steps_of_members_are_those_of_the_flow(jobs: Flows) -> None:
    _, undo, (first, second) = opened(jobs)
    other = jobs.stage()
    jobs.move(first, second, other)
    for job_id in (first, second, other):
        record(jobs, job_id)
        record(jobs, job_id, "ship")
    assert undone_by(jobs, first) == undone_by(jobs, second) == [(undo,), (None,)]
    assert undone_by(jobs, other)[0] > (other,)
    assert query(jobs.url, "SELECT count(*) FROM staged_jobs WHERE job_name = 'drain.undo'") == [(2,)]


def test_the_steps_of_a_member_are_those_of_a_cancelled_flow(jobs: Flows) -> None:
    """Members go on after a discard, and end before the undo."""
    flow, undo, (first, second) = opened(jobs)
    jobs.move(second)
    jobs.die(first)
    jobs.discard(first)
    jobs.look()
    assert jobs.state(flow) == "cancelled"
    record(jobs, second)
    assert undone_by(jobs, second) == [(undo,)]


def test_a_job_that_waits_for_others_does_not_take_their_undo(jobs: Flows) -> None:
    """Applications may stage jobs of this name, behind any job."""
    job_id = jobs.stage()
    false = jobs.stage((job_id, "run"))
    query(jobs.url, "UPDATE staged_jobs SET job_name = 'drain.undo' WHERE id = %s", false)
    jobs.move(job_id)
    record(jobs, job_id)
    assert undone_by(jobs, job_id) > [(false,)]


def test_without_the_undo_of_the_flow_each_member_has_its_own(jobs: Flows) -> None:
    _, undo, (first, _) = opened(jobs)
    jobs.cancel(undo)
    jobs.move(first)
    record(jobs, first)
    ((own,),) = undone_by(jobs, first)
    assert own > undo
    jobs.die(first)
    jobs.look()
    assert jobs.state(own) == "waiting"


def test_the_steps_of_finished_members_are_kept_until_the_flow_has_ended(jobs: Flows) -> None:
    flow, undo, (first, second) = opened(jobs)
    jobs.move(first)
    record(jobs, first)
    jobs.finish(first)
    jobs.look()
    query(jobs.url, "DELETE FROM finished_jobs")
    chore = PastSteps(connected(jobs.url))
    assert chore._work() == 0
    jobs.finish(second)
    jobs.look()
    assert jobs.states(flow, undo) == ["finished", "finished"]
    query(jobs.url, "DELETE FROM finished_jobs")
    assert chore._work() == 1


def test_a_member_and_its_cancelled_undo_are_not_both_retried_at_once(jobs: Flows) -> None:
    """The member's retry would touch no blocked undo, so the leader would meet the alarm of a running member."""
    _, undo, (first, second) = opened(jobs)
    jobs.cancel(undo)
    jobs.finish(second)
    jobs.die(first)
    jobs.look()
    with jobs.open() as one, jobs.open() as other, ThreadPoolExecutor(1) as thread:
        jobs.retry(undo, on=one)
        revived = thread.submit(dead.revive, other, dead.Selection((first,)))
        wait_until(lambda: revived.done() or query(jobs.url, "SELECT FROM pg_locks WHERE NOT granted"))
        one.commit()
        count = revived.result()
        looked = thread.submit(jobs.look)
        wait_until(lambda: looked.done() or query(jobs.url, "SELECT FROM pg_locks WHERE NOT granted"))
        other.commit()
        looked.result()
    assert (count, jobs.state(first), jobs.state(undo)) in {
        (0, "failed", "waiting"),
        (1, "waiting", "blocked"),
    }


def test_a_retry_does_not_wait_for_a_job_that_joins(jobs: Flows) -> None:
    flow, undo, (first, second) = opened(jobs)
    jobs.cancel(undo)
    jobs.die(first)
    jobs.look()
    jobs.connection.execute("SET lock_timeout = '1s'")
    with jobs.open() as one:
        # It shares a lock on the cancelled undo, which may be retried.
        third = jobs.stage(flow=flow, on=one)
        jobs.retry(first)
        one.commit()
    jobs.retry(undo)
    jobs.finish(first, second)
    jobs.look()
    assert jobs.states(flow, undo) == ["blocked", "blocked"]
    jobs.finish(third)
    jobs.look()
    assert jobs.states(flow, undo) == ["finished", "finished"]
