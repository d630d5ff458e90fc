"""At every instant between two steps that touch a store the process is killed; nothing is lost or done twice."""

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import pytest
from redis import Redis

from drain import postgres
from drain.audit import audit
from drain.crashpoints import CrashPoint
from drain.redelivery import Redelivery
from drain.wire import Wire
from tests import jobs_for_tests, jobs_that_crash
from tests.support import (
    NAMESPACE,
    PATIENCE_SECONDS,
    ROOT,
    drain_command,
    environment,
    new_enqueuer,
    query,
    stage_jobs,
    wait_until,
)

TRANSACTIONAL = f"{jobs_that_crash.MODULE}.settle"
RUN = ("run", "--metrics-port", "0", "--forward-queues", "forward")
WORK = ("work", "--burst", "default", "forward")
# More than one script call's worth, and more than one batch's.
MANY = 2_700


@dataclass(frozen=True)
class System:
    database_url: str
    redis_url: str

    @property
    def env(self) -> dict[str, str]:
        jobs = {"DRAIN_JOBS": jobs_that_crash.MODULE, "PYTHONPATH": str(ROOT)}
        return environment(self.database_url, self.redis_url, **jobs)

    def stage(self, count: int = 3, *, job: str = TRANSACTIONAL, **options: object) -> set[int]:
        """Stage jobs whose label is their id."""
        ids = stage_jobs(self.database_url, count, job=job, **options)
        query(self.database_url, "UPDATE staged_jobs SET job_args = jsonb_build_array(id::text)")
        return set(ids)

    def crash(self, point: CrashPoint, words: tuple[str, ...]) -> None:
        """Run the command until it kills itself at the point; fails if it never gets there."""
        program = [sys.executable, "-m", "tests.crashing", point.name, *words]
        result = subprocess.run(
            program,
            env=self.env,
            cwd=ROOT,
            timeout=PATIENCE_SECONDS,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == -signal.SIGKILL, result.stdout + result.stderr

    def go_on(self) -> None:
        """Let a new enqueuer and a new worker do the rest."""
        with (
            drain_command(*RUN, env=self.env),
            drain_command("work", "default", "forward", env=self.env),
        ):
            wait_until(lambda: not self.unfinished(), PATIENCE_SECONDS)

    def drain_once(self) -> None:
        with drain_command("run", "--once", "--forward-queues", "forward", env=self.env) as once:
            assert once.wait(PATIENCE_SECONDS) == 0

    def give_up_what_was_popped(self) -> None:
        """Without the grace that a worker has to claim what it has popped: there is none."""
        with new_enqueuer(self.database_url, self.redis_url) as enqueuer:
            redelivery = Redelivery(enqueuer, lost_after_seconds=0)
            redelivery.recover()
            redelivery.run_once()
            redelivery.run_once()

    def unfinished(self) -> int:
        ((count,),) = query(
            self.database_url,
            "SELECT (SELECT count(*) FROM staged_jobs) + (SELECT count(*) FROM inflight_jobs)",
        )
        with Redis.from_url(self.redis_url) as client:
            return int(count) + int(client.llen("rq:queue:forward"))

    def finished(self) -> set[int]:
        return {id_ for (id_,) in query(self.database_url, "SELECT id FROM finished_jobs")}

    def effects(self) -> Counter[int]:
        return Counter(int(label) for label in jobs_for_tests.effects(self.database_url))

    def assert_sound(self) -> None:
        with (
            postgres.connect(self.database_url, "tests") as connection,
            closing(Wire(self.redis_url, NAMESPACE)) as redis,
        ):
            report = audit(connection, redis)
            assert report.ok, report


@pytest.fixture
def system(database_url: str, redis_url: str) -> System:
    jobs_for_tests.create_effects(database_url)
    return System(database_url, redis_url)


def some_jobs(system: System) -> None:
    system.stage()


def due_by_now(system: System) -> None:
    system.stage()
    query(
        system.database_url,
        "INSERT INTO staged_jobs (job_name, scheduled_at, staged_at) "
        f"VALUES ('{TRANSACTIONAL}', now() - interval '1 min', now() - interval '1 hour')",
    )
    query(system.database_url, "UPDATE staged_jobs SET job_args = jsonb_build_array(id::text)")


def lost_by_redis(system: System) -> None:
    system.stage()
    system.drain_once()
    with Redis.from_url(system.redis_url) as client:
        client.flushall()


def pushed(system: System) -> None:
    system.stage()
    system.drain_once()


WORKERS = {
    CrashPoint.POPPED: TRANSACTIONAL,
    CrashPoint.CLAIMED: TRANSACTIONAL,
    CrashPoint.EXTENDED: f"{jobs_that_crash.MODULE}.outlive_the_first_lease",
    CrashPoint.WRITTEN: TRANSACTIONAL,
    CrashPoint.SETTLED: TRANSACTIONAL,
    CrashPoint.SETTLED_AND_COMMITTED: TRANSACTIONAL,
    CrashPoint.RAN: TRANSACTIONAL,
    CrashPoint.RECORDED: f"{jobs_that_crash.MODULE}.act",
    CrashPoint.REFUSED: f"{jobs_that_crash.MODULE}.lose_the_first_lease",
}
ENQUEUERS: dict[CrashPoint, Callable[[System], None]] = {
    CrashPoint.LEADING: some_jobs,
    CrashPoint.RECOVERED: some_jobs,
    CrashPoint.MATURED: due_by_now,
}


@pytest.mark.parametrize("point", WORKERS, ids=lambda point: point.name)
def test_a_worker_that_is_killed_loses_nothing_and_does_nothing_twice(
    system: System, point: CrashPoint
) -> None:
    ids = system.stage(job=WORKERS[point])
    system.drain_once()

    system.crash(point, WORK)
    system.give_up_what_was_popped()
    system.go_on()

    assert system.finished() == ids
    assert system.effects() == Counter(ids)
    system.assert_sound()


def test_a_worker_that_is_killed_after_an_effect_outside_of_the_transaction_repeats_it(
    system: System,
) -> None:
    """What the transaction is for: without it, nobody can know."""
    ids = system.stage(job=f"{jobs_that_crash.MODULE}.act")
    system.drain_once()

    system.crash(CrashPoint.RAN, WORK)
    system.go_on()

    assert system.finished() == ids
    assert sorted(system.effects().values()) == [1] * (len(ids) - 1) + [2]
    system.assert_sound()
