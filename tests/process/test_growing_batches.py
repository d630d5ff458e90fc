"""Batches that grow while they run, with real leaders and workers. Some are killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

import drain
from drain.tables import dead
from tests import jobs_in_batches, jobs_that_grow as jobs, jobs_with_results
from tests.helpers import (
    PATIENCE_SECONDS,
    RQ_PATIENCE_SECONDS,
    Command,
    ids_in,
    leading,
    query,
    rq_worker,
    wait_until,
)
from tests.worker_processes import Yard, children, kill_worker

pytestmark = pytest.mark.usefixtures("processes")

JOBS = {"DRAIN_JOBS": jobs.MODULE}
CALLBACKS: dict[str, Any] = {
    f"on_{event}": (jobs.count, [event]) for event in ("success", "complete", "dead")
}


@pytest.fixture
def yard(database_url: str, redis_url: str) -> Yard:
    jobs_in_batches.create_effects(database_url)
    return Yard(database_url, redis_url)


def has_ended(yard: Yard, *events: str) -> bool:
    return set(events) <= {label.partition(":")[0] for label in yard.effects()}


def kill(leader: Command) -> None:
    leader.kill()
    leader.wait(PATIENCE_SECONDS)


def test_killed_leaders_and_workers_end_a_growing_batch_once(yard: Yard, tmp_path: Path) -> None:
    root, last = tmp_path / "root", tmp_path / "last"
    env = yard.env(**JOBS)

    def has_begun(gate: Path) -> bool:
        return bool(list(tmp_path.glob(f"{gate.name}.*")))

    with yard.working("--prefetch", "1", **JOBS) as worker:
        with leading(env) as leader:
            with (
                psycopg.connect(yard.database_url) as connection,
                drain.batch(connection, **CALLBACKS) as batch,
            ):
                batch.stage(jobs.grow, ["r", 2, str(root)])
            wait_until(lambda: has_begun(root), PATIENCE_SECONDS)
            kill(leader)
        # The first member grows the batch, and ends, while no leader looks.
        root.touch()
        wait_until(lambda: yard.effects() == ["r"], PATIENCE_SECONDS)
        with psycopg.connect(yard.database_url) as connection:
            batch_job = drain.stage(connection, jobs.grow_in_loop, ["loop", str(last)], flow=batch.id)
        with leading(env) as leader:
            wait_until(lambda: has_begun(last), PATIENCE_SECONDS)
            killed = kill_worker(worker)
            wait_until(lambda: children(worker) not in ([], [killed]), PATIENCE_SECONDS)
            kill(leader)
        assert not has_ended(yard, "complete")
        last.touch()
        with leading(env):
            wait_until(lambda: has_ended(yard, "complete", "success"), PATIENCE_SECONDS)
    members = 1 + jobs.FANOUT + jobs.FANOUT**2 + 2
    counted = f"{members} members, {members} finished, 0 dead"
    effects = yard.effects()
    assert sorted(effects[-2:]) == [f"complete: {counted}", f"success: {counted}"]
    assert set(Counter(effects).values()) == {1}
    assert len(effects) == members + 2
    assert ids_in(yard.database_url, "dead_jobs") == ids_in(yard.database_url, "staged_jobs") == []
    assert batch_job in ids_in(yard.database_url, "finished_jobs")


def test_a_dead_member_holds_success_until_it_is_retried(yard: Yard, tmp_path: Path) -> None:
    healed = tmp_path / "healed"
    with leading(yard.env(**JOBS)), yard.working(**JOBS):
        with psycopg.connect(yard.database_url) as connection, drain.batch(connection, **CALLBACKS) as batch:
            ids = batch.stage_many(jobs.die_until, [(f"m{n}", str(healed)) for n in range(3)])
        wait_until(lambda: has_ended(yard, "complete", "dead"), PATIENCE_SECONDS)
        assert drain.flow_progress(connection_of(yard), batch) == drain.FlowProgress(3, 0, 3, 0, "running")
        healed.touch()
        assert dead.revive(connection_of(yard), dead.Selection(ids=tuple(ids))) == 3
        wait_until(lambda: has_ended(yard, "success"), PATIENCE_SECONDS)
    ended = Counter(label.partition(":")[0] for label in yard.effects())
    assert ended == {"m0": 1, "m1": 1, "m2": 1, "complete": 1, "dead": 1, "success": 1}
    assert yard.effects()[-1] == "success: 3 members, 3 finished, 0 dead"


def connection_of(yard: Yard) -> psycopg.Connection[Any]:
    return psycopg.connect(yard.database_url, autocommit=True)


def test_a_stock_rq_worker_runs_members_and_callbacks(yard: Yard, tmp_path: Path) -> None:
    env = yard.env(DRAIN_JOBS=f"{jobs.MODULE},{jobs_with_results.MODULE}")
    gate = tmp_path / "gate"
    gate.touch()
    with leading(env):
        with psycopg.connect(yard.database_url) as connection:
            with drain.batch(connection, on_complete=(jobs.count, ["complete"])) as batch:
                batch.stage(jobs.grow, ["r", 1, str(gate)])
            flow = drain.Flow("results")
            flow.add("a", jobs_with_results.answer, ["first"])
            flow.add("b", jobs_with_results.gather, ["second"], after=["a"])
            found = flow.stage(connection)

        def all_have_run() -> bool:
            rq_worker(yard.redis_url, "default", env=env)
            return yard.all_are("finished_jobs", [batch.id, found.id]) and has_ended(yard, "complete")

        wait_until(all_have_run, RQ_PATIENCE_SECONDS)
    assert yard.effects()[-1] == "complete: 6 members, 6 finished, 0 dead"
    results = query(yard.database_url, "SELECT result FROM finished_jobs WHERE id = %s", found.jobs["b"])
    assert results == [(["second", ["a", {"label": "first"}]],)]
