"""`drain work --threads`: jobs that are no coroutines run several at once, with the same claims and fences."""

import signal
from collections import Counter

from tests import jobs_in_batches as jobs
from tests.helpers import PATIENCE_SECONDS, end, pushed_jobs, query, wait_until
from tests.process.test_batches import KILLED_SOON
from tests.worker_processes import Yard


def test_exactly_as_many_jobs_run_at_once_as_there_are_threads(yard: Yard) -> None:
    ids = yard.pushed(jobs.meet_in_threads, *[5] * 20)
    with yard.working("--threads", "5", "--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.all_are("finished_jobs", ids)
    assert Counter(yard.effects()) == {"5 together, job ": 20}


def test_slow_jobs_in_threads_start_without_waiting_for_each_other(yard: Yard) -> None:
    # Nothing is known of how long they take: they are fetched one by one.
    ids = yard.pushed(jobs.wait_for_go, *map(str, range(12)))
    with yard.working("--threads", "12") as command:
        wait_until(lambda: len(yard.effects()) == 12, PATIENCE_SECONDS)
        yard.say("go")
        yard.wait_for("finished_jobs", ids)
        assert end(command) == 0


def test_a_job_that_takes_too_long_is_interrupted_without_affecting_others(yard: Yard) -> None:
    (slow,) = yard.pushed(jobs.nap_too_long, "slow")
    others = yard.pushed(jobs.note, *map(str, range(20)))
    with yard.working("--threads", "2", "--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        assert len(command.events("started")) == 1
    assert yard.all_are("finished_jobs", others)
    assert (
        "drain.workers.errors.JobTimeoutError: it ran for longer than its timeout of 1 s"
        in yard.row(slow)["explanation"]
    )
    assert yard.row(slow)["last_error"]["type"] == "drain.workers.errors.JobTimeoutError"
    assert "in nap_for_ever" in yard.row(slow)["last_error"]["traceback"]


def test_a_job_that_no_exception_can_reach_is_killed_with_its_process(yard: Yard) -> None:
    (stubborn,) = yard.pushed(jobs.sleep_too_long, "stubborn")
    with yard.working("--threads", "2", **KILLED_SOON) as command:
        yard.wait_for("dead_jobs", [stubborn])
        others = yard.pushed(jobs.note, "a", "b")
        yard.wait_for("finished_jobs", others)
        assert end(command) == 0
    assert "was killed by SIGKILL" in yard.row(stubborn)["explanation"]


def test_concurrent_jobs_each_keep_their_own_connection_for_transactions(yard: Yard) -> None:
    first = yard.pushed(jobs.settle_in_threads, *(f"go {number}" for number in range(6)))
    held = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'drain job' AND datname = current_database() "
        "AND state = 'idle in transaction'"
    )
    with yard.working("--threads", "6") as command:
        wait_until(lambda: query(yard.database_url, held) == [(6,)], PATIENCE_SECONDS)
        yard.say("go")
        yard.wait_for("finished_jobs", first)
        second = yard.pushed(jobs.settle_in_threads, *(f"on {number}" for number in range(6)))
        wait_until(lambda: query(yard.database_url, held) == [(6,)], PATIENCE_SECONDS)
        yard.say("on")
        yard.wait_for("finished_jobs", second)
        assert end(command) == 0
    sessions = query(
        yard.database_url, "SELECT worker, count(*) FROM effects WHERE label ~ '[0-9]' GROUP BY worker"
    )
    assert sorted(count for _, count in sessions) == [2] * 6


def test_running_jobs_are_interrupted_when_the_stopping_workers_grace_ends(yard: Yard) -> None:
    running = yard.pushed(jobs.nap_for_ever, "a", "b")
    waiting = yard.pushed(jobs.nap_for_ever, "c")
    with yard.working("--threads", "2", "--prefetch", "3", "--grace-seconds", "0.1") as command:
        wait_until(lambda: len(yard.effects()) == 2, PATIENCE_SECONDS)
        command.send_signal(signal.SIGTERM)
        assert command.wait(PATIENCE_SECONDS) == 0
    assert pushed_jobs(yard.redis_url) == waiting
    for job_id in running:
        assert yard.row(job_id)["last_error"]["type"] == "drain.workers.errors.WorkerStoppedError"
        assert (yard.row(job_id)["attempts"], yard.row(job_id)["interruptions"]) == (0, 1)


def test_jobs_that_end_within_the_grace_are_finished(yard: Yard) -> None:
    ids = yard.pushed(jobs.wait_for_go, "a", "b")
    with yard.working("--threads", "2") as command:
        wait_until(lambda: len(yard.effects()) == 2, PATIENCE_SECONDS)
        command.send_signal(signal.SIGTERM)
        wait_until(lambda: command.events("stopping"), PATIENCE_SECONDS)
        yard.say("go")
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.all_are("finished_jobs", ids)


def test_a_job_whose_lease_was_taken_over_is_interrupted_and_finishes_nothing(yard: Yard) -> None:
    (contested,) = yard.pushed(jobs.nap_for_ever, "contested")
    with yard.working("--threads", "2") as command:
        wait_until(yard.effects, PATIENCE_SECONDS)
        query(
            yard.database_url,
            "UPDATE inflight_jobs SET fencing_token = fencing_token + 1, claimed_by = 'the other'",
        )
        wait_until(lambda: query(yard.database_url, "SELECT FROM stale_finishes"), PATIENCE_SECONDS)
        assert end(command) == 0
    assert yard.row(contested)["claimed_by"] == "the other"


def test_isolated_and_async_jobs_run_even_if_all_threads_are_busy(yard: Yard) -> None:
    # Fetched together, so that none waits for room.
    slow = yard.pushed(jobs.wait_for_go, "a", "b")
    others = [*yard.pushed(jobs.isolated, "c"), *yard.pushed(jobs.tell_who_runs, "d")]
    with yard.working("--threads", "2", "--prefetch", "4") as command:
        yard.wait_for("finished_jobs", others)
        wait_until(lambda: {"a", "b"} <= set(yard.effects()), PATIENCE_SECONDS)
        yard.say("go")
        yard.wait_for("finished_jobs", slow)
        assert end(command) == 0
