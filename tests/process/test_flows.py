"""Jobs that wait for others, with real leaders and workers. Some are killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

import drain
from tests import jobs_in_batches as jobs, jobs_with_results
from tests.helpers import (
    PATIENCE_SECONDS,
    RQ_PATIENCE_SECONDS,
    Command,
    connected,
    drain_command,
    ids_in,
    is_asleep,
    leading,
    pushed_jobs,
    query,
    rq_worker,
    wait_until,
)
from tests.worker_processes import Yard, children, kill_worker

pytestmark = pytest.mark.usefixtures("processes")


class Flow(NamedTuple):
    """Jobs by their labels.

    Attributes:
        after: Labels that each label waits for.
        gates: Files whose appearance ends the jobs of these labels.
    """

    ids: dict[str, int]
    after: dict[str, list[str]]
    gates: dict[str, str]

    @classmethod
    def stage(cls, yard: Yard, **gates: str) -> Flow:
        """Stage 8 jobs, 20 that wait for 3 of these each, and 2 that wait for all 20, in one transaction."""
        first, second = [f"a{n}" for n in range(8)], [f"b{n}" for n in range(20)]
        after: dict[str, list[str]] = {label: [] for label in first}
        after |= {label: [first[(n + step) % 8] for step in range(3)] for n, label in enumerate(second)}
        after |= {"c0": second, "c1": second}
        ids: dict[str, int] = {}
        connection = connected(yard.database_url)
        with connection.transaction():
            for label, parents in after.items():
                job = jobs.note_after_file if label in gates else jobs.note_in_transaction
                predecessors = [ids[parent] for parent in parents]
                ids[label] = drain.stage(connection, job, [gates.get(label, label)], after=predecessors)
        return cls(ids, after, gates)

    def check(self, yard: Yard) -> None:
        """Wait for the last job; each has run once, after all that it waited for."""
        yard.wait_for("finished_jobs", list(self.ids.values()))
        labels = {path: label for label, path in self.gates.items()}
        order = [labels.get(effect, effect) for effect in yard.effects()]
        assert Counter(order) == Counter(self.ids.keys())
        for label, parents in self.after.items():
            assert all(order.index(parent) < order.index(label) for parent in parents), (label, order)
        assert ids_in(yard.database_url, "dead_jobs") == ids_in(yard.database_url, "inflight_jobs") == []
        assert query(yard.database_url, "SELECT DISTINCT state FROM job_edges") == [("met",)]


@pytest.fixture
def yard(database_url: str, redis_url: str) -> Yard:
    jobs.create_effects(database_url)
    return Yard(database_url, redis_url)


def test_jobs_of_three_levels_run_in_order(yard: Yard) -> None:
    with leading(yard.env()), yard.working("--processes", "2"):
        Flow.stage(yard).check(yard)


def test_killed_leaders_and_workers_and_a_lost_redis_change_no_order(yard: Yard, tmp_path: Path) -> None:
    gates = {label: str(tmp_path / label) for label in ("a0", "b0")}

    def has_begun(label: str) -> bool:
        return bool(list(tmp_path.glob(f"{label}.*")))

    def kill(leader: Command) -> None:
        leader.kill()
        leader.wait(PATIENCE_SECONDS)

    with yard.working("--prefetch", "1") as worker:
        with leading(yard.env()) as leader:
            flow = Flow.stage(yard, **gates)
            wait_until(lambda: has_begun("a0"), PATIENCE_SECONDS)
            kill(leader)
        # The last predecessors end while no leader looks.
        Path(gates["a0"]).touch()
        yard.wait_for("finished_jobs", [flow.ids["a0"]])
        with leading(yard.env()) as leader:
            wait_until(lambda: has_begun("b0"), PATIENCE_SECONDS)
            with yard.redis() as client:
                client.flushall()
            killed = kill_worker(worker)
            wait_until(lambda: children(worker) not in ([], [killed]), PATIENCE_SECONDS)
            kill(leader)
        Path(gates["b0"]).touch()
        with leading(yard.env()):
            flow.check(yard)


def test_a_stock_rq_worker_runs_a_job_with_the_results_of_its_predecessor(yard: Yard) -> None:
    env = yard.env(DRAIN_JOBS=jobs_with_results.MODULE)
    (parent,) = yard.stage(jobs_with_results.note_and_answer, "parent")
    (child,) = yard.stage(jobs_with_results.gather, "child", after=parent)
    with leading(env):

        def all_have_run() -> bool:
            rq_worker(yard.redis_url, "default", env=env)
            return yard.all_are("finished_jobs", [parent, child])

        wait_until(all_have_run, RQ_PATIENCE_SECONDS)
    with psycopg.connect(yard.database_url, autocommit=True) as connection:
        assert drain.result(connection, child) == ["child", [parent, {"label": "parent"}]]
    assert yard.effects() == ["parent"]


def test_a_single_run_cancels_what_waits_for_a_dead_job(yard: Yard) -> None:
    (parent,) = yard.stage(jobs.note, "never")
    chain = [parent]
    for _ in range(5):
        chain += yard.stage(jobs.note, "never", after=chain[-1])
    (other,) = yard.stage(jobs.note, "other", after=chain[-1], on_failure="run")
    with psycopg.connect(yard.database_url) as connection:
        assert drain.cancel(connection, parent).waiting == (parent,)
    with drain_command("run", "--once", env=yard.env()) as once:
        assert once.wait(PATIENCE_SECONDS) == 0
    assert ids_in(yard.database_url, "dead_jobs") == chain
    assert pushed_jobs(yard.redis_url) == [other]


@pytest.mark.parametrize("notify", ["on", "off"])
def test_a_sleeping_leader_finds_a_child_of_a_finished_job(yard: Yard, notify: str) -> None:
    with leading(yard.env()), yard.working():
        (parent,) = yard.stage(jobs.note, "parent")
        yard.wait_for("finished_jobs", [parent])
        wait_until(lambda: is_asleep(yard.database_url), PATIENCE_SECONDS)
        with psycopg.connect(yard.database_url) as connection:
            connection.execute(f"SET drain.notify = '{notify}'".encode())
            child = drain.stage(connection, jobs.note, ["child"], after=parent)
        yard.wait_for("finished_jobs", [child])
    assert yard.effects() == ["parent", "child"]
