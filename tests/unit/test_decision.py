"""What retries, dies, is deferred or interrupted: decided without a database."""

import logging
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from drain.jobs.options import JobOptions
from drain.tables import finishes, outcomes
from drain.tables.claims import Claim
from drain.workers.execution.death import Death
from drain.workers.execution.decision import Decision, decide, decide_unrun, retry_wait_seconds
from drain.workers.execution.outcome import (
    FINISHED,
    AlreadyFinished,
    Deferred,
    Failed,
    Finished,
    GaveUp,
    Interrupted,
    Lost,
    Outcome,
    Recorded,
    Slowed,
    Unreadable,
)

OPTIONS = JobOptions(retry_base_seconds=2, retry_cap_seconds=3600)
BOUNDS = {1: (1, 2), 2: (2, 4), 3: (4, 8), 10: (512, 1024), 12: (1800, 3600), 13: (1800, 3600)}
HUGE = [64, 65, 1_000, 1_100, 10**9, 10**18]
ERROR = {"type": "OSError", "message": "no disk\nat all", "traceback": "Traceback: OSError"}
CAUSE = OSError("no disk")


def claim(**given: Any) -> Claim:
    return Claim(
        id=7,
        job_name="tests.act",
        job_args="[]",
        job_kwargs="{}",
        queue="mail",
        tag="a tag",
        context=None,
        attempts=1,
        max_attempts=3,
        timeout_seconds=30,
        lease_seconds=30,
        fencing_token=11,
        lease_expires_at=datetime.now(UTC),
        expired=False,
        failed_before=False,
        salt=None,
        installation=UUID(int=0),
        worker="w",
    )._replace(**given)


LAST = claim(attempts=3)
UNLIMITED = claim(attempts=10**6, max_attempts=0)


def line_of(decision: Decision) -> str:
    assert decision.log is not None
    return decision.log.text % decision.log.arguments


def event_of(decision: Decision) -> object:
    assert decision.log is not None
    assert (decision.log.extra["job_id"], decision.log.extra["tag"]) == (7, "a tag")
    return decision.log.extra["event"]


@pytest.fixture
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "uniform", lambda _low, high: high)


def test_a_returned_job_is_finished_without_a_log_line() -> None:
    decision = decide(claim(), FINISHED)
    assert (decision.word, decision.statement, decision.values) == ("finished", finishes.finish, {})
    assert (decision.log, decision.death, decision.otherwise) == (None, None, None)
    assert decision.stale_outcome == "finished"


def test_a_job_whose_id_is_finished_already_is_buried_as_unreadable() -> None:
    forbidden = decide(claim(), FINISHED).if_forbidden
    assert forbidden is not None
    decision = decide(claim(), forbidden)
    assert (decision.word, decision.values["reason"]) == ("dead", "unreadable")
    assert decision.values["explanation"] == "it ran, but another job with its id has already finished"


@pytest.mark.usefixtures("no_jitter")
@pytest.mark.parametrize(
    ("claimed", "wait"),
    [(claim(), 2), (claim(attempts=2), 4), (UNLIMITED, 3600)],
    ids=["first", "second", "unlimited"],
)
def test_a_job_that_failed_waits_for_its_next_attempt(claimed: Claim, wait: float) -> None:
    decision = decide(claimed, Failed(ERROR, OPTIONS, CAUSE))
    assert (decision.word, decision.statement) == ("retrying", outcomes.retry_later)
    assert decision.values == {"wait_seconds": wait, "error": ERROR}
    assert decision.stale_outcome == "retrying"
    assert decision.death is None
    assert decision.log is not None
    assert decision.log.level == logging.WARNING
    assert event_of(decision) == "job_failed"
    assert line_of(decision).startswith(
        f"job 7 (tests.act) failed on attempt {claimed.attempts}; next one in "
    )
    assert line_of(decision).endswith(": OSError: no disk")


@pytest.mark.parametrize(("attempts", "wait"), [(1, 10), (2, 30), (3, 60), (4, 60), (10**9, 60)])
def test_listed_waits_are_exact_and_the_last_one_is_repeated(attempts: int, wait: float) -> None:
    options = JobOptions(retry_base_seconds=1, retry_cap_seconds=2, retry_delays=[10, 30, 60])
    decision = decide(claim(attempts=attempts, max_attempts=0), Failed(ERROR, options))
    assert decision.values["wait_seconds"] == wait
    assert decide(claim(), Failed(ERROR, options, after=5.0)).values["wait_seconds"] == 5.0


def test_a_job_waits_as_its_retry_asks_and_dies_after_its_last_attempt() -> None:
    failed = Failed(ERROR, OPTIONS, CAUSE, after=5.0)
    assert decide(claim(attempts=2), failed).values == {"wait_seconds": 5.0, "error": ERROR}
    assert decide(claim(), replace(failed, after=0.0)).values["wait_seconds"] == 0.0
    assert decide(LAST, failed) == decide(LAST, Failed(ERROR, OPTIONS, CAUSE))


@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO])
@pytest.mark.parametrize("claimed", [claim(), claim(max_attempts=1)], ids=["failed", "dead"])
def test_the_traceback_is_logged_only_at_debug_level(
    caplog: pytest.LogCaptureFixture, claimed: Claim, level: int
) -> None:
    with caplog.at_level(level, "drain.workers"):
        decision = decide(claimed, Failed(ERROR, OPTIONS, CAUSE))
    assert decision.log is not None
    shown = "Traceback: OSError" if level == logging.DEBUG else None
    assert decision.log.extra.get("traceback") == shown


@pytest.mark.parametrize(
    ("claimed", "times"),
    [(LAST, "3 times"), (claim(max_attempts=1), "1 time"), (claim(attempts=9), "9 times")],
)
def test_a_job_that_failed_for_the_last_time_is_dead(claimed: Claim, times: str) -> None:
    decision = decide(claimed, Failed(ERROR, OPTIONS, CAUSE))
    explanation = f"failed {times}; last: OSError: no disk"
    assert (decision.word, decision.statement) == ("dead", outcomes.bury_claimed)
    assert decision.values == {"reason": "failed", "explanation": explanation, "error": ERROR, "ran": True}
    assert decision.death == Death(7, "mail", explanation, "Traceback: OSError", CAUSE, "tests.act")
    assert decision.stale_outcome == "dead"
    assert decision.log is not None
    assert decision.log.level == logging.ERROR
    assert event_of(decision) == "job_dead"
    assert line_of(decision) == f"job 7 (tests.act) is dead: {explanation}"


@pytest.mark.parametrize("claimed", [claim(), LAST], ids=["first", "last"])
def test_a_lost_lease_with_a_stale_token_records_no_failure(
    claimed: Claim,
) -> None:
    lost, failed = decide(claimed, Lost(ERROR, OPTIONS)), decide(claimed, Failed(ERROR, OPTIONS))
    assert lost.stale_outcome == "nothing"
    # The database knows whether it is so: otherwise the attempt has failed as by any error.
    assert (lost.word, lost.statement) == (failed.word, failed.statement)


@pytest.mark.parametrize("when", [60.0, datetime(2030, 1, 1, tzinfo=UTC)], ids=str)
def test_a_job_may_defer_itself_on_any_attempt(when: float | datetime) -> None:
    decision = decide(LAST, Deferred(when))
    assert (decision.word, decision.statement, decision.values) == (
        "deferred",
        outcomes.defer,
        {"when": when},
    )
    assert (decision.log, decision.stale_outcome) == (None, "deferred")


@pytest.mark.parametrize("when", [60.0, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))], ids=str)
def test_a_job_that_is_rate_limited_is_deferred_and_slows_down_its_key(when: float | datetime) -> None:
    decision = decide(LAST, Slowed(when))
    assert (decision.word, decision.statement, decision.stale_outcome) == (
        "deferred",
        outcomes.slow_down,
        "deferred",
    )
    assert decision.values == {"when": when}
    assert decision.log is not None
    assert decision.log.extra["event"] == "rate_limited"


@pytest.mark.parametrize(
    ("message", "explanation"),
    [("no such order", "no such order"), ("", "the job gave up without a reason")],
)
def test_a_job_that_gives_up_is_dead_with_its_own_reason(message: str, explanation: str) -> None:
    error = {**ERROR, "message": message}
    decision = decide(claim(), GaveUp(error, CAUSE))
    assert decision.values == {"reason": "gave up", "explanation": explanation, "error": error, "ran": True}
    assert decision.death == Death(7, "mail", explanation, "Traceback: OSError", CAUSE, "tests.act")


def test_a_dead_job_names_the_rule_that_forbids_retrying() -> None:
    decision = decide(claim(), GaveUp(ERROR, CAUSE, "give_up_on"))
    assert decision.word == "dead"
    assert decision.values["reason"] == "gave up"
    assert decision.values["explanation"] == "OSError: no disk (not retried: give_up_on)"


def test_unreadable_arguments_kill_the_job_and_keep_the_previous_error() -> None:
    decision = decide(claim(), Unreadable("no JSON"))
    assert decision.values == {"reason": "unreadable", "explanation": "no JSON", "error": None, "ran": True}


def test_an_interrupted_attempt_never_counts_even_the_last_one() -> None:
    decision = decide(LAST, Interrupted(ERROR, OPTIONS))
    assert (decision.word, decision.statement) == ("interrupted", outcomes.interrupt)
    assert decision.values == {"wait_seconds": 1.0, "error": ERROR}
    assert event_of(decision) == "job_interrupted"
    assert decision.log is not None
    assert decision.log.answer == "interruptions"
    assert line_of(decision).endswith("which does not count, and will run again: OSError: no disk")


@pytest.mark.parametrize(("claimed", "word"), [(claim(), "retrying"), (LAST, "dead")], ids=["first", "last"])
def test_an_attempt_interrupted_too_often_fails(claimed: Claim, word: str) -> None:
    failed = decide(claimed, Interrupted(ERROR, OPTIONS)).otherwise
    assert failed is not None
    decision = decide(claimed, failed)
    assert (decision.word, decision.stale_outcome) == (word, word)
    assert decision.values["error"]["message"].startswith("its worker stopped more than the 20 times")
    assert decision.values["error"]["message"].endswith("(is the grace period too short?): no disk\nat all")
    assert decision.values["error"]["type"] == "OSError"


def test_a_job_that_its_own_process_has_recorded_is_not_written_again() -> None:
    assert decide(claim(), Recorded()) == Decision("recorded")
    assert decide(claim(), Recorded("enough")) == Decision(
        "dead", death=Death(7, "mail", "enough", job_name="tests.act")
    )


@pytest.mark.parametrize(
    ("rest", "shown"),
    [
        (Failed(ERROR, OPTIONS), "Traceback: OSError"),
        (GaveUp(ERROR), "Traceback: OSError"),
        (Deferred(60.0), "it asked to be run later"),
    ],
)
def test_a_failure_after_the_jobs_own_finish_is_only_logged(rest: Outcome, shown: str) -> None:
    decision = decide(claim(), AlreadyFinished(rest))
    assert replace(decision, log=None) == Decision("finished")
    assert event_of(decision) == "failed_after_finish"
    assert (
        line_of(decision)
        == f"job 7 (tests.act) is finished, but its code after the transaction failed: {shown}"
    )


def test_a_job_that_finished_itself_is_recorded_without_a_log_line() -> None:
    assert decide(claim(), AlreadyFinished(FINISHED)) == Decision("finished")


def test_a_result_that_comes_after_the_finish_is_added() -> None:
    decision = decide(claim(), AlreadyFinished(Finished("42")))
    assert decision == Decision("finished", finishes.add_result, {"result": "42"}, stale_outcome="finished")


@pytest.mark.parametrize(
    ("claimed", "reason", "explanation"),
    [
        (claim(expired=True), "expired", "its expires_at had passed before a worker could start it"),
        (claim(), "lease", "its worker died or stalled on the last attempt, and the lease ran out"),
    ],
)
def test_a_claim_that_must_not_run_does_not_count_as_an_attempt(
    claimed: Claim, reason: str, explanation: str
) -> None:
    decision = decide_unrun(claimed)
    assert decision.values == {"reason": reason, "explanation": explanation, "error": None, "ran": False}
    assert decision.death == Death(7, "mail", explanation, job_name="tests.act")


def test_a_log_line_shows_no_control_characters_from_names() -> None:
    decision = decide(claim(job_name="tests\x1b[31m.act"), Unreadable("no\x00JSON"))
    assert "\x1b" not in line_of(decision)
    assert "\x00" not in line_of(decision)


@pytest.mark.parametrize(("attempts", "bounds"), BOUNDS.items())
def test_the_wait_lies_between_half_of_the_step_and_all_of_it(attempts: int, bounds: tuple[int, int]) -> None:
    waits = [retry_wait_seconds(attempts, OPTIONS) for _ in range(500)]
    lowest, highest = bounds
    assert lowest <= min(waits) <= max(waits) <= highest


def test_jobs_that_failed_together_do_not_come_back_together() -> None:
    waits = {retry_wait_seconds(5, OPTIONS) for _ in range(100)}
    assert len(waits) > 90
    assert max(waits) - min(waits) > 0.25 * 32


@pytest.mark.usefixtures("no_jitter")
def test_the_wait_doubles_with_each_failure_until_it_reaches_the_cap() -> None:
    waits = [retry_wait_seconds(attempts, JobOptions(retry_cap_seconds=30)) for attempts in range(1, 8)]
    assert waits == [2, 4, 8, 16, 30, 30, 30]


@pytest.mark.usefixtures("no_jitter")
@pytest.mark.parametrize("attempts", HUGE)
def test_the_wait_is_the_cap_however_often_the_job_failed(attempts: int) -> None:
    assert retry_wait_seconds(attempts, OPTIONS) == 3600


@pytest.mark.usefixtures("no_jitter")
def test_an_unregistered_job_waits_by_the_default_policy() -> None:
    assert [retry_wait_seconds(attempts, None) for attempts in (1, 2, 100)] == [2, 4, 3600]


@pytest.mark.parametrize("attempts", [*HUGE, 0])
def test_the_longest_accepted_retry_policy_does_not_overflow(attempts: int) -> None:
    year = 365 * 24 * 3600
    for base in (year, 1e-300):
        options = JobOptions(retry_base_seconds=base, retry_cap_seconds=year)
        assert 0 <= retry_wait_seconds(attempts, options) <= year
