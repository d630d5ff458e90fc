"""At every instant between two steps that touch a store the process is killed; nothing is lost or done twice."""

import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
from psycopg.types.json import Jsonb
from redis import Redis

from drain.audit import audit
from drain.config import Settings
from drain.database import postgres
from drain.enqueuer.redelivery import Redelivery
from drain.failpoints import FailurePoint
from drain.wire import Producer
from drain.workers.entry import Worker
from tests import applications_that_crash, jobs_for_tests, jobs_that_crash
from tests.helpers import (
    NAMESPACE,
    PATIENCE_SECONDS,
    ROOT,
    drain_command,
    effects,
    environment,
    ids_in,
    module,
    new_enqueuer,
    query,
    run_program,
    stage_jobs,
    wait_until,
)

TRANSACTIONAL = f"{jobs_that_crash.MODULE}.settle"
RUN = ("run", "--metrics-port", "0", "--forward-queues", "forward")
WORK = ("work", "--burst", "default", "forward")


# Queues, and keys of queues, of which more run than they may.
EXCEEDED = """
SELECT queue, NULL, count(*) FROM inflight_jobs JOIN queues USING (queue) WHERE next_run_at IS NULL
GROUP BY queue, running HAVING count(*) > running
UNION ALL
SELECT queue, key, count(*) FROM inflight_jobs JOIN queues USING (queue) WHERE next_run_at IS NULL AND key IS NOT NULL
GROUP BY queue, key, running_per_key HAVING count(*) > running_per_key
"""
LEADERS = "SELECT FROM pg_stat_activity WHERE application_name = 'drain run' AND datname = current_database()"


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

    def stage_after(self, predecessors: set[int], count: int = 2) -> set[int]:
        """Stage jobs that wait for others, and whose label is their id."""
        after = Jsonb({"after": sorted(predecessors)})
        stage = "SELECT drain_stage(%s, '[]', %s) FROM generate_series(1, %s)"
        ids = {id_ for (id_,) in query(self.database_url, stage, TRANSACTIONAL, after, count)}
        query(self.database_url, "UPDATE staged_jobs SET job_args = jsonb_build_array(id::text)")
        return ids

    def stage_flow(self) -> list[int]:
        """Stage a flow without members; return its id, and those of its callbacks for success and deaths."""
        stage = "SELECT drain_stage(%s, '[]', %s)"
        with postgres.connect(self.database_url, "test") as connection, connection.transaction():
            ((flow,),) = connection.execute("SELECT id FROM drain_flow('{}')").fetchall()
            ids = [flow]
            for event in ("success", "dead"):
                options = Jsonb({"flow": flow, "on": event})
                ids += connection.execute(stage, [TRANSACTIONAL, options]).fetchall()[0]
        query(self.database_url, "UPDATE staged_jobs SET job_args = jsonb_build_array(id::text)")
        return ids

    def crash(self, point: FailurePoint, words: tuple[str, ...]) -> None:
        """Run the command until it kills itself at the point; fails if it never gets there."""
        result = self.run(point, "", words)
        assert result.returncode == -signal.SIGKILL, result.stdout + result.stderr

    def crash_once(self, point: FailurePoint, words: tuple[str, ...], marker: Path) -> None:
        """Run the command to its end, while one of its processes kills itself at the point."""
        result = self.run(point, str(marker), words)
        assert result.returncode == 0, result.stdout + result.stderr
        assert marker.exists(), result.stdout + result.stderr

    def run(self, point: FailurePoint, once: str, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        return run_program(module("tests.crashing"), point.name, once, *words, env=self.env, check=False)

    def go_on(self) -> None:
        """Let a new enqueuer and a new worker do the rest: in this process, for the sake of time."""
        # A session that is gone keeps its lock for a moment.
        wait_until(lambda: not query(self.database_url, LEADERS))
        worker = Worker(Settings(database_url=self.database_url))
        with (
            closing(worker),
            Redis.from_url(self.redis_url) as client,
            new_enqueuer(
                self.database_url, self.redis_url, forward_queues=frozenset({"forward"})
            ) as enqueuer,
        ):
            # Without the grace that a worker has to claim what it has popped: there is no other.
            redelivery = Redelivery(enqueuer, lost_after_seconds=0)
            redelivery.recover()

            def all_is_finished() -> bool:
                enqueuer.drain()
                self.assert_no_limit_is_exceeded()
                redelivery.run_once()
                self.assert_no_limit_is_exceeded()
                while rq_id := cast("bytes | None", client.lpop("rq:queue:default")):
                    _, job_id, delivery = map(bytes.decode, rq_id.split(b"-"))
                    worker.execute(int(job_id), delivery=int(delivery))
                return not self.unfinished()

            wait_until(all_is_finished, PATIENCE_SECONDS)
        self.work_forwarded()

    def work_forwarded(self) -> None:
        with Redis.from_url(self.redis_url) as client:
            if not client.llen("rq:queue:forward"):
                return
        with drain_command("work", "--burst", "forward", env=self.env) as command:
            assert command.wait(PATIENCE_SECONDS) == 0

    def drain_once(self) -> None:
        with drain_command("run", "--once", "--forward-queues", "forward", env=self.env) as once:
            assert once.wait(PATIENCE_SECONDS) == 0

    def unfinished(self) -> int:
        ((count,),) = query(
            self.database_url,
            "SELECT (SELECT count(*) FROM staged_jobs) + (SELECT count(*) FROM inflight_jobs)",
        )
        return int(count)

    def finished(self) -> set[int]:
        return {id_ for (id_,) in query(self.database_url, "SELECT id FROM finished_jobs")}

    def effects(self) -> Counter[int]:
        return Counter(int(label) for label in effects(self.database_url))

    def assert_each_effect_once(self, ids: set[int], *, at_least_once: set[int]) -> None:
        """Assert it of these jobs, and that the others, which are forwarded, have each had one."""
        effects = self.effects()
        # What Redis may have taken is pushed again.
        forwarded = {job_id for job_id in effects if job_id in at_least_once}
        assert {job_id: times for job_id, times in effects.items() if job_id not in forwarded} == Counter(ids)
        assert forwarded == at_least_once

    def assert_no_limit_is_exceeded(self) -> None:
        assert not query(self.database_url, EXCEEDED)

    def assert_sound(self) -> None:
        with (
            postgres.connect(self.database_url, "tests") as connection,
            closing(Producer(self.redis_url, NAMESPACE)) as redis,
        ):
            report = audit(connection, redis)
            assert report.ok, report


@pytest.fixture
def system(database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> System:
    monkeypatch.setenv("DRAIN_DATABASE_URL", database_url)
    jobs_for_tests.create_effects(database_url)
    return System(database_url, redis_url)


def some_jobs(system: System) -> set[int]:
    return system.stage()


def one_that_has_come_due(system: System) -> set[int]:
    query(
        system.database_url,
        "INSERT INTO staged_jobs (job_name, scheduled_at, staged_at) "
        "VALUES (%s, now() - interval '1 min', now() - interval '1 hour')",
        TRANSACTIONAL,
    )
    return system.stage() | {min(ids_in(system.database_url, "staged_jobs"))}


def one_that_cannot_be_moved(system: System) -> set[int]:
    query(
        system.database_url,
        "ALTER TABLE inflight_jobs ADD CONSTRAINT no_poison CHECK (job_name <> 'poison')",
    )
    system.stage(1, job="poison")
    return system.stage()


def some_that_are_forwarded(system: System) -> set[int]:
    system.stage(job=f"{jobs_for_tests.MODULE}.leave_unregistered", queue="forward")
    return set()


def some_of_both_modes(system: System) -> set[int]:
    return some_jobs(system) | some_that_are_forwarded(system)


def some_of_both_modes_beyond_the_limits(system: System) -> set[int]:
    return some_beyond_the_limits_of_their_queue(system) | some_that_are_forwarded(system)


def some_that_redis_has_lost(system: System) -> set[int]:
    ids = system.stage()
    system.drain_once()
    with Redis.from_url(system.redis_url) as client:
        client.flushall()
    return ids


def some_beyond_the_limits_of_their_queue(system: System) -> set[int]:
    query(
        system.database_url, "INSERT INTO queues (queue, running, running_per_key) VALUES ('default', 2, 1)"
    )
    ids = system.stage(5)
    query(system.database_url, "UPDATE staged_jobs SET key = 'acme' WHERE id % 2 = 0")
    return ids


def retries_beyond_the_limit_of_their_queue(system: System) -> set[int]:
    ids = system.stage()
    system.drain_once()
    query(system.database_url, "UPDATE inflight_jobs SET next_run_at = now()")
    query(system.database_url, "INSERT INTO queues (queue, running) VALUES ('default', 1)")
    return ids


# How each comes about, and the ids that have to be finished in the end.
ENQUEUERS: dict[FailurePoint, Callable[[System], set[int]]] = {
    FailurePoint.LEADING: some_jobs,
    FailurePoint.RECOVERED: some_jobs,
    FailurePoint.MATURED: one_that_has_come_due,
    FailurePoint.READ: some_jobs,
    FailurePoint.MOVED: some_of_both_modes,
    FailurePoint.COMMITTED: some_jobs,
    FailurePoint.PUSHED_A_SLICE: some_jobs,
    FailurePoint.PUSHED: some_jobs,
    FailurePoint.WATERMARK_MOVED: some_jobs,
    FailurePoint.BURIED: one_that_cannot_be_moved,
    FailurePoint.FORWARDED: some_that_are_forwarded,
    FailurePoint.PUSHED_FORWARD: some_that_are_forwarded,
    FailurePoint.RENUMBERED: some_that_redis_has_lost,
    FailurePoint.PUSHED_AGAIN: some_that_redis_has_lost,
    FailurePoint.FORGOTTEN: some_that_redis_has_lost,
    FailurePoint.ASLEEP: some_jobs,
}
RULED = {
    FailurePoint.MOVED: some_of_both_modes_beyond_the_limits,
    FailurePoint.ADMITTED: some_beyond_the_limits_of_their_queue,
    FailurePoint.COMMITTED: some_beyond_the_limits_of_their_queue,
    FailurePoint.RENUMBERED: retries_beyond_the_limit_of_their_queue,
}
TICKERS = (FailurePoint.TICKED, FailurePoint.TICKS_COMMITTED)
UNBLOCKERS = (FailurePoint.JUDGED, FailurePoint.UNBLOCKED)
STEPS, ASYNC_STEPS = (f"{jobs_that_crash.MODULE}.settle_in_{steps}" for steps in ("steps", "async_steps"))
AFTER_A_WAIT = f"{jobs_that_crash.MODULE}.settle_after_a_wait"
WORKERS = {
    FailurePoint.POPPED: TRANSACTIONAL,
    FailurePoint.CLAIMED: TRANSACTIONAL,
    FailurePoint.EXTENDED: f"{jobs_that_crash.MODULE}.outlive_the_first_lease",
    FailurePoint.STEP_RAN: STEPS,
    FailurePoint.STEP_RECORDED: STEPS,
    FailurePoint.WRITTEN: TRANSACTIONAL,
    FailurePoint.FINISHED_AND_COMMITTED: TRANSACTIONAL,
    FailurePoint.RAN: TRANSACTIONAL,
    FailurePoint.RECORDED: TRANSACTIONAL,
    FailurePoint.REFUSED: f"{jobs_that_crash.MODULE}.lose_the_first_lease",
}


def test_every_crash_point_has_its_test() -> None:
    others = {
        FailurePoint.SUPERSEDED,
        FailurePoint.CALLED_BACK,
        FailurePoint.STAGED_ONCE,
        FailurePoint.CANCELLED,
        FailurePoint.CHANGED,
        FailurePoint.WAITS_ENDED,
    }
    assert {*ENQUEUERS, *RULED, *TICKERS, *UNBLOCKERS, *WORKERS, *others} == set(FailurePoint)


@pytest.mark.parametrize("point", ENQUEUERS, ids=lambda point: point.name)
def test_a_killed_enqueuer_loses_no_job_and_makes_none_run_twice(system: System, point: FailurePoint) -> None:
    ids = ENQUEUERS[point](system)
    forwarded = {
        id_ for (id_,) in query(system.database_url, "SELECT id FROM staged_jobs WHERE queue = 'forward'")
    }

    system.crash(point, RUN)
    system.go_on()

    assert system.finished() == ids
    system.assert_each_effect_once(ids, at_least_once=forwarded)
    system.assert_sound()


@pytest.mark.parametrize("point", RULED, ids=lambda point: point.name)
def test_the_successor_of_a_killed_leader_exceeds_no_limit(system: System, point: FailurePoint) -> None:
    ids = RULED[point](system)
    forwarded = {
        id_ for (id_,) in query(system.database_url, "SELECT id FROM staged_jobs WHERE queue = 'forward'")
    }

    system.crash(point, RUN)
    system.go_on()

    assert system.finished() == ids
    system.assert_each_effect_once(ids, at_least_once=forwarded)
    system.assert_sound()


def test_an_enqueuer_killed_while_superseding_jobs_decides_again(system: System) -> None:
    delivered = system.stage(1, unique_key="doc:42")
    system.drain_once()
    staged = system.stage(2, unique_key="doc:42", keep="last")

    system.crash(FailurePoint.SUPERSEDED, RUN)

    assert not system.finished()
    system.go_on()
    assert system.finished() == delivered | staged
    assert system.effects() == Counter([max(staged)])
    system.assert_sound()


def test_no_job_starts_in_a_pause_after_a_kill_during_call_back(
    system: System,
) -> None:
    ids = system.stage()
    system.drain_once()
    query(system.database_url, "INSERT INTO queue_pauses (queue) VALUES ('default')")

    system.crash(FailurePoint.CALLED_BACK, RUN)

    with drain_command(*WORK, env=system.env) as worker:
        assert worker.wait(PATIENCE_SECONDS) == 0
    assert not system.effects()
    query(system.database_url, "DELETE FROM queue_pauses")
    system.go_on()
    assert system.finished() == ids
    assert system.effects() == Counter(ids)
    system.assert_sound()


@pytest.mark.parametrize("point", TICKERS, ids=lambda point: point.name)
def test_an_enqueuer_killed_at_a_tick_stages_one_job_for_it(system: System, point: FailurePoint) -> None:
    query(
        system.database_url,
        "INSERT INTO crons (name, job_name, cron, job_args, next_tick_at) "
        "VALUES ('settle', %s, '0 3 1 1 *', '[\"42\"]', now())",
        TRANSACTIONAL,
    )

    system.crash(point, RUN)
    system.drain_once()
    system.go_on()

    assert len(system.finished()) == 1
    assert system.effects() == Counter([42])
    system.assert_sound()


@pytest.mark.parametrize("point", UNBLOCKERS, ids=lambda point: point.name)
def test_an_enqueuer_killed_while_unblocking_jobs_unblocks_them_again(
    system: System, point: FailurePoint
) -> None:
    predecessors = system.stage()
    system.go_on()
    waiting = system.stage_after(predecessors)

    system.crash(point, RUN)

    assert system.finished() == predecessors
    system.drain_once()
    system.go_on()
    assert system.finished() == predecessors | waiting
    assert system.effects() == Counter(predecessors | waiting)
    system.assert_sound()


@pytest.mark.parametrize("point", UNBLOCKERS, ids=lambda point: point.name)
def test_an_enqueuer_killed_while_a_flow_ends_ends_it_again(system: System, point: FailurePoint) -> None:
    flow, success, dead = system.stage_flow()

    system.crash(point, RUN)

    assert not system.finished()
    system.drain_once()
    system.go_on()
    assert system.finished() == {flow, success, dead}
    assert system.effects() == Counter([success])
    system.assert_sound()


def test_the_successor_of_a_leader_killed_while_ending_waits_resumes_the_jobs(system: System) -> None:
    ids = system.stage(job=AFTER_A_WAIT)
    system.drain_once()
    with drain_command(*WORK, env=system.env) as worker:
        assert worker.wait(PATIENCE_SECONDS) == 0
    assert not system.effects()

    system.crash(FailurePoint.WAITS_ENDED, RUN)
    system.go_on()

    assert system.finished() == ids
    assert system.effects() == Counter(ids)
    system.assert_sound()


@pytest.mark.parametrize("name", ["settle_async", "settle_async_by_psycopg", "settle_by_django"])
@pytest.mark.parametrize(
    "point", [FailurePoint.WRITTEN, FailurePoint.FINISHED_AND_COMMITTED], ids=lambda point: point.name
)
def test_a_worker_killed_around_the_commit_of_its_job_writes_once(
    system: System, point: FailurePoint, name: str
) -> None:
    ids = system.stage(job=f"{jobs_that_crash.MODULE}.{name}")
    system.drain_once()

    system.crash(point, WORK)
    # Others of the event loop may have come further, and a commit that was on its way may end between two questions.
    wait_until(lambda: system.effects() == Counter(system.finished()))
    if point is FailurePoint.FINISHED_AND_COMMITTED:
        assert system.finished()
    system.go_on()

    assert system.finished() == ids
    assert system.effects() == Counter(ids)
    system.assert_sound()


@pytest.mark.parametrize(
    ("point", "job"),
    [
        *WORKERS.items(),
        *((point, ASYNC_STEPS) for point in (FailurePoint.STEP_RAN, FailurePoint.STEP_RECORDED)),
        *((point, AFTER_A_WAIT) for point in (FailurePoint.RAN, FailurePoint.RECORDED)),
    ],
)
def test_a_killed_worker_loses_no_job_and_repeats_no_effect(
    system: System, point: FailurePoint, job: str
) -> None:
    ids = system.stage(job=job)
    system.drain_once()

    system.crash(point, WORK)
    system.go_on()

    assert system.finished() == ids
    assert system.effects() == Counter(ids)
    system.assert_sound()


def test_a_cancel_killed_between_two_slices_can_be_repeated(system: System) -> None:
    delivered = system.stage(2, queue="mail")
    system.drain_once()
    staged = system.stage(2, queue="mail")
    others = system.stage()

    system.crash(FailurePoint.CANCELLED, ("cancel", "--queue", "mail", "--yes"))

    assert set(ids_in(system.database_url, "dead_jobs")) == staged
    with drain_command("cancel", "--queue", "mail", "--yes", env=system.env) as again:
        assert again.wait(PATIENCE_SECONDS) == 0
    system.go_on()
    assert set(ids_in(system.database_url, "dead_jobs")) == staged | delivered
    assert system.finished() == others
    assert system.effects() == Counter(others)
    system.assert_sound()


def test_an_application_killed_during_a_cancel_has_cancelled_nothing(system: System) -> None:
    ids = system.stage(2, queue="mail")

    system.crash(FailurePoint.CANCELLED, (f"{applications_that_crash.MODULE}:cancel_mail",))

    assert set(ids_in(system.database_url, "staged_jobs")) == ids
    assert not ids_in(system.database_url, "dead_jobs")


def test_a_move_killed_between_two_tables_can_be_repeated(system: System) -> None:
    move = ("jobs", "move", "--queue", "mail", "--to", "default", "--yes")
    delivered = system.stage(2, queue="mail")
    system.drain_once()
    staged = system.stage(2, queue="mail")

    system.crash(FailurePoint.CHANGED, move)

    left = query(system.database_url, "SELECT id FROM inflight_jobs WHERE queue = 'mail'")
    assert {id_ for (id_,) in left} == delivered
    with drain_command(*move, env=system.env) as again:
        assert again.wait(PATIENCE_SECONDS) == 0
    system.go_on()
    assert system.finished() == staged | delivered
    assert system.effects() == Counter(staged | delivered)
    system.assert_sound()


def test_a_killed_application_leaves_no_idempotency_key_without_its_job(system: System) -> None:
    system.crash(FailurePoint.STAGED_ONCE, (f"{applications_that_crash.MODULE}:stage_once",))

    assert not query(system.database_url, "SELECT FROM staged_jobs UNION ALL SELECT FROM idempotency_keys")
    for _ in range(2):
        # The second time it is as if the answer to the commit had been lost.
        applications_that_crash.stage_once()
    system.go_on()
    assert len(system.finished()) == 1
    assert system.effects() == Counter([42])
    system.assert_sound()


def test_a_recorded_job_is_not_repeated_after_a_crash(
    system: System,
) -> None:
    ids = system.stage(1, job=f"{jobs_that_crash.MODULE}.act")
    system.drain_once()

    system.crash(FailurePoint.RECORDED, WORK)
    system.go_on()

    assert system.finished() == ids
    assert system.effects() == Counter(ids)
    system.assert_sound()


@pytest.mark.parametrize("point", WORKERS, ids=lambda point: point.name)
def test_the_death_of_one_worker_process_repeats_no_finished_job(
    system: System, point: FailurePoint, tmp_path: Path
) -> None:
    """Who takes its place knows which jobs had ended: these are finished, though their effects are outside."""
    job = f"{jobs_that_crash.MODULE}.act" if point is FailurePoint.RECORDED else WORKERS[point]
    ids = system.stage(9, job=job)
    system.drain_once()

    system.crash_once(point, (*WORK, "--prefetch", "9"), tmp_path / "died")
    system.go_on()

    assert system.finished() == ids
    # Another thread records what has ended, so a job may just have been running.
    running = 1 if point is FailurePoint.RECORDED else 0
    assert set(system.effects()) == ids
    assert system.effects().total() <= len(ids) + running
    system.assert_sound()


def test_a_killed_worker_repeats_an_effect_outside_the_transaction(
    system: System,
) -> None:
    """What the transaction is for: without it, nobody can know."""
    ids = system.stage(job=f"{jobs_that_crash.MODULE}.act")
    system.drain_once()

    system.crash(FailurePoint.RAN, WORK)
    system.go_on()

    assert system.finished() == ids
    assert sorted(system.effects().values()) == [1] * (len(ids) - 1) + [2]
    system.assert_sound()
