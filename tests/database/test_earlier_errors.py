"""The errors of a job's latest ten failed attempts: which are kept, how much of each, and how they are shown."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from click.testing import CliRunner

from drain.__main__ import main
from drain.contrib.events.command import event_line
from drain.contrib.events.follower import JobFollower
from drain.database import postgres
from drain.read import queries
from drain.read.explain.timeline import hops_of
from drain.tables import dead, finishes, outcomes
from drain.tables.claims import Claim
from drain.tables.failures import EARLIER, MESSAGE, TRACEBACK, TYPE, earlier_errors
from drain.workers.execution.outcome import describe
from tests.helpers import connected, query
from tests.inprocess_worker import Workshop
from tests.sound_pages import assert_sound
from tests.web_pages import Visitor, visitor

STOPPED = {"type": "drain.workers.errors.WorkerStoppedError", "message": "deploy", "traceback": ""}
# Stated in docs/reference/schema.md.
MOST_CHARACTERS = 80_000


def error(number: int) -> dict[str, str]:
    return {"type": "shop.NoAnswer", "message": f"failure {number}", "traceback": f"Traceback: {number}"}


def claimed(shop: Workshop, job_id: int) -> Claim:
    shop.redeliver(job_id)
    claim = shop.claim(job_id)
    assert claim is not None
    return claim


def fail(shop: Workshop, job_id: int, failure: dict[str, str]) -> Claim:
    claim = claimed(shop, job_id)
    assert outcomes.retry_later(connected(shop.database_url), claim, 0, failure)
    return claim


def interrupt(shop: Workshop, claim: Claim) -> None:
    assert outcomes.interrupt(connected(shop.database_url), claim, 0, STOPPED)


def bury(shop: Workshop, claim: Claim, failure: dict[str, str] | None) -> None:
    assert outcomes.bury_claimed(
        connected(shop.database_url), claim, reason="failed", explanation="it failed", error=failure
    )


def messages(kept: Any) -> list[str]:
    """Messages, newest first, of the newest error and those before it."""
    return [each["message"] for each in (kept, *kept.get("earlier", []))]


@pytest.fixture
def job_id(shop: Workshop) -> int:
    return shop.delivered(lambda: None)


def test_ten_errors_of_twelve_are_kept_newest_first_and_the_first_one(shop: Workshop, job_id: int) -> None:
    for number in range(1, 13):
        fail(shop, job_id, error(number))
    kept = shop.row(job_id)["last_error"]
    assert messages(kept) == [f"failure {number}" for number in range(12, 2, -1)]
    assert [each["attempt"] for each in (kept, *kept["earlier"])] == list(range(12, 2, -1))
    assert (kept["first"]["message"], kept["first"]["attempt"]) == ("failure 1", 1)
    newest = kept["earlier"][0]
    assert sorted(newest) == ["at", "attempt", "claimed_at", "message", "traceback", "type", "worker"]
    assert newest["worker"] == "the other"
    assert newest["claimed_at"] < newest["at"] < kept["claimed_at"] < kept["at"]
    assert [each["attempt"] for each in earlier_errors(kept)] == [*range(11, 2, -1), 1]


def test_an_earlier_error_keeps_the_start_of_its_message_and_the_end_of_its_traceback(
    shop: Workshop, job_id: int
) -> None:
    long = {"type": "T" * 999, "message": "a" * MESSAGE + "b", "traceback": "c" + "d" * TRACEBACK}
    fail(shop, job_id, long)
    assert {name: shop.row(job_id)["last_error"][name] for name in long} == long
    fail(shop, job_id, error(2))
    (earlier,) = shop.row(job_id)["last_error"]["earlier"]
    assert (earlier["type"], earlier["message"]) == ("T" * TYPE, "a" * MESSAGE)
    assert earlier["traceback"] == "d" * TRACEBACK


def test_ten_large_errors_stay_below_the_stated_bound(shop: Workshop, job_id: int) -> None:
    # As large as workers let them be.
    large = describe(type("T" * 99_999, (Exception,), {})("m" * 99_999))
    large["traceback"] = "t" * 32_000
    sizes = []
    for _ in range(EARLIER + 3):
        fail(shop, job_id, large)
        sizes.append(len(json.dumps(shop.row(job_id)["last_error"])))
    # Attempt numbers and fractions of seconds vary in length.
    assert abs(sizes[-1] - sizes[EARLIER + 1]) < 100
    assert MOST_CHARACTERS / 2 < sizes[0] < max(sizes) < MOST_CHARACTERS


def test_the_error_after_an_interruption_takes_its_place(shop: Workshop, job_id: int) -> None:
    fail(shop, job_id, error(1))
    for _ in range(2):
        interrupt(shop, claimed(shop, job_id))
        kept = shop.row(job_id)["last_error"]
        assert (messages(kept), kept["attempt"]) == (["deploy", "failure 1"], None)
    fail(shop, job_id, error(2))
    kept = shop.row(job_id)["last_error"]
    assert (messages(kept), kept["attempt"]) == (["failure 2", "failure 1"], 2)


@pytest.mark.parametrize("is_batched", [False, True])
def test_a_failure_or_interruption_whose_answer_was_lost_is_kept_once(
    shop: Workshop, job_id: int, *, is_batched: bool
) -> None:
    fail(shop, job_id, error(1))
    claim = claimed(shop, job_id)
    if is_batched:
        shop.set(job_id, "batched = true, attempts = attempts - 1 WHERE")
    interrupt(shop, claim)
    interrupt(shop, claim)
    assert messages(shop.row(job_id)["last_error"]) == ["deploy", "failure 1"]
    claim = fail(shop, job_id, error(2))
    assert outcomes.retry_later(connected(shop.database_url), claim, 0, error(2))
    assert messages(shop.row(job_id)["last_error"]) == ["failure 2", "failure 1"]


def test_an_error_of_an_older_version_becomes_an_earlier_one(shop: Workshop, job_id: int) -> None:
    old = json.dumps({**error(1), "at": "2026-01-01T00:00:00+00:00", "first": {**error(0), "at": "x"}})
    shop.set(job_id, f"last_error = '{old}' WHERE")
    fail(shop, job_id, error(2))
    kept = shop.row(job_id)["last_error"]
    assert (messages(kept), kept["first"]["message"]) == (["failure 2", "failure 1"], "failure 0")
    assert [each.get("attempt") for each in earlier_errors(kept)] == [None, 1]


def test_a_job_that_never_failed_has_no_errors(shop: Workshop, job_id: int) -> None:
    assert finishes.finish(connected(shop.database_url), claimed(shop, job_id))
    assert shop.row(job_id)["last_error"] is None
    assert earlier_errors(None) == []


def test_a_finished_job_keeps_its_errors(shop: Workshop, job_id: int) -> None:
    fail(shop, job_id, error(1))
    fail(shop, job_id, error(2))
    assert finishes.finish(connected(shop.database_url), claimed(shop, job_id))
    assert shop.whereabouts(job_id) == "finished_jobs"
    assert messages(shop.row(job_id)["last_error"]) == ["failure 2", "failure 1"]


@pytest.mark.parametrize("last", [None, error(3)])
def test_a_dead_job_keeps_its_errors_and_its_history_only_the_last_and_first(
    shop: Workshop, job_id: int, last: dict[str, str] | None
) -> None:
    fail(shop, job_id, error(1))
    fail(shop, job_id, error(2))
    bury(shop, claimed(shop, job_id), last)
    kept = shop.row(job_id)["last_error"]
    assert messages(kept) == [*(["failure 3"] if last else []), "failure 2", "failure 1"]
    dead.revive(connected(shop.database_url), dead.Selection((job_id,)))
    (life,) = shop.row(job_id)["history"]
    assert life["last_error"] == {name: value for name, value in kept.items() if name != "earlier"}


def test_a_dead_job_with_another_error_than_an_object_is_retried(shop: Workshop, job_id: int) -> None:
    bury(shop, claimed(shop, job_id), error(1))
    query(shop.database_url, "UPDATE dead_jobs SET last_error = '\"text\"'")
    assert dead.revive(connected(shop.database_url), dead.Selection((job_id,))) == 1
    assert shop.row(job_id)["history"][0]["last_error"] == "text"


def failed_three_times(shop: Workshop, job_id: int) -> None:
    fail(shop, job_id, error(1))
    interrupt(shop, claimed(shop, job_id))
    fail(shop, job_id, error(2))
    bury(shop, claimed(shop, job_id), error(3))


def test_events_of_one_job_have_each_attempt(shop: Workshop, job_id: int) -> None:
    failed_three_times(shop, job_id)
    with closing(postgres.connect(shop.database_url, "test")) as connection:
        found = JobFollower(job_id).look(connection)
    attempts = [(event.event, event.attempt) for event in found if event.event in ("claimed", "failed")]
    assert attempts == [(name, number) for number in (1, 2, 3) for name in ("claimed", "failed")]
    assert found[-1].event == "dead"
    failed = next(event for event in found if event.event == "failed")
    assert (failed.error, failed.worker) == ("NoAnswer: failure 1", "the other")
    assert failed.seconds is not None
    assert "attempt 1; NoAnswer: failure 1; after " in str(event_line(failed, with_day=True))


@pytest.mark.parametrize("end", ["waiting", "finished", "dead"])
def test_the_timeline_has_a_claim_and_a_failure_for_each_attempt(
    shop: Workshop, job_id: int, end: str
) -> None:
    fail(shop, job_id, error(1))
    fail(shop, job_id, error(2))
    last = {"finished": ["claimed", "finished"], "dead": ["claimed", "failed", "died"]}.get(end, [])
    if end == "finished":
        assert finishes.finish(connected(shop.database_url), claimed(shop, job_id))
    if end == "dead":
        bury(shop, claimed(shop, job_id), error(3))
    hops = hops_of(queries.job(connected(shop.database_url), job_id), {})
    # A dead row does not keep when it was moved.
    moved = [] if end == "dead" else ["moved"]
    assert [hop["hop"] for hop in hops] == ["staged", *moved, *["claimed", "failed"] * 2, *last]
    first = next(hop for hop in hops if hop["hop"] == "failed")
    assert (first["attempt"], first["worker"], first["error"]) == (1, "the other", "NoAnswer: failure 1")


def test_show_prints_earlier_attempts_in_a_line_each(
    shop: Workshop, job_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed_three_times(shop, job_id)
    monkeypatch.setenv("DRAIN_DATABASE_URL", shop.database_url)
    monkeypatch.setenv("COLUMNS", "200")
    text = CliRunner().invoke(main, ["show", str(job_id)]).stdout
    lines = [line for line in text.splitlines() if line.startswith("attempt ")]
    assert [line.partition(" after ")[0] for line in lines] == ["attempt 2 failed", "attempt 1 failed"]
    assert lines[0].endswith(" by the other: NoAnswer: failure 2")
    shown = json.loads(CliRunner().invoke(main, ["show", str(job_id), "--json"]).stdout)
    assert messages(shown["last_error"]) == ["failure 3", "failure 2", "failure 1"]


@pytest.fixture
def browser(database_url: str, redis_url: str) -> Iterator[Visitor]:
    with visitor(database_url, redis_url) as browser:
        yield browser


def test_the_page_has_a_section_of_earlier_attempts(shop: Workshop, job_id: int, browser: Visitor) -> None:
    failed_three_times(shop, job_id)
    text = assert_sound(browser.get(f"/jobs/{job_id}"))
    section = text.partition("Earlier attempts")[2]
    assert section.index("Attempt 2 failed after") < section.index("Attempt 1 failed after")
    assert "by the other: NoAnswer: failure 2\n" in section
    assert "Traceback: 2" in section
    assert "attempt 1: NoAnswer: failure 1 by the other" in text


def test_the_page_of_a_job_that_failed_once_has_no_such_section(
    shop: Workshop, job_id: int, browser: Visitor
) -> None:
    fail(shop, job_id, error(1))
    assert "Earlier attempts" not in browser.get(f"/jobs/{job_id}")
