"""`async def` jobs of `drain work` run many at once, in one event loop, with the same claims and fences."""

import signal
from collections import Counter

from tests import jobs_in_batches as jobs
from tests.helpers import PATIENCE_SECONDS, end, leading, pushed_jobs, query, wait_until
from tests.process.test_batches import KILLED_SOON
from tests.worker_processes import Yard


def test_exactly_the_requested_number_of_jobs_run_at_once(yard: Yard) -> None:
    ids = yard.pushed(jobs.meet, *[7] * 28)
    with yard.working("--concurrency", "7", "--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.all_are("finished_jobs", ids)
    assert Counter(yard.effects()) == {"7 together": 28}


def test_concurrent_jobs_each_have_their_own_claim(yard: Yard) -> None:
    ids = yard.pushed(jobs.tell_who_runs, *map(str, range(50)))
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.all_are("finished_jobs", ids)
    assert Counter(yard.effects()) == Counter(f"{number} True event loop" for number in range(50))


def test_async_jobs_run_alongside_a_slow_sync_job(yard: Yard) -> None:
    # The worker learns that jobs are short before it meets the long one, and takes several at a time.
    yard.pushed(jobs.wait_for_go, "slow")
    ids = yard.pushed(jobs.tell_who_runs, *map(str, range(3)))
    with yard.working("--prefetch", "4") as command:
        wait_until(lambda: "slow" in yard.effects(), PATIENCE_SECONDS)
        yard.wait_for("finished_jobs", ids)
        yard.say("go")
        assert end(command) == 0


def test_a_job_that_takes_too_long_is_cancelled_without_affecting_others(yard: Yard) -> None:
    (slow,) = yard.pushed(jobs.await_too_long, "slow")
    (leaving,) = yard.pushed(jobs.raise_exit, "now")
    others = yard.pushed(jobs.tell_who_runs, "a", "b")
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        assert len(command.events("started")) == 1
    assert yard.all_are("finished_jobs", others)
    assert "JobTimeoutError: it ran for longer than its timeout of 1 s" in yard.row(slow)["explanation"]
    assert "await asyncio.sleep" in yard.row(slow)["last_error"]["traceback"]
    assert "SystemExit: now" in yard.row(leaving)["explanation"]
    for job_id, function in ((slow, "await_too_long"), (leaving, "raise_exit")):
        assert yard.row(job_id)["last_error"]["traceback"].splitlines()[1].endswith(f"in {function}")


def test_a_job_that_blocks_the_loop_dies_and_only_running_jobs_are_charged(
    yard: Yard,
) -> None:
    (stubborn,) = yard.pushed(jobs.block_the_loop, "stubborn")
    others = yard.pushed(jobs.note, "a", "b")
    with yard.working("--prefetch", "3", **KILLED_SOON) as command:
        yard.wait_for("dead_jobs", [stubborn])
        yard.wait_for("finished_jobs", others)
        assert end(command) == 0
    assert "was killed by SIGKILL" in yard.row(stubborn)["explanation"]
    assert query(yard.database_url, "SELECT DISTINCT attempts FROM finished_jobs") == [(1,)]


def test_concurrent_jobs_may_each_have_an_open_transaction(yard: Yard) -> None:
    ids = yard.pushed(jobs.settle_together, *map(str, range(20)))
    held = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'drain job' AND datname = current_database() "
        "AND state = 'idle in transaction'"
    )
    with yard.working("--prefetch", "20") as command:
        wait_until(lambda: query(yard.database_url, held) == [(20,)], PATIENCE_SECONDS)
        yard.say("go")
        yard.wait_for("finished_jobs", ids)
        assert end(command) == 0
    assert Counter(yard.effects()) == Counter(["go", *map(str, range(20))])


def test_running_jobs_are_cancelled_when_the_stopping_workers_grace_ends(yard: Yard) -> None:
    running = yard.pushed(jobs.await_for_ever, "a", "b")
    waiting = yard.pushed(jobs.await_for_ever, "c")
    with yard.working("--concurrency", "2", "--prefetch", "3", "--grace-seconds", "0.1") as command:
        wait_until(lambda: len(yard.effects()) == 2, PATIENCE_SECONDS)
        command.send_signal(signal.SIGTERM)
        assert command.wait(PATIENCE_SECONDS) == 0
    assert pushed_jobs(yard.redis_url) == waiting
    for job_id in running:
        assert yard.row(job_id)["last_error"]["type"] == "drain.workers.errors.WorkerStoppedError"
        assert (yard.row(job_id)["attempts"], yard.row(job_id)["interruptions"]) == (0, 1)
    assert yard.row(waiting[0])["attempts"] == 0


def test_a_job_whose_lease_was_taken_over_is_cancelled_and_finishes_nothing(yard: Yard) -> None:
    (contested,) = yard.pushed(jobs.hold_a_short_lease, "contested")
    with yard.working() as command:
        wait_until(yard.effects, PATIENCE_SECONDS)
        query(
            yard.database_url,
            "UPDATE inflight_jobs SET fencing_token = fencing_token + 1, claimed_by = 'the other'",
        )
        wait_until(lambda: query(yard.database_url, "SELECT FROM stale_finishes"), PATIENCE_SECONDS)
        assert end(command) == 0
    assert yard.row(contested)["claimed_by"] == "the other"


def test_async_jobs_work_with_the_enqueuer_and_retries(yard: Yard) -> None:
    ids = yard.stage(jobs.fail_once, *map(str, range(5)))
    with leading(yard.env()), yard.working() as command:
        yard.wait_for("finished_jobs", ids)
        assert end(command) == 0
    assert query(yard.database_url, "SELECT DISTINCT attempts FROM finished_jobs") == [(2,)]
