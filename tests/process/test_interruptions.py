"""An attempt that ends because its worker stops does not count, up to a bound."""

import mmap
import signal
from functools import partial
from typing import Any

import psycopg
import pytest

from drain.jobs.options import JobOptions
from drain.tables import outcomes
from drain.tables.outcomes import MOST_INTERRUPTIONS
from drain.workers import Dead
from drain.workers.errors import JobTimeoutError, WorkerStoppedError
from drain.workers.execution import isolation
from drain.workers.execution.outcome import Interrupted, describe
from tests import jobs_in_batches as jobs
from tests.helpers import PATIENCE_SECONDS, impatient, leading, query, wait_until
from tests.inprocess_worker import Workshop
from tests.worker_processes import Yard

STOPPED = {"type": "WorkerStoppedError", "message": "told to stop", "traceback": ""}


def stop(yard: Yard, *words: str, **more: str) -> None:
    """Let a worker begin with what is pushed, and stop it in the middle."""
    with yard.working("--grace-seconds", "0.1", *words, **more) as command:
        wait_until(yard.effects, PATIENCE_SECONDS)
        command.send_signal(signal.SIGTERM)
        assert command.wait(PATIENCE_SECONDS) == 0


def counted(yard: Yard, job_id: int) -> tuple[str, int, int, int]:
    row = yard.row(job_id)
    return row["place"], row["attempts"], row["interruptions"], row["fencing_token"]


@pytest.mark.parametrize("job", [jobs.only_once, jobs.isolated_only_once])
def test_a_job_with_a_single_attempt_runs_again_after_a_deploy(yard: Yard, job: Any) -> None:
    (job_id,) = yard.pushed(job, "first")
    stop(yard)
    assert counted(yard, job_id) == ("inflight_jobs", 0, 1, 1)
    yard.say("go")
    with leading(yard.env()), yard.working():
        yard.wait_for("finished_jobs", [job_id])
    assert (yard.row(job_id)["attempts"], yard.row(job_id)["fencing_token"]) == (1, 2)


def test_an_interrupted_job_of_a_batch_loses_no_attempt(yard: Yard) -> None:
    (job_id, *_) = yard.pushed(jobs.only_once, "first", "second")
    stop(yard, "--prefetch", "2")
    assert counted(yard, job_id) == ("inflight_jobs", 0, 1, 1)
    assert not yard.row(job_id)["batched"]


@pytest.mark.parametrize(
    ("job", "seconds"),
    [
        (jobs.never_yield, {"drain.workers.supervisor.supervisor._KILL_SECONDS": 0.5}),
        (jobs.isolated_never_yield, {"drain.workers.execution.isolation._STOP_SECONDS": 0.5}),
    ],
)
def test_being_killed_for_not_yielding_to_a_stop_does_not_count(
    yard: Yard, job: Any, seconds: dict[str, float]
) -> None:
    (job_id,) = yard.pushed(job, "stubborn")
    stop(yard, **impatient(seconds))
    assert counted(yard, job_id) == ("inflight_jobs", 0, 1, 1)
    assert yard.row(job_id)["last_error"]["type"] == "drain.workers.errors.WorkerStoppedError"


def test_interruptions_beyond_the_limit_count_and_the_job_dies_with_the_reason(yard: Yard) -> None:
    (job_id,) = yard.pushed(jobs.only_once, "never fits")
    query(yard.database_url, "UPDATE inflight_jobs SET interruptions = %s", MOST_INTERRUPTIONS)
    stop(yard)
    row = yard.row(job_id)
    assert (row["place"], row["attempts"], row["reason"]) == ("dead_jobs", 1, "failed")
    assert f"stopped more than the {MOST_INTERRUPTIONS} times that do not count" in row["explanation"]


def test_an_interruption_whose_answer_was_lost_is_counted_once(shop: Workshop) -> None:
    job_id = shop.delivered(lambda: None)
    shop.set(job_id, f"interruptions = {MOST_INTERRUPTIONS - 1} WHERE")
    claim = shop.claim(job_id)
    assert claim is not None
    with psycopg.connect(shop.database_url, autocommit=True) as connection:
        interrupt = partial(outcomes.interrupt, connection, claim, 1.0, STOPPED)
        assert [interrupt(), interrupt()] == [MOST_INTERRUPTIONS] * 2
    assert (shop.row(job_id)["attempts"], shop.row(job_id)["failed_at"]) == (0, None)
    shop.redeliver(job_id)
    again = shop.claim(job_id)
    assert again is not None
    with psycopg.connect(shop.database_url, autocommit=True) as connection:
        assert outcomes.interrupt(connection, claim, 1.0, STOPPED) is None
        assert outcomes.interrupt(connection, again, 1.0, STOPPED) is None
    assert shop.row(job_id)["attempts"] == 1


def test_a_late_interruption_of_a_reclaimed_job_changes_nothing(shop: Workshop) -> None:
    job_id = shop.delivered(lambda: None)
    claim = shop.claim(job_id)
    assert claim is not None
    taken_over = shop.take_over(job_id)
    late = Interrupted(describe(WorkerStoppedError()), JobOptions())
    assert shop.worker.recorder.record(claim, late) == "stale"
    assert shop.row(job_id)["fencing_token"] == taken_over.fencing_token
    assert shop.row(job_id)["interruptions"] == 0


def test_an_interruption_after_redelivery_does_not_count(
    shop: Workshop,
) -> None:
    job_id = shop.delivered(lambda: None)
    shop.set(job_id, "max_attempts = 1 WHERE")
    claim = shop.claim(job_id)
    assert claim is not None
    # As the leader does it: the claim's token stays the current one until the next claim.
    shop.set(job_id, "lease_expires_at = NULL WHERE")
    stopped = Interrupted(describe(WorkerStoppedError()), JobOptions())
    assert shop.worker.recorder.record(claim, stopped) == "interrupted"
    assert shop.whereabouts(job_id) == "inflight_jobs"
    assert (shop.row(job_id)["interruptions"], shop.row(job_id)["failed_at"]) == (0, None)


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (ValueError("anything that the job makes of it"), "interrupted"),
        (SystemExit(3), "interrupted"),
        (JobTimeoutError("its time was over"), "retrying"),
        (Dead("no use"), "dead"),
    ],
)
def test_an_interrupted_jobs_exception_counts_only_if_it_is_a_decision(
    shop: Workshop, error: BaseException, word: str
) -> None:
    def act() -> None:
        from drain.workers.context.current import current_attempt

        current_attempt().interruption.stopped = True
        raise error

    assert shop.worker.execute(shop.delivered(act)) == word


def test_a_worker_stopped_error_raised_by_the_job_itself_counts(shop: Workshop) -> None:
    def act() -> None:
        raise WorkerStoppedError("says the job")

    assert shop.worker.execute(shop.delivered(act)) == "retrying"


@pytest.mark.parametrize(
    ("error", "stopped", "word"),
    [
        (WorkerStoppedError("told to stop"), True, "interrupted"),
        (WorkerStoppedError("ended by RQ's kill-horse command"), False, "retrying"),
        (Dead("stopped by RQ's stop-job command"), False, "dead"),
    ],
)
def test_an_isolated_jobs_child_receives_the_reason_for_its_interruption(
    shop: Workshop, error: Exception, stopped: bool, word: str
) -> None:
    def act() -> None:
        from drain.workers.context.current import current_attempt

        interruption = current_attempt().interruption
        with mmap.mmap(-1, isolation._ORDER_BYTES) as order:
            interruption.ordered, interruption.stopped = error, stopped
            isolation._give(order, interruption)
            interruption.ordered, interruption.stopped = None, False
            isolation._obey(order, interruption)
        assert str(interruption.ordered) == str(error)
        assert interruption.ordered is not None
        raise interruption.ordered

    assert shop.worker.execute(shop.delivered(act)) == word
