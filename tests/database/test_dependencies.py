"""Jobs that wait for others run after these have ended, and never earlier."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg import errors

from drain import StageError, stage
from drain.enqueuer import unblocker
from drain.tables import edge_looks, edges, flow_pauses
from tests.flows import Flows, flows
from tests.helpers import PATIENCE_SECONDS, new_enqueuer, query, wait_until


@pytest.fixture
def jobs(database_url: str, redis_url: str) -> Iterator[Flows]:
    with flows(database_url, redis_url) as found:
        found.look()
        yield found


def test_a_job_waits_until_its_predecessor_has_finished(jobs: Flows) -> None:
    parent = jobs.stage()
    child = jobs.stage(parent)
    jobs.look()
    assert jobs.state(child) == "blocked"
    jobs.move(parent)
    jobs.look()
    assert jobs.state(child) == "blocked"
    jobs.finish(parent)
    jobs.look()
    assert (jobs.state(child), jobs.edges(child)) == ("waiting", ["met"])


def test_the_leader_delivers_an_unblocked_job_in_the_same_round(jobs: Flows) -> None:
    child = jobs.stage(parent := jobs.stage())
    jobs.finish(parent)
    jobs.enqueuer._unblocker._looked_at = 0.0
    jobs.enqueuer.drain()
    assert jobs.state(child) == "in flight"


def test_a_job_waits_for_its_last_predecessor(jobs: Flows) -> None:
    parents = [jobs.stage() for _ in range(3)]
    child = jobs.stage(*parents)
    for parent in parents:
        jobs.look()
        assert jobs.state(child) == "blocked"
        jobs.finish(parent)
    jobs.look()
    assert jobs.state(child) == "waiting"


def test_jobs_staged_in_one_transaction_wait_in_a_chain(jobs: Flows) -> None:
    with jobs.open() as one:
        first = jobs.stage(on=one)
        second = jobs.stage(first, on=one)
        third = jobs.stage(second, on=one)
        one.commit()
    for job in (first, second):
        jobs.look()
        assert jobs.state(third) == "blocked"
        jobs.finish(job)
    jobs.look()
    assert jobs.state(third) == "waiting"


def test_an_edge_that_commits_after_its_parents_end_was_seen_is_compared(jobs: Flows) -> None:
    parent = jobs.stage()
    with jobs.open() as late:
        child = jobs.stage(parent, on=late)
        jobs.finish(parent)
        jobs.look()
        late.commit()
    jobs.look()
    assert jobs.state(child) == "waiting"


def test_an_end_that_commits_after_later_transactions_is_seen(jobs: Flows) -> None:
    """Its transaction is older than the last look, but ran then."""
    child = jobs.stage(parent := jobs.stage())
    jobs.move(parent)
    with jobs.open() as late:
        jobs.finish(parent, on=late)
        jobs.finish(jobs.stage())
        jobs.look()
        jobs.look()
        assert jobs.state(child) == "blocked"
        late.commit()
    jobs.look()
    assert jobs.state(child) == "waiting"


def test_an_edge_to_a_finished_job_is_met(jobs: Flows) -> None:
    jobs.finish(parent := jobs.stage())
    jobs.look()
    child = jobs.stage(parent)
    jobs.look()
    assert jobs.state(child) == "waiting"


@pytest.mark.parametrize(
    ("on_failure", "state"), [("cancel", "cancelled"), ("run", "waiting"), ("hold", "blocked")]
)
def test_each_edge_says_what_follows_a_death(jobs: Flows, on_failure: str, state: str) -> None:
    child = jobs.stage((parent := jobs.stage(), on_failure))
    late = jobs.stage((parent, on_failure))
    jobs.look()
    jobs.die(parent)
    jobs.look()
    later = jobs.stage((parent, on_failure))
    jobs.look()
    assert jobs.states(child, late, later) == [state] * 3


def test_a_death_cancels_all_that_waits_for_it_in_turn(jobs: Flows) -> None:
    chain = [jobs.stage()]
    for _ in range(5):
        chain.append(jobs.stage(chain[-1]))
    jobs.die(chain[0])
    jobs.look()
    assert jobs.states(*chain[1:]) == ["cancelled"] * 5
    assert jobs.explanation(chain[2]) == f"job {chain[1]}, which it waits for, is dead"
    assert jobs.edges(chain[2]) == ["idle"]


def test_a_cancelled_predecessor_is_a_dead_one(jobs: Flows) -> None:
    parent = jobs.stage()
    child, other = jobs.stage(parent), jobs.stage((parent, "run"))
    jobs.cancel(parent)
    jobs.look()
    assert jobs.states(child, other) == ["cancelled", "waiting"]


def test_one_dead_predecessor_of_many_cancels(jobs: Flows) -> None:
    one, other = jobs.stage(), jobs.stage()
    child = jobs.stage(one, other)
    jobs.finish(one)
    jobs.die(other)
    jobs.look()
    assert (jobs.state(child), jobs.edges(child)) == ("cancelled", ["met", "idle"])


def test_a_held_job_runs_after_its_predecessors_retry(jobs: Flows) -> None:
    child = jobs.stage((parent := jobs.stage(), "hold"))
    jobs.die(parent)
    jobs.look()
    jobs.retry(parent)
    jobs.look()
    assert jobs.state(child) == "blocked"
    jobs.finish(parent)
    jobs.look()
    assert jobs.state(child) == "waiting"


@pytest.mark.parametrize(("on_failure", "state"), [("run", "waiting"), ("hold", "cancelled")])
def test_a_discarded_predecessor_never_holds(jobs: Flows, on_failure: str, state: str) -> None:
    parent = jobs.stage()
    jobs.die(parent)
    child = jobs.stage((parent, on_failure))
    with jobs.open() as unseen:
        late = jobs.stage((parent, on_failure), on=unseen)
        jobs.look()
        jobs.discard(parent)
        unseen.commit()
    jobs.look()
    assert jobs.states(child, late) == [state, state]
    if state == "cancelled":
        assert (
            jobs.explanation(child)
            == f"job {parent}, which it waits for, was discarded, or is of a forward queue"
        )


def test_a_retried_job_waits_again_for_a_retried_predecessor(jobs: Flows) -> None:
    child = jobs.stage(parent := jobs.stage())
    jobs.die(parent)
    jobs.look()
    jobs.retry(parent, child)
    jobs.look()
    assert (jobs.state(child), jobs.edges(child)) == ("blocked", ["waiting"])
    jobs.finish(parent)
    jobs.look()
    assert jobs.state(child) == "waiting"


def test_a_retried_job_whose_predecessor_stays_dead_is_cancelled_again(jobs: Flows) -> None:
    child = jobs.stage(parent := jobs.stage())
    jobs.die(parent)
    jobs.look()
    jobs.retry(child)
    jobs.look()
    assert jobs.state(child) == "cancelled"


def test_a_retried_job_whose_predecessor_was_discarded_runs(jobs: Flows) -> None:
    child = jobs.stage(parent := jobs.stage())
    jobs.die(parent)
    jobs.look()
    jobs.discard(parent)
    jobs.retry(child)
    jobs.look()
    assert jobs.state(child) == "waiting"


def test_a_retry_that_commits_while_the_leader_looks_stays_blocked(
    jobs: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader sees the edge of a cancelled child, and a retry makes it wait again before it is changed."""
    child = jobs.stage(parent := jobs.stage())
    jobs.cancel(child)
    idle = edges.idle

    def retry_first(*given: object) -> set[int]:
        monkeypatch.setattr(edges, "idle", idle)
        jobs.retry(child)
        return idle(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(edges, "idle", retry_first)
    jobs.look()
    assert (jobs.state(child), jobs.edges(child)) == ("blocked", ["waiting"])
    jobs.finish(parent)
    jobs.look()
    assert jobs.state(child) == "waiting"


def test_a_child_that_was_retried_since_it_was_read_waits_for_its_new_edges(
    jobs: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The death that the leader saw is older than the edge."""
    child = jobs.stage((parent := jobs.stage(), "run"))
    jobs.look()
    jobs.die(parent)
    lock = edges.lock_children

    def retry_first(*given: object) -> set[int]:
        monkeypatch.setattr(edges, "lock_children", lock)
        jobs.cancel(child)
        jobs.retry(parent, child)
        return lock(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(edges, "lock_children", retry_first)
    jobs.look()
    assert (jobs.state(child), jobs.edges(child)) == ("blocked", ["waiting"])
    jobs.finish(parent)
    jobs.look()
    assert jobs.state(child) == "waiting"


def test_a_retry_that_commits_within_the_leaders_statement_stays_blocked(
    jobs: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement has read the edge when the retry commits, and locks it then."""
    child = jobs.stage(jobs.stage())
    jobs.look()
    jobs.cancel(child)
    held = "parent_id, pg_advisory_xact_lock_shared(7) FROM job_edges AS edge"
    monkeypatch.setattr(edges, "IDLE", edges.IDLE.replace("parent_id FROM job_edges AS edge", held))
    with jobs.open() as other, ThreadPoolExecutor(1) as thread:
        other.execute("SELECT pg_advisory_xact_lock(7)")
        changed = thread.submit(edges.idle, jobs.enqueuer.connection, [child])
        pid = jobs.enqueuer.connection.info.backend_pid
        waits = "SELECT FROM pg_locks WHERE pid = %s AND NOT granted"
        wait_until(lambda: query(jobs.url, waits, pid), PATIENCE_SECONDS)
        jobs.retry(child)
        other.rollback()
        assert changed.result(PATIENCE_SECONDS) == set()
    assert (jobs.state(child), jobs.edges(child)) == ("blocked", ["waiting"])


@pytest.mark.parametrize("how", ["retried", "paused"])
def test_a_child_that_changes_within_the_statement_of_a_page_stays_blocked(
    jobs: Flows, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The statement's snapshot has the finish, but not the change of the child that it then locks."""
    other = jobs.stage()
    (flow,) = jobs.flow()
    parent = jobs.stage(flow=flow)
    child = jobs.stage(parent, *([other] if how == "retried" else []), flow=flow)
    jobs.look()
    jobs.finish(parent)
    waits = "child_id FROM pg_advisory_xact_lock_shared(7), page"
    page = edges.PAGE_OF_AWAITED.replace("child_id FROM page\n    WHERE", f"{waits} WHERE")
    monkeypatch.setattr(unblocker, "PAGE_OF_AWAITED", page)
    with jobs.open() as holder, ThreadPoolExecutor(1) as thread:
        holder.execute("SELECT pg_advisory_xact_lock(7)")
        looked = thread.submit(jobs.look)
        wait_until(lambda: query(jobs.url, "SELECT FROM pg_locks WHERE NOT granted"), PATIENCE_SECONDS)
        if how == "retried":
            jobs.cancel(child)
            jobs.retry(child)
        else:
            assert flow_pauses.pause(jobs.connection, flow) == 1
        holder.rollback()
        looked.result(PATIENCE_SECONDS)
    assert jobs.state(child) == "blocked"
    jobs.look()
    assert (jobs.state(child), sorted(jobs.edges(child))) == ("blocked", ["met", "waiting"])
    if how == "retried":
        jobs.finish(other)
    else:
        flow_pauses.resume(jobs.connection, flow)
    jobs.look()
    assert jobs.state(child) == "waiting"


def test_edges_that_a_retry_holds_open_are_not_waited_for(jobs: Flows) -> None:
    child = jobs.stage(parent := jobs.stage())
    jobs.cancel(child)
    with jobs.open() as other:
        jobs.retry(child, on=other)
        jobs.look()
        other.commit()
    jobs.finish(parent)
    jobs.look()
    assert jobs.state(child) == "waiting"


def test_a_cancelled_child_waits_no_more(jobs: Flows) -> None:
    child = jobs.stage(parent := jobs.stage())
    jobs.look()
    jobs.cancel(child)
    jobs.look()
    assert (jobs.state(child), jobs.edges(child)) == ("cancelled", ["idle"])
    jobs.finish(parent)
    jobs.look()
    assert jobs.state(child) == "cancelled"


def test_a_child_that_another_session_has_locked_is_unblocked_later(
    jobs: Flows, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader does not wait for the lock, until it would give up."""
    caplog.set_level("INFO")
    parent = jobs.stage()
    child, free = jobs.stage(parent), jobs.stage(parent)
    with jobs.open() as other:
        other.execute("SELECT FROM staged_jobs WHERE id = %s FOR UPDATE", (child,))
        jobs.finish(parent)
        jobs.look()
        assert jobs.states(child, free) == ["blocked", "waiting"]
        assert not [each for each in caplog.records if getattr(each, "event", "") == "not_unblocked"]
        other.rollback()
    jobs.look()
    assert jobs.state(child) == "waiting"


def test_a_page_leaves_out_a_child_that_another_session_has_locked(jobs: Flows) -> None:
    """Without a wait, which would end in smaller pages."""
    child, free = jobs.stage(parent := jobs.stage()), jobs.stage(parent)
    jobs.finish(parent)
    leader = jobs.enqueuer.connection
    leader.execute("SET lock_timeout = '50ms'")
    with jobs.open() as other, leader.transaction(force_rollback=True):
        other.execute("SELECT FROM staged_jobs WHERE id = %s FOR UPDATE", (child,))
        page = edges.read_page(leader, edges.PAGE_OF_AWAITED, [parent], (0, 0), 9, meets="all")
        assert page
        assert (page.released, [edge.child for edge in page.edges]) == ([free], [child])
        other.rollback()


def test_a_job_waits_for_its_earliest_start_after_its_predecessors(jobs: Flows) -> None:
    child = jobs.stage(parent := jobs.stage(), run_in=3600)
    jobs.finish(parent)
    jobs.look()
    assert jobs.state(child) == "scheduled"
    near = "SELECT scheduled_at BETWEEN now() + '50 min'::interval AND now() + '60 min' FROM staged_jobs WHERE id = %s"
    assert query(jobs.url, near, child) == [(True,)]


def test_the_job_that_stands_for_a_superseded_one_is_awaited(jobs: Flows) -> None:
    old = jobs.stage(unique_key="a", keep="last")
    child = jobs.stage(old)
    jobs.look()
    new = jobs.stage(unique_key="a", keep="last")
    jobs.enqueuer.drain()
    assert jobs.states(old, new) == ["finished", "in flight"]
    jobs.look()
    assert jobs.state(child) == "blocked"
    jobs.finish(new)
    jobs.look()
    assert jobs.state(child) == "waiting"


def test_a_blocked_job_is_no_duplicate(jobs: Flows) -> None:
    child = jobs.stage(parent := jobs.stage(), unique_key="a")
    other = jobs.stage(unique_key="a")
    jobs.enqueuer.drain()
    assert jobs.states(child, other) == ["blocked", "in flight"]
    jobs.finish(parent, other)
    jobs.look()
    assert jobs.state(child) == "waiting"


def test_a_new_leader_finds_what_the_last_one_left(database_url: str, redis_url: str) -> None:
    with flows(database_url, redis_url) as jobs:
        one, other = jobs.stage(), jobs.stage()
        child, cancelled, left = jobs.stage(one), jobs.stage(other), jobs.stage(jobs.stage())
        jobs.finish(one)
        jobs.die(other)
        jobs.cancel(left)
    with flows(database_url, redis_url) as later:
        later.look()
        assert later.states(child, cancelled) == ["waiting", "cancelled"]
        assert later.edges(left) == ["idle"]


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_pages_leave_nothing_out(jobs: Flows, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(unblocker, "_MOST", most)
    jobs.enqueuer._unblocker._most = most
    parents = [jobs.stage() for _ in range(4)]
    fans = [[jobs.stage(parent) for _ in range(5)] for parent in parents]
    joins = [jobs.stage(*parents) for _ in range(3)]
    jobs.look()
    jobs.finish(*parents)
    jobs.look()
    assert set(jobs.states(*joins, *(child for fan in fans for child in fan))) == {"waiting"}


def test_short_pages_are_compared_in_one_round(jobs: Flows, monkeypatch: pytest.MonkeyPatch) -> None:
    child = jobs.stage(parent := jobs.stage())
    jobs.look()
    jobs.finish(parent)
    # The look finds the finished job, and the new edge.
    late = jobs.stage(parent)
    leader = jobs.enqueuer._unblocker
    monkeypatch.setattr(unblocker, "_SECONDS", PATIENCE_SECONDS)
    leader._looked_at = 0.0
    leader.run_once()
    assert (leader.has_more, *jobs.states(child, late)) == (False, "waiting", "waiting")


def test_looks_stay_frequent_while_edges_come_and_go(jobs: Flows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unblocker, "_IDLE_SECONDS", 100 * PATIENCE_SECONDS)
    for look in (jobs.look, lambda: wait_until(jobs.enqueuer._unblocker.run_once)):
        child = jobs.stage(parent := jobs.stage())
        jobs.finish(parent)
        look()
        assert jobs.state(child) == "waiting"


def test_an_end_does_not_wait_until_all_new_edges_are_compared(
    jobs: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = jobs.stage(parent := jobs.stage())
    new = [jobs.stage(jobs.stage()) for _ in range(20)]
    jobs.look()
    leader = jobs.enqueuer._unblocker
    monkeypatch.setattr(unblocker, "_MOST", 1)
    monkeypatch.setattr(unblocker, "_SECONDS", 0)
    leader._most = 1
    # As a look finds them once there are many.
    leader._sources.append(unblocker._Source(edges.PAGE_OF_CHILDREN, new))
    jobs.finish(parent)
    for _ in range(4):
        leader._looked_at = 0.0
        leader.run_once()
    assert (leader.has_more, jobs.state(child)) == (True, "waiting")


def test_a_job_that_cannot_be_unblocked_holds_up_no_other(
    jobs: Flows, caplog: pytest.LogCaptureFixture
) -> None:
    parent = jobs.stage()
    children = [jobs.stage(parent, priority=number) for number in range(8)]
    jobs.connection.execute("ALTER TABLE staged_jobs ADD CHECK (priority <> 3 OR matured_at IS NULL)")
    jobs.finish(parent)
    jobs.look()
    states = jobs.states(*children)
    assert (states[3], states.count("waiting")) == ("blocked", 7)
    (record,) = [each for each in caplog.records if getattr(each, "event", "") == "not_unblocked"]
    assert record.message.startswith(f"job {children[3]} stays blocked: new row for relation")


def test_a_refused_look_is_reported_once_and_tried_again(
    jobs: Flows, caplog: pytest.LogCaptureFixture
) -> None:
    child = jobs.stage(parent := jobs.stage())
    jobs.look()
    jobs.connection.execute("ALTER TABLE job_edges RENAME TO elsewhere")
    for _ in range(2):
        jobs.enqueuer._unblocker._looked_at = jobs.enqueuer._unblocker._retry_at = 0.0
        jobs.enqueuer.run_once()
    assert [record.message for record in caplog.records] == [
        'jobs that wait for others stay blocked: relation "job_edges" does not exist'
    ]
    jobs.connection.execute("ALTER TABLE elsewhere RENAME TO job_edges")
    jobs.finish(parent)
    jobs.look()
    assert jobs.state(child) == "waiting"


def test_no_look_reads_what_was_seen(jobs: Flows) -> None:
    """An old transaction holds xmin back for hours."""
    with jobs.open() as old:
        old.execute("SELECT pg_current_xact_id()")
        child = jobs.stage(parent := jobs.stage())
        jobs.finish(*[jobs.stage() for _ in range(5)])
        jobs.look()
        seen = jobs.enqueuer._unblocker._last
        assert seen is not None
        findings = edge_looks.look(jobs.enqueuer.connection, seen)
        assert not [*findings.finished, *findings.children]
        jobs.finish(parent)
        findings = edge_looks.look(jobs.enqueuer.connection, seen)
        assert list(findings.finished) == [parent]
        jobs.look()
        assert jobs.state(child) == "waiting"


def test_a_long_chain_behind_a_dead_job_is_cancelled_in_one_call(jobs: Flows) -> None:
    chain = [jobs.stage()]
    for _ in range(30):
        chain.append(jobs.stage(chain[-1]))
    jobs.die(chain[0])
    jobs.enqueuer.unblock_all()
    assert set(jobs.states(*chain[1:])) == {"cancelled"}


def test_edges_of_many_cancelled_jobs_become_idle_in_pages(
    jobs: Flows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edges, "MOST_IDLE", 4)
    dead, *others = [jobs.stage() for _ in range(5)]
    children = [jobs.stage(dead, *others) for _ in range(3)]
    jobs.die(dead)

    def are_idle() -> bool:
        jobs.look()
        return {state for child in children for state in jobs.edges(child)} == {"idle"}

    wait_until(are_idle)
    assert set(jobs.states(*children)) == {"cancelled"}


def test_an_edge_locked_by_another_session_holds_up_no_other(jobs: Flows) -> None:
    parent = jobs.stage()
    children = [jobs.stage(parent) for _ in range(3)]
    jobs.connection.execute("SET lock_timeout = '50ms'")
    jobs.enqueuer.connection.execute("SET lock_timeout = '50ms'")
    with jobs.open() as other:
        other.execute("SELECT FROM job_edges WHERE child_id = %s FOR UPDATE", (children[1],))
        jobs.finish(parent)
        jobs.enqueuer.unblock_all()
        assert jobs.states(*children) == ["waiting", "blocked", "waiting"]
        other.rollback()
    jobs.look()
    assert jobs.state(children[1]) == "waiting"


def test_jobs_that_wait_for_one_of_a_forward_queue_are_cancelled(database_url: str, redis_url: str) -> None:
    with new_enqueuer(database_url, redis_url, forward_queues=frozenset({"fast"})) as enqueuer:
        jobs = Flows(database_url, enqueuer)
        parent = jobs.stage(queue="fast")
        children = [jobs.stage((parent, on_failure)) for on_failure in ("cancel", "run", "hold")]
        enqueuer.drain()
        jobs.look()
        assert jobs.states(parent, *children) == ["absent", "cancelled", "cancelled", "cancelled"]
        assert jobs.explanation(children[1]).endswith("was discarded, or is of a forward queue")


def test_a_repeated_idempotency_key_keeps_the_first_predecessors(jobs: Flows) -> None:
    first, second = jobs.stage(), jobs.stage()
    with jobs.open() as one:
        child = jobs.stage(first, idempotency_key="k", on=one)
        assert jobs.stage(second, idempotency_key="k", on=one) == child
        one.commit()
    assert query(jobs.url, "SELECT parent_id FROM job_edges") == [(first,)]


def test_no_job_is_scheduled_for_the_time_of_blocked_ones(jobs: Flows) -> None:
    with pytest.raises(psycopg.Error, match="run_at"):
        jobs.stage(run_at="9999-12-29T00:00:00Z")
    with pytest.raises(StageError, match="run_at must lie before 9999-12-29"):
        stage(jobs.connection, "m.f", run_at=datetime(9999, 12, 29, tzinfo=UTC))


def test_only_the_staging_transaction_adds_edges(jobs: Flows) -> None:
    child = jobs.stage(jobs.stage())
    with (
        jobs.open() as other,
        pytest.raises(
            errors.InvalidParameterValue, match="is not a blocked job of this role and transaction"
        ),
    ):
        other.execute("SELECT drain_after(ARRAY[%s::bigint], ARRAY[1::bigint], ARRAY['run'])", (child,))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ([10**17], "job 100000000000000000, which a job should wait for, is unknown"),
        (["1"], "the option after of drain_stage"),
        ([0], "the option after of drain_stage"),
        ([1.5], "the option after of drain_stage"),
        ([[1, "stop"]], "the option after of drain_stage"),
        ([[1]], "the option after of drain_stage"),
        ([None], "the option after of drain_stage"),
        (7, "the option after of drain_stage"),
    ],
)
def test_bad_predecessors_get_one_clear_line(jobs: Flows, after: object, message: str) -> None:
    with pytest.raises(psycopg.Error, match=message):
        jobs.stage(options=None, after=after)
    assert query(jobs.url, "SELECT count(*) FROM staged_jobs") == [(0,)]


def test_an_empty_list_waits_for_nothing(jobs: Flows) -> None:
    assert jobs.state(jobs.stage(after=[])) == "waiting"


def test_rows_of_a_restored_database_are_not_read_at_each_look(jobs: Flows) -> None:
    """They have the transactions of their former server."""
    child = jobs.stage(parent := jobs.stage())
    jobs.finish(parent)
    jobs.connection.execute("UPDATE finished_jobs SET finished_xid = '9000000000'")
    jobs.look()
    seen = jobs.enqueuer._unblocker._last
    assert seen is not None
    assert not list(edge_looks.look(jobs.enqueuer.connection, seen).finished)
    jobs.look(walk=True)
    assert jobs.state(child) == "waiting"
