"""A job that raises Retry: the attempt counts, and the next one starts when the job says."""

import json

import pytest

from drain import cancel
from drain.workers import Retry, current_job
from tests.helpers import connected, query
from tests.inprocess_worker import Workshop

EXPLANATION = "failed 2 times; last: OSError: payment 7: the bank is down"


def seconds_between(shop: Workshop, job_id: int) -> float:
    """How long after its failure the job runs again: two readings of the clock in one statement."""
    wait = "SELECT extract(epoch FROM next_run_at - failed_at)::float8 FROM inflight_jobs WHERE id = %s"
    ((seconds,),) = query(shop.database_url, wait, job_id)
    return float(seconds)


def fail() -> None:
    try:
        raise OSError("the bank is down")
    except OSError as error:
        raise Retry(after=5, reason="payment 7") from error


async def fail_in_loop() -> None:
    fail()


@pytest.mark.parametrize("function", [fail, fail_in_loop])
def test_retries_count_as_attempts_and_end_in_death_with_their_cause(
    shop: Workshop, function: object
) -> None:
    # The registration's own wait would be an hour.
    job_id = shop.delivered(function, max_attempts=2, retry_base_seconds=3600)  # type: ignore[arg-type]
    assert shop.work(job_id) == "retrying"
    row = shop.row(job_id)
    assert (row["attempts"], row["last_error"]["type"]) == (1, "OSError")
    assert seconds_between(shop, job_id) == pytest.approx(5, abs=1)
    assert shop.work(job_id) == "dead"
    row = shop.row(job_id)
    assert (row["reason"], row["attempts"], row["explanation"]) == ("failed", 2, EXPLANATION)


def test_the_limit_of_the_staged_row_holds_for_retries_too(shop: Workshop) -> None:
    job_id = shop.delivered(fail, max_attempts=5, row={"max_attempts": 3})
    assert shop.work_to_the_end(job_id) == ["retrying", "retrying", "dead"]


def test_a_retry_without_a_wait_uses_the_usual_backoff(shop: Workshop) -> None:
    def act() -> None:
        raise Retry(reason="once more")

    job_id = shop.delivered(act, retry_base_seconds=100)
    assert shop.work(job_id) == "retrying"
    assert 50 <= seconds_between(shop, job_id) <= 100
    assert shop.row(job_id)["last_error"]["message"] == "once more"


def test_an_unencodable_reason_is_escaped_and_the_wait_is_kept(latin1: Workshop) -> None:
    def act() -> None:
        raise Retry(after=5, reason="客户")

    job_id = latin1.delivered(act)
    assert latin1.work(job_id) == "retrying"
    assert latin1.row(job_id)["last_error"]["message"] == json.dumps("客户").strip('"')
    assert seconds_between(latin1, job_id) == pytest.approx(5, abs=1)


def test_a_retry_under_a_stale_token_changes_nothing(shop: Workshop) -> None:
    def act() -> None:
        shop.take_over(job_id)
        raise Retry(after=60)

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "stale"
    assert shop.stale_finishes() == [(job_id, 1, "retrying")]
    assert (shop.row(job_id)["attempts"], shop.row(job_id)["next_run_at"]) == (2, None)


def test_listed_waits_separate_the_attempts(shop: Workshop) -> None:
    def act() -> None:
        raise OSError

    job_id = shop.delivered(act, max_attempts=4, retry_delays=[10, 30])
    for seconds in (10, 30, 30):
        assert shop.work(job_id) == "retrying"
        assert seconds_between(shop, job_id) == pytest.approx(seconds, abs=1)
    assert shop.work(job_id) == "dead"


def test_an_error_that_is_not_retried_kills_the_job_at_its_first_attempt(shop: Workshop) -> None:
    def act() -> None:
        raise [ConnectionError, FileNotFoundError][current_job().attempt - 1]("no")

    job_id = shop.delivered(act, retry_on=(OSError,), give_up_on=(FileNotFoundError,))
    assert [shop.work(job_id), shop.work(job_id)] == ["retrying", "dead"]
    row = shop.row(job_id)
    assert (row["reason"], row["attempts"]) == ("gave up", 2)
    assert row["explanation"] == "FileNotFoundError: no (not retried: give_up_on)"
    assert row["last_error"]["type"] == "FileNotFoundError"


def test_a_cancelled_job_whose_error_is_not_retried_stays_cancelled(shop: Workshop) -> None:
    def act() -> None:
        cancel(connected(shop.database_url), job_id)
        raise ValueError("no")

    job_id = shop.delivered(act, retry_on=(OSError,))
    assert shop.work(job_id) == "cancelled"
    assert shop.row(job_id)["reason"] == "cancelled"


def test_a_job_that_retries_until_it_succeeds_is_finished(shop: Workshop) -> None:
    def act() -> None:
        if current_job().attempt < 3:
            raise Retry(after=0)

    job_id = shop.delivered(act, max_attempts=3)
    assert shop.work_to_the_end(job_id) == ["retrying", "retrying", "finished"]
    assert shop.row(job_id)["attempts"] == 3
