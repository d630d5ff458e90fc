"""What befalls `drain work`, and what jobs do to it: each case was once one that harmed somebody."""

import os
import signal
import time
from collections import Counter

import psycopg
import pytest
from redis import Redis
from rq import Queue
from rq.job import JobStatus

from tests import jobs_in_batches as jobs
from tests.helpers import (
    PATIENCE_SECONDS,
    end,
    impatient,
    leading,
    only_rq_worker,
    pushed_jobs,
    query,
    wait_until,
)
from tests.process.test_batches import is_alive
from tests.worker_processes import Yard, children, kill_worker

pytestmark = pytest.mark.every_python

LOCK = "SELECT FROM inflight_jobs WHERE id = %s FOR UPDATE"


def test_a_job_runs_even_if_its_claim_took_long(yard: Yard) -> None:
    """It has not waited behind another job, though it was asked for long ago."""
    ids = yard.pushed(jobs.note, "a")
    with psycopg.connect(yard.database_url) as somebody:
        somebody.execute(LOCK, ids)
        with yard.working("--prefetch", "10") as command:
            waiting = (
                "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
            )
            wait_until(lambda: query(yard.database_url, waiting), PATIENCE_SECONDS)
            # Longer than anything may wait behind a slow job.
            since = time.monotonic() + 1
            wait_until(lambda: time.monotonic() > since)
            somebody.rollback()
            yard.wait_for("finished_jobs", ids)
            assert end(command) == 0
    assert yard.effects() == ["a"]


def test_in_a_burst_an_exiting_process_does_not_affect_the_others(yard: Yard) -> None:
    leaving = yard.pushed(jobs.leave_at_once, 1)
    others = yard.pushed(jobs.wait_for_go, *map(str, range(4)))
    with yard.working("--burst", "--processes", "2", "--prefetch", "1") as command:
        yard.wait_for("dead_jobs", leaving)
        yard.say("go")
        assert command.wait(PATIENCE_SECONDS) == 0
        assert not command.events("killed")
    assert yard.all_are("finished_jobs", others)
    assert "its worker process exited with code 1" in yard.row(leaving[0])["explanation"]


def test_a_job_that_exits_with_code_zero_dies_and_its_process_is_replaced(yard: Yard) -> None:
    leaving = yard.pushed(jobs.leave_at_once, 0)
    others = yard.pushed(jobs.note, "a")
    with yard.working("--prefetch", "2") as command:
        yard.wait_for("dead_jobs", leaving)
        yard.wait_for("finished_jobs", others)
        assert command.poll() is None
        assert end(command) == 0


def test_a_process_that_receives_sigterm_on_its_own_is_replaced(yard: Yard) -> None:
    with yard.working() as command:
        (before,) = wait_until(lambda: children(command), PATIENCE_SECONDS)
        with Redis.from_url(yard.redis_url) as client:
            # By then it has handlers for signals; the RQ process is listed before.
            only_rq_worker(client, tracked=True)
        kill_worker(command, signal.SIGTERM)
        wait_until(lambda: children(command) not in ([], [before]), PATIENCE_SECONDS)
        assert not command.events("worker_died")
        assert end(command) == 0


@pytest.mark.parametrize("job", [jobs.fork_and_exit, jobs.fork_and_return, jobs.fork_and_return_async])
def test_a_process_forked_by_a_job_does_not_become_a_second_worker(yard: Yard, job: object) -> None:
    ids = yard.pushed(job, "forked") + yard.pushed(jobs.note, *map(str, range(4)))
    with yard.working("--prefetch", "10") as command:
        yard.wait_for("finished_jobs", ids)
        assert end(command) == 0
    assert Counter(yard.effects()) == Counter(["forked", *map(str, range(4))])


def test_a_process_started_by_a_job_still_obeys_sigterm(yard: Yard) -> None:
    ids = yard.pushed(jobs.terminate_a_child, "normal") + yard.pushed(
        jobs.terminate_a_child_isolated, "isolated"
    )
    with yard.working() as command:
        yard.wait_for("finished_jobs", ids)
        assert end(command) == 0
    assert yard.effects() == ["normal: -15", "isolated: -15"]


@pytest.mark.parametrize(("job", "place"), [(jobs.put_off, "inflight_jobs"), (jobs.give_up, "dead_jobs")])
def test_a_deferral_or_failure_is_not_blamed_on_a_crashing_neighbour(
    yard: Yard, job: object, place: str
) -> None:
    wanting = yard.pushed(job, "wanting")
    killer = yard.pushed(jobs.kill_the_process, "killer", max_attempts=1)
    with yard.working("--prefetch", "10") as command:
        yard.wait_for("dead_jobs", killer)
        wait_until(lambda: yard.place(wanting[0]) == place, PATIENCE_SECONDS)
        wait_until(lambda: not held(yard), PATIENCE_SECONDS)
        assert end(command) == 0
    row = yard.row(wanting[0])
    assert "WorkerDied" not in str(row["last_error"])
    assert row["attempts"] == (0 if place == "inflight_jobs" else 1)


def held(yard: Yard) -> bool:
    return bool(query(yard.database_url, "SELECT FROM inflight_jobs WHERE lease_expires_at IS NOT NULL"))


def test_a_plain_job_that_kills_its_process_fails_no_other(yard: Yard) -> None:
    with Redis.from_url(yard.redis_url) as client:
        queue = Queue("default", connection=client)
        queue.enqueue(jobs.plain_killer)
        others = [queue.enqueue(jobs.plain, str(number)) for number in range(5)]
        with yard.working("--prefetch", "10") as command:
            wait_until(lambda: {job.get_status() for job in others} == {JobStatus.FINISHED}, PATIENCE_SECONDS)
            assert end(command) == 0
        assert yard.effects() == [str(number) for number in range(5)]


def test_an_isolated_job_does_not_outlive_its_worker(yard: Yard) -> None:
    (job_id,) = yard.pushed(jobs.isolated_pid, "pid")
    with leading(yard.env()), yard.working() as command:
        pid = int(wait_until(yard.effects, PATIENCE_SECONDS)[0])
        kill_worker(command)
        wait_until(lambda: not is_alive(pid), PATIENCE_SECONDS)
        yard.say("go")
        yard.wait_for("finished_jobs", [job_id])
        assert end(command) == 0
    assert yard.row(job_id)["attempts"] == 2


def test_an_isolated_job_that_exits_with_code_zero_fails(yard: Yard) -> None:
    (job_id,) = yard.pushed(jobs.isolated_leave_at_once, 0)
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert "its process exited with code 0" in yard.row(job_id)["explanation"]


def test_a_queue_key_that_is_not_a_list_blocks_no_other_queue(yard: Yard) -> None:
    with Redis.from_url(yard.redis_url) as client:
        client.set("rq:queue:bad", "no list")
        ids = yard.pushed(jobs.note, "a", "b")
        with yard.working("default", "bad", "--prefetch", "10") as command:
            yard.wait_for("finished_jobs", ids)
            more = yard.pushed(jobs.note, "c")
            yard.wait_for("finished_jobs", more)
            assert len(command.events("no_list")) == 1
            client.delete("rq:queue:bad")
            last = yard.pushed(jobs.note, "d", queue="bad")
            yard.wait_for("finished_jobs", last)
            assert end(command) == 0
    assert yard.effects() == ["a", "b", "c", "d"]


def test_a_dead_process_leaves_only_its_dead_job_in_redis(yard: Yard) -> None:
    ids = yard.pushed(jobs.note, "a")
    killer = yard.pushed(jobs.kill_the_process, "killer", max_attempts=1)
    with yard.working("--prefetch", "10") as command:
        yard.wait_for("dead_jobs", killer)
        yard.wait_for("finished_jobs", ids)
        with Redis.from_url(yard.redis_url) as client:
            wait_until(lambda: len(list(client.scan_iter("rq:job:*"))) == 1, PATIENCE_SECONDS)
            (key,) = client.scan_iter("rq:job:*")
            wait_until(lambda: client.hget(key, "status") == b"failed", PATIENCE_SECONDS)
        assert end(command) == 0


def test_an_alarm_left_behind_by_a_job_does_no_harm(yard: Yard) -> None:
    ids = yard.pushed(jobs.leave_an_alarm, "alarm")
    with yard.working() as command:
        yard.wait_for("finished_jobs", ids)
        after = time.monotonic() + 1.5
        wait_until(lambda: time.monotonic() > after)
        more = yard.pushed(jobs.note, "next")
        yard.wait_for("finished_jobs", more)
        assert len(command.events("started")) == 1
        assert end(command) == 0


def test_a_signal_in_the_pause_after_a_crash_leaves_nothing_behind(yard: Yard) -> None:
    killer = yard.pushed(jobs.kill_the_process, "killer", max_attempts=1)
    waiting = yard.pushed(jobs.note, "a", "b")
    # No other process has started before the supervisor is stopped.
    pause = impatient({"drain.workers.supervisor.slot._FIRST_PAUSE_SECONDS": 10})
    with yard.working("--prefetch", "10", **pause) as command:
        os.kill(command.pid, signal.SIGSTOP)
        wait_until(lambda: not any(is_alive(pid) for pid in children(command)), PATIENCE_SECONDS)
        command.send_signal(signal.SIGTERM)
        os.kill(command.pid, signal.SIGCONT)
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.place(killer[0]) == "dead_jobs"
    assert pushed_jobs(yard.redis_url) == waiting
    assert not held(yard)
