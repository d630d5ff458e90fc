"""An order whose processes are killed at every failure point is completed or compensated, and the books balance."""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from drain.enqueuer.redelivery import Redelivery
from drain.failpoints import FailurePoint
from drain.tables.columns import MARKER
from tests import jobs_of_sagas
from tests.acceptance.test_crash_points import System
from tests.helpers import ROOT, connected, environment, module, new_enqueuer, query, run_program, wait_until

# The suite kills a few; set it to kill many others.
RUNS = int(os.environ.get("SAGA_RUNS", "10"))
OF_WORKERS = (
    FailurePoint.POPPED,
    FailurePoint.CLAIMED,
    FailurePoint.STEP_RAN,
    FailurePoint.STEP_RECORDED,
    FailurePoint.RAN,
    FailurePoint.RECORDED,
)
OF_LEADERS = (
    FailurePoint.JUDGED,
    FailurePoint.UNBLOCKED,
    FailurePoint.READ,
    FailurePoint.MOVED,
    FailurePoint.COMMITTED,
    FailurePoint.PUSHED,
)
# A flow takes eight rounds without a death; each kill adds one or two.
MOST_KILLS, MOST_ROUNDS = 4, 24
LEADERS = "SELECT FROM pg_stat_activity WHERE application_name = 'drain run' AND datname = current_database()"
# All who held leases are dead.
OVERDUE = """
UPDATE inflight_jobs SET
    lease_expires_at = CASE WHEN lease_expires_at IS NOT NULL THEN now() - interval '1 s' END,
    next_run_at = CASE WHEN next_run_at IS NOT NULL THEN now() - interval '1 s' END
"""
# What the order has come to in each book.
BOOKS = """
SELECT (SELECT coalesce(sum(delta), 0) FROM stock WHERE order_id = %(id)s),
    (SELECT coalesce(sum(amount), 0) FROM payments WHERE order_id = %(id)s),
    (SELECT coalesce(sum(delta), 0) FROM shipments WHERE order_id = %(id)s),
    (SELECT count(*) FROM stock WHERE order_id = %(id)s)
"""
ENDS = "SELECT count(*) FROM finished_jobs WHERE id = %s"
# The end of a flow waits for its dead member.
UNFINISHED = f"""
SELECT (SELECT count(*) FROM staged_jobs WHERE job_name <> '{MARKER}') + (SELECT count(*) FROM inflight_jobs)
"""
COMPLETED = (-1, 10, 1, 1)
# Put back once; never reserved.
COMPENSATED = {(0, 0, 0, 2), (0, 0, 0, 0)}


@dataclass(frozen=True)
class Shop(System):
    """Processes that fulfil orders, with `drain work` or an unmodified `rq worker`."""

    note: Path
    is_stock: bool = False

    @property
    def env(self) -> dict[str, str]:
        jobs = {"DRAIN_JOBS": jobs_of_sagas.MODULE, "PYTHONPATH": str(ROOT)}
        return environment(self.database_url, self.redis_url, **jobs)

    def unfinished(self) -> int:
        ((count,),) = query(self.database_url, UNFINISHED)
        return int(count)

    def lead(self, point: FailurePoint | None) -> bool:
        """Let a leader push the due jobs; return whether one was killed before, at this point."""
        is_killed = point is not None and self._run(point, 1, "run", "--once", "--metrics-port", "0")
        query(self.database_url, OVERDUE)
        wait_until(lambda: not query(self.database_url, LEADERS))
        with new_enqueuer(self.database_url, self.redis_url) as enqueuer:
            redelivery = Redelivery(enqueuer, lost_after_seconds=0)
            redelivery.recover()
            enqueuer._unblocker.run_all()
            enqueuer.drain()
            # A delivery counts as lost at the second look.
            redelivery.run_once()
            redelivery.run_once()
        return is_killed

    def work(self, point: FailurePoint | None, number: int) -> bool:
        """Let a worker empty the queue, unless it is killed when it comes to the point for this time."""
        point = point or FailurePoint.REFUSED
        if not self.is_stock:
            return self._run(point, number, "work", "--burst", "default")
        # It outlives the process that it forks for each job.
        self.note.unlink(missing_ok=True)
        words = ("rq", "worker", "--burst", "--url", self.redis_url, "default")
        return self._run(point, number, *words, once=str(self.note)) or self.note.exists()

    def _run(self, point: FailurePoint, number: int, *words: str, once: str = "") -> bool:
        program = module("tests.crashing")
        done = run_program(program, f"{point.name}:{number}", once, *words, env=self.env, check=False)
        assert done.returncode <= 0, done.stdout + done.stderr
        return done.returncode < 0


@pytest.fixture(params=["drain work", "rq worker"])
def shop(database_url: str, redis_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Shop:
    query(database_url, jobs_of_sagas.BOOKS)
    return Shop(database_url, redis_url, tmp_path / "killed", is_stock=request.param == "rq worker")


@pytest.mark.parametrize("stage", [jobs_of_sagas.as_job, jobs_of_sagas.as_flow])
def test_an_order_killed_anywhere_is_completed_or_compensated(shop: Shop, stage: Callable[..., int]) -> None:
    runs = RUNS // 2 if shop.is_stock else RUNS
    chance, all_kills, ends = random.Random(runs), 0, set()
    for order_id in range(1, runs + 1):
        in_stock = chance.random() < 0.4
        job_id = stage(connected(shop.database_url), order_id, in_stock=in_stock)
        kills, rounds = 0, 0
        while shop.unfinished():
            rounds += 1
            assert rounds < MOST_ROUNDS
            may_kill = kills < MOST_KILLS
            kills += shop.lead(chance.choice((*OF_LEADERS, None, None)) if may_kill else None)
            may_kill = kills < MOST_KILLS
            kills += shop.work(chance.choice(OF_WORKERS) if may_kill else None, chance.randint(1, 4))
        all_kills += kills
        ((is_finished,),) = query(shop.database_url, ENDS, job_id)
        (book,) = connected(shop.database_url).execute(BOOKS, {"id": order_id}).fetchall()
        assert {book} <= ({COMPLETED} if is_finished else COMPENSATED), f"order {order_id}: {book}"
        ends.add(bool(is_finished))
    assert ends == {True, False} or shop.is_stock
    assert all_kills >= runs
    shop.assert_sound()
