"""A flow that fails is undone: the steps of all members in reverse, those of finished ones too."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

import drain
from drain import failpoints
from drain.failpoints import FailurePoint
from drain.tables import cancellations
from drain.tables.selections import Selection
from drain.workers import current_job, job
from tests import jobs_with_undo as jobs
from tests.flows import Flows, flows
from tests.helpers import connected, end, leading, query, wait_until
from tests.inprocess_worker import Workshop
from tests.jobs_with_undo import OUTSIDE, TRANSACTIONS, Way, outside
from tests.worker_processes import Yard

seen: list[Any] = []


@pytest.fixture
def leader(shop: Workshop, redis_url: str) -> Iterator[Flows]:
    seen.clear()
    with flows(shop.database_url, redis_url) as leader:
        leader.look()
        yield leader


class Order:
    """A flow of jobs in a row; each runs a function."""

    def __init__(self, shop: Workshop, leader: Flows, *acts: Callable[[], Any]) -> None:
        self.shop, self.leader = shop, leader
        flow = drain.Flow("order", undo=True)
        for number, act in enumerate(acts):
            after = [str(number - 1)] if number else []
            flow.add(str(number), job(name=f"tests.{number}", max_attempts=1)(act), after=after)
        with psycopg.connect(shop.database_url) as connection:
            staged = flow.stage(connection)
        self.id, self.jobs = staged.id, list(staged.jobs.values())
        ((self.undo,),) = query(shop.database_url, "SELECT undone_by FROM flows WHERE id = %s", self.id)

    def run(self) -> list[str]:
        """Run the members up to the first that dies; return their words."""
        words: list[str] = []
        for job_id in self.jobs:
            self.leader.look()
            words += self.shop.work_to_the_end(self.shop.move(job_id))
            if words[-1] == "dead":
                break
        self.leader.look()
        return words

    def undone(self) -> list[str]:
        return self.shop.work_to_the_end(self.shop.move(self.undo))


def fail() -> None:
    raise OSError("the shipper does not answer")


def steps(shop: Workshop) -> list[tuple[Any, ...]]:
    return query(shop.database_url, "SELECT job_id, name FROM job_steps ORDER BY recorded_at")


@pytest.mark.parametrize("way", [*OUTSIDE, *TRANSACTIONS])
def test_the_steps_of_all_members_are_undone_in_reverse(shop: Workshop, leader: Flows, way: Way) -> None:
    def reserve() -> None:
        way("do", "reserved")

    def charge() -> None:
        way("do", "charged")
        drain.step("note", lambda: 1)
        way("bill", "billed")

    def ship() -> None:
        way("do", "packed")
        fail()

    order = Order(shop, leader, reserve, charge, ship)
    assert order.run() == ["finished", "finished", "dead"]
    assert order.undone() == ["finished"]
    done = ["reserved", "charged", "billed", "packed"]
    assert shop.effects() == [*done, *(f"undo {label}" for label in reversed(done))]
    reserved, charged, packed = order.jobs
    names = [f"{packed} do", f"{charged} bill", f"{charged} do", f"{reserved} do"]
    assert steps(shop) == [(order.undo, name) for name in names]
    assert leader.explanation(packed).endswith(f"; undone by job {order.undo}")


def test_a_flow_that_finishes_is_not_undone(shop: Workshop, leader: Flows) -> None:
    order = Order(shop, leader, lambda: outside("do", "reserved"), lambda: outside("do", "charged"))
    assert order.run() == ["finished", "finished"]
    assert shop.row(order.undo)["superseded_by"] == order.id
    assert shop.effects() == ["reserved", "charged"]


@pytest.mark.parametrize("way", TRANSACTIONS)
@pytest.mark.parametrize("point", [FailurePoint.STEP_RAN, FailurePoint.STEP_RECORDED], ids=lambda p: p.name)
def test_an_undo_in_a_transaction_happens_once(
    shop: Workshop, leader: Flows, way: Way, point: FailurePoint
) -> None:
    """The session is ended before or after its commit; the next attempt continues."""
    order = Order(shop, leader, lambda: way("do", "reserved"), lambda: way("do", "charged"), fail)
    order.run()

    def strike(reached: FailurePoint) -> None:
        if reached is point:
            failpoints.set_hook(None)
            raise OSError

    failpoints.set_hook(strike)
    try:
        assert order.undone() == ["retrying", "finished"]
    finally:
        failpoints.set_hook(None)
    assert shop.effects() == ["reserved", "charged", "undo charged", "undo reserved"]


def test_an_undo_that_dies_continues_after_its_retry(shop: Workshop, leader: Flows) -> None:
    def refuse() -> None:
        drain.step.options(undo=jobs.fail)("do", jobs.do, "charged")

    def ship() -> None:
        outside("do", "packed")
        fail()

    order = Order(shop, leader, lambda: outside("do", "reserved"), refuse, ship)
    order.run()
    shop.move(order.undo)
    assert shop.work(order.undo) == "retrying"
    shop.set(order.undo, "max_attempts = attempts + 1 WHERE")
    assert shop.work(order.undo) == "dead"
    assert shop.effects()[3:] == ["undo packed"]
    query(
        shop.database_url,
        "UPDATE job_steps SET undo = jsonb_set(undo, '{call}', '\"tests.jobs_with_undo.undo\"')",
    )
    leader.retry(order.undo)
    leader.look()
    assert order.undone() == ["finished"]
    assert shop.effects()[3:] == ["undo packed", "undo charged", "undo reserved"]


def test_names_of_any_length_are_undone(shop: Workshop, leader: Flows) -> None:
    name = "x" * 255
    order = Order(shop, leader, lambda: outside(name, "a"), lambda: outside(name, "b"), fail)
    order.run()
    assert order.undone() == ["finished"]
    assert shop.effects() == ["a", "b", "undo b", "undo a"]


def undo_in_steps(label: str) -> None:
    """An undo with a step of its own, which undoes nothing."""
    flow = current_job().flow
    assert flow is not None
    seen.append(flow.id)
    drain.step("do", jobs.do, f"note {label}")
    jobs.undo(label)


def test_an_undo_may_have_steps_and_knows_its_flow(shop: Workshop, leader: Flows) -> None:
    step = drain.step.options(undo=undo_in_steps)
    acts = [lambda label=label: step("do", jobs.do, label) for label in ("a", "b")]
    order = Order(shop, leader, *acts, fail)
    order.run()
    assert order.undone() == ["finished"]
    assert shop.effects() == ["a", "b", "note b", "undo b", "note a", "undo a"]
    assert seen == [order.id] * 2


def test_a_member_that_is_cancelled_is_undone_with_the_finished_ones(shop: Workshop, leader: Flows) -> None:
    def ship() -> None:
        outside("do", "packed")
        raise drain.Defer(60)

    order = Order(shop, leader, lambda: outside("do", "reserved"), ship)
    leader.look()
    shop.work(shop.move(order.jobs[0]))
    leader.look()
    assert shop.work(shop.move(order.jobs[1])) == "deferred"
    cancellations.cancel_inflight(connected(shop.database_url), Selection((order.jobs[1],)))
    leader.look()
    assert order.undone() == ["finished"]
    assert shop.effects() == ["reserved", "packed", "undo packed", "undo reserved"]


def test_a_late_attempt_records_nothing_once_the_undo_is_due(shop: Workshop, leader: Flows) -> None:
    def ship() -> None:
        outside("do", "packed")
        cancellations.cancel_inflight(connected(shop.database_url), Selection((current_job().id,)))
        leader.look()
        assert leader.state(order.undo) == "waiting"
        jobs.by_psycopg("late", "shipped")

    order = Order(shop, leader, lambda: outside("do", "reserved"), ship)
    assert order.run() == ["finished", "cancelled"]
    assert order.undone() == ["finished"]
    assert shop.effects() == ["reserved", "packed", "undo packed", "undo reserved"]


def test_the_first_step_of_a_member_is_undone_last_by_any_clock(shop: Workshop, leader: Flows) -> None:
    def act() -> None:
        for label in ("a", "b", "c"):
            outside(label, label)

    order = Order(shop, leader, act, lambda: outside("d", "d"), fail)
    order.run()
    # Another server took over, whose clock is behind.
    query(
        shop.database_url, "UPDATE job_steps SET recorded_at = recorded_at - interval '1 h' WHERE name = 'b'"
    )
    assert order.undone() == ["finished"]
    assert shop.effects()[4:] == ["undo d", "undo c", "undo b", "undo a"]


def test_processes_undo_a_flow(yard: Yard) -> None:
    env = {"DRAIN_JOBS": jobs.MODULE}
    flow = drain.Flow("order", undo=True)
    flow.add("first", jobs.finish, ["first"])
    flow.add("second", jobs.die, ["second"], after="first")
    with psycopg.connect(yard.database_url) as connection:
        flow.stage(connection)
    with leading(yard.env(**env)), yard.working(**env) as worker:
        wait_until(
            lambda: query(yard.database_url, "SELECT FROM finished_jobs WHERE job_name = 'drain.undo'")
        )
        assert end(worker) == 0
    done = ["first reserved", "second reserved", "second charged"]
    assert yard.effects() == [*done, *(f"undo {label}" for label in reversed(done))]
