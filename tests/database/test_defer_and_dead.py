"""What a job says is to become of it: run later, or never again."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import psycopg
import pytest

from drain.enqueuer.redelivery import Redelivery
from drain.read import queries
from drain.tables import dead, outcomes, staged
from drain.tables.dead import Selection
from drain.workers import Dead, Defer, current_job
from tests.helpers import new_enqueuer, pushed_jobs, query, wait_until
from tests.inprocess_worker import Workshop

DAY = timedelta(days=1)


def seconds_to_go(shop: Workshop, job_id: int) -> float:
    """For how long the job still waits, by the database's clock."""
    wait = (
        "SELECT extract(epoch FROM next_run_at - clock_timestamp())::float8 FROM inflight_jobs WHERE id = %s"
    )
    ((seconds,),) = query(shop.database_url, wait, job_id)
    return float(seconds)


def deferring(make: Callable[[], Any]) -> Callable[[], None]:
    def act() -> None:
        raise Defer(make())

    return act


# --- later


@pytest.mark.parametrize(
    "when",
    [
        lambda: 86400,
        lambda: 86400.0,
        lambda: DAY,
        lambda: datetime.now(UTC) + DAY,
        lambda: datetime.now(timezone(timedelta(hours=-7))) + DAY,
    ],
    ids=["int", "float", "timedelta", "time", "time in another zone"],
)
def test_a_deferred_job_waits_until_the_given_time(shop: Workshop, when: Callable[[], Any]) -> None:
    job_id = shop.delivered(deferring(when))
    assert shop.worker.execute(job_id) == "deferred"
    assert 86000 < seconds_to_go(shop, job_id) <= 86400
    assert shop.worker.execute(job_id) == "refused"
    assert shop.row(job_id)["lease_expires_at"] is None


def test_a_deferral_raises_the_token_but_is_not_a_failed_attempt(shop: Workshop) -> None:
    seen: list[tuple[int, int]] = []

    def act() -> None:
        seen.append((current_job().attempt, current_job().fencing_token))
        if len(seen) < 5:
            raise Defer(60)

    job_id = shop.delivered(act, max_attempts=1)
    assert shop.work_to_the_end(job_id) == ["deferred"] * 4 + ["finished"]
    assert seen == [(1, token) for token in range(1, 6)]
    finished = shop.row(job_id)
    assert (finished["attempts"], finished["fencing_token"], finished["last_error"]) == (1, 5, None)


def test_failures_are_counted_across_deferrals(shop: Workshop) -> None:
    def act() -> None:
        if current_job().fencing_token % 2:
            raise Defer(60)
        raise ValueError("no")

    job_id = shop.delivered(act, max_attempts=2)
    assert shop.work_to_the_end(job_id) == ["deferred", "retrying", "deferred", "dead"]
    assert shop.row(job_id)["attempts"] == 2


@pytest.mark.parametrize(
    "when",
    [
        lambda: 0,
        lambda: timedelta(0),
        lambda: datetime.now(UTC) - DAY,
        lambda: datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
    ],
    ids=["0", "timedelta 0", "yesterday", "before the year 1"],
)
def test_a_time_in_the_past_means_now(shop: Workshop, when: Callable[[], Any]) -> None:
    job_id = shop.delivered(deferring(when))
    assert shop.worker.execute(job_id) == "deferred"
    assert -60 < seconds_to_go(shop, job_id) <= 0
    assert shop.worker.execute(job_id) == "refused"
    assert shop.work(job_id) == "deferred"
    with psycopg.connect(shop.database_url) as connection:
        assert queries.job(connection, job_id)["next_run_at"] is not None


class NoZone(tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, dt: datetime | None) -> None:
        return None

    dst = tzname = utcoffset


@pytest.mark.parametrize(
    ("when", "complaint"),
    [
        (datetime.now, "no time zone"),
        (lambda: datetime.now(UTC).replace(tzinfo=NoZone()), "no time zone"),
        (lambda: -1, "-1 is not between 0 seconds and a year"),
        (lambda: timedelta(seconds=-1), "between 0 seconds and a year"),
        (lambda: timedelta.max, "between 0 seconds and a year"),
        (lambda: float("nan"), "nan is not between"),
        (lambda: float("inf"), "inf is not between"),
        (lambda: 10**400, "between 0 seconds and a year"),
        (lambda: 366 * 86400, "between 0 seconds and a year"),
        (lambda: datetime.now(UTC) + 366 * DAY, "more than a year ahead"),
        (lambda: datetime.max.replace(tzinfo=timezone(timedelta(hours=-14))), "more than a year ahead"),
        (lambda: "60", "'60' is not between"),
        (lambda: None, "None is not between"),
        (lambda: True, "True is not between"),
    ],
)
def test_an_invalid_deferral_is_a_failed_attempt_with_a_reason(
    shop: Workshop, when: Callable[[], Any], complaint: str
) -> None:
    job_id = shop.delivered(deferring(when), max_attempts=1)
    assert shop.work(job_id) == "dead"
    error = shop.row(job_id)["last_error"]
    assert error["type"] == "ValueError"
    assert error["message"].startswith("Defer: ")
    assert complaint in error["message"]


def test_a_deferral_whose_answer_was_lost_counts_once(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    defer = outcomes.defer
    answers: list[bool] = []

    def lose_the_first_answer(*given: Any, **more: Any) -> bool:
        answers.append(defer(*given, **more))
        if len(answers) == 1:
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return answers[-1]

    monkeypatch.setattr(outcomes, "defer", lose_the_first_answer)
    job_id = shop.delivered(deferring(lambda: 60))
    assert shop.work(job_id) == "deferred"
    assert answers == [True, True]
    assert shop.row(job_id)["attempts"] == 0
    assert shop.stale_finishes() == []


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_deferred_job_that_expires_has_been_started_in_time(shop: Workshop, max_attempts: int) -> None:
    def act() -> None:
        if current_job().fencing_token < 3:
            raise Defer(0)

    job_id = shop.delivered(act, max_attempts=max_attempts, row={"expires_at": datetime.now(UTC) + DAY})
    assert shop.work(job_id) == "deferred"
    shop.set(job_id, "expires_at = clock_timestamp() - interval '1 ms' WHERE")
    assert shop.work_to_the_end(job_id) == ["deferred", "finished"]


def test_a_revived_job_that_expires_before_a_worker_starts_it_is_dead(shop: Workshop) -> None:
    def act() -> None:
        raise Dead("enough")

    job_id = shop.delivered(act, row={"expires_at": datetime.now(UTC) + DAY})
    assert shop.work(job_id) == "dead"
    with psycopg.connect(shop.database_url, autocommit=True) as connection:
        assert dead.revive(connection, Selection((job_id,))) == 1
        staged.move(connection, [job_id], last_delivery=job_id)
    shop.set(job_id, "expires_at = clock_timestamp() - interval '1 ms' WHERE")
    assert shop.work(job_id) == "dead"
    row = shop.row(job_id)
    assert (row["reason"], row["attempts"], row["fencing_token"]) == ("expired", 0, 2)


def test_a_deferral_with_a_stale_token_is_recorded_but_changes_nothing(shop: Workshop) -> None:
    def act() -> None:
        shop.take_over(job_id)
        raise Defer(60)

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "stale"
    assert shop.stale_finishes() == [(job_id, 1, "deferred")]
    assert (shop.row(job_id)["attempts"], shop.row(job_id)["next_run_at"]) == (2, None)


# --- never


def test_a_job_that_gives_up_dies_at_once_with_reason_and_traceback(shop: Workshop) -> None:
    def act() -> None:
        raise Dead("customer 42 has been deleted")

    job_id = shop.delivered(act, max_attempts=5)
    assert shop.work(job_id) == "dead"
    dead = shop.row(job_id)
    assert (dead["reason"], dead["explanation"]) == ("gave up", "customer 42 has been deleted")
    assert dead["attempts"] == 1
    assert dead["last_error"]["type"] == "drain.workers.errors.Dead"
    assert 'in act\n    raise Dead("customer 42 has been deleted")' in dead["last_error"]["traceback"]


def test_the_cause_of_giving_up_is_in_the_traceback(shop: Workshop) -> None:
    def act() -> None:
        try:
            json.loads("{")
        except ValueError as error:
            raise Dead("no such order") from error

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "dead"
    assert "JSONDecodeError" in shop.row(job_id)["last_error"]["traceback"]


@pytest.mark.parametrize(
    ("reason", "explanation"),
    [
        ("a\x00b", "a\ufffdb"),
        ("alone: \ud800", "alone: ?"),
        ("", "the job gave up without a reason"),
        ("größe 🐢\nand a second line", "größe 🐢\nand a second line"),
    ],
    ids=ascii,
)
def test_any_reason_can_be_stored(shop: Workshop, reason: str, explanation: str) -> None:
    def act() -> None:
        raise Dead(reason)

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "dead"
    assert shop.row(job_id)["explanation"] == explanation


def test_a_very_long_reason_keeps_its_beginning_and_end(shop: Workshop) -> None:
    def act() -> None:
        raise Dead("begin" + "x" * 1_000_000 + "end")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "dead"
    row = shop.row(job_id)
    assert row["explanation"].startswith("begin")
    assert row["explanation"].endswith("end")
    assert len(json.dumps(row, default=str)) < 100_000


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("客户不存在", r"\u5ba2\u6237\u4e0d\u5b58\u5728"),
        ("größe", "größe"),
        ("nul\x00", r"nul\ufffd"),
        ("x" * 5000 + "客", None),
    ],
    ids=ascii,
)
@pytest.mark.parametrize(
    ("error", "words"), [(ValueError, ["retrying", "dead"]), (Dead, ["dead"])], ids=["failed", "gave up"]
)
def test_characters_missing_from_the_database_encoding_are_escaped(
    latin1: Workshop, error: type[Exception], words: list[str], text: str, told: str | None
) -> None:
    def act() -> None:
        raise error(text)

    job_id = latin1.delivered(act, max_attempts=2)
    assert latin1.work_to_the_end(job_id) == words
    row = latin1.row(job_id)
    assert row["attempts"] == len(words)
    if told:
        assert row["last_error"]["message"] == told
        assert row["explanation"].endswith(told)
    else:
        assert row["last_error"]["message"].endswith(r"x\u5ba2")


def test_raising_the_bare_class_also_gives_up(shop: Workshop) -> None:
    def act() -> None:
        raise Dead

    assert shop.work(shop.delivered(act)) == "dead"


def test_a_burial_with_a_lost_answer_is_not_stale(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bury = outcomes.bury_claimed
    answers: list[bool] = []

    def lose_the_first_answer(*given: Any, **more: Any) -> bool:
        answers.append(bury(*given, **more))
        if len(answers) == 1:
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return answers[-1]

    def act() -> None:
        raise Dead("enough")

    monkeypatch.setattr(outcomes, "bury_claimed", lose_the_first_answer)
    job_id = shop.delivered(act)
    assert shop.work(job_id) == "dead"
    assert answers == [True, True]
    assert shop.stale_finishes() == []
    assert [getattr(record, "event", None) for record in caplog.records].count("job_dead") == 1


def test_a_job_dies_when_its_lease_expires_on_every_attempt(shop: Workshop) -> None:
    runs: list[int] = []
    job_id = shop.delivered(lambda: runs.append(1), max_attempts=3)
    for attempt in range(1, 4):
        claim = shop.claim(job_id) if attempt == 1 else shop.take_over(job_id)
        assert claim is not None
        # Nobody tells the other worker of the limit that is registered here.
        assert claim.attempts == attempt
    shop.end_lease(job_id)
    assert shop.work(job_id) == "dead"
    dead = shop.row(job_id)
    assert (dead["reason"], dead["attempts"], runs) == ("lease", 3, [])


def test_a_deferred_job_is_pushed_again_when_its_time_has_come(shop: Workshop, redis_url: str) -> None:
    first = shop.delivered(deferring(lambda: 0), name="tests.now")
    second = shop.delivered(deferring(lambda: 3600), name="tests.later")
    for job_id in (first, second):
        assert shop.worker.execute(job_id) == "deferred"
    with new_enqueuer(shop.database_url, redis_url) as enqueuer:
        redelivery = Redelivery(enqueuer)
        redelivery.recover()
        wait_until(redelivery.run_once)
    assert pushed_jobs(redis_url) == [first]
