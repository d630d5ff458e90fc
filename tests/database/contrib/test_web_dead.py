"""The pages of dead jobs, and retries and discards of many of them."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from drain.config import Settings
from drain.contrib.web import bulk_actions
from drain.contrib.web.bulk_actions import BulkAction, BulkActions
from drain.contrib.web.charts import histogram
from drain.contrib.web.paging import ROWS
from drain.contrib.web.sessions import Sessions
from drain.errors import DrainError
from drain.read import dead_groups
from drain.tables import dead
from drain.tables.dead import Selection
from tests.dead_rows import bury, error
from tests.helpers import PATIENCE_SECONDS, ids_in, query, wait_until
from tests.hostility import Place
from tests.sound_pages import assert_sound
from tests.web_pages import Visitor, away, visitor

JOBS, MAIL = "/srv/app/shop/jobs.py:12:send", "/srv/app/shop/mail.py:7:deliver"


@pytest.fixture
def browser(database_url: str) -> Iterator[Visitor]:
    with visitor(database_url) as browser:
        browser.log_in()
        yield browser


def group_pages(html: str) -> list[str]:
    return re.findall(r'href="(/dead/groups/[0-9a-f]{16})"', html)


def hidden(html: str) -> dict[str, str]:
    return dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', html))


def send(browser: Visitor, verb: str, page: str, fields: dict[str, Any]) -> Any:
    """Send the form of a group's page."""
    given = hidden(browser.get(page)) | fields
    return browser.post(f"/dead/{verb}", given, of=page)


def confirm(browser: Visitor, verb: str, question: Any) -> Any:
    """Answer yes to the question."""
    assert question.status_code == 200, question.text
    assert_sound(question.text)
    fields: dict[str, Any] = {}
    for name, value in re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', question.text):
        fields.setdefault(name, []).append(value)
    return browser.post(f"/dead/{verb}", fields, of="/dead")


def ended(browser: Visitor, answer: Any) -> str:
    """Wait for a bulk action's end; return its page as text."""
    where = answer.headers["location"]
    wait_until(lambda: 'class="card ended"' in browser.get(where))
    return " ".join(assert_sound(browser.get(where)).split())


@pytest.fixture
def held(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Slices of two jobs; each one but the first waits for the event before its statement."""
    monkeypatch.setattr(bulk_actions, "SLICE", 2)
    go_on, act = threading.Event(), dead.discard

    def discard(connection: Any, selection: Selection) -> int:
        if len(ids_in(database_url, "dead_jobs")) < 6:
            assert go_on.wait(PATIENCE_SECONDS)
        return act(connection, selection)

    monkeypatch.setattr(dead, "discard", discard)
    yield go_on
    go_on.set()


def start_discard(browser: Visitor) -> Any:
    page = group_pages(browser.get("/dead"))[0]
    return confirm(browser, "discard", send(browser, "discard", page, {"which": "all"}))


def test_a_bulk_action_is_cancelled_after_its_slice(
    database_url: str, browser: Visitor, held: threading.Event
) -> None:
    bury(database_url, last_error=error(JOBS), count=6)
    page = group_pages(browser.get("/dead"))[0]
    question = send(browser, "discard", page, {"which": "all"})
    answer = confirm(browser, "discard", question)
    where = answer.headers["location"]
    wait_until(lambda: 'value="2"' in browser.get(where))
    assert "Running 2 of 6 jobs discarded" in " ".join(assert_sound(browser.get(where)).split())
    again = confirm(browser, "discard", send(browser, "discard", page, {"which": "all"}))
    assert again.status_code == 400
    assert "a discard of this group is running" in again.text
    browser.post(f"{where}/cancel", of=where)
    held.set()
    assert "Cancelled: the other 2 jobs stay as they were." in ended(browser, answer)
    assert len(ids_in(database_url, "dead_jobs")) == 2
    assert browser.post(f"{where}/cancel", of="/queues/mail").status_code == 400
    assert where in browser.get("/dead")


def test_a_bulk_action_that_fails_keeps_its_finished_slices(
    database_url: str, browser: Visitor, held: threading.Event
) -> None:
    ids = sorted(bury(database_url, last_error=error(JOBS), count=6))
    answer = start_discard(browser)
    wait_until(lambda: len(ids_in(database_url, "dead_jobs")) == 4)
    query(
        database_url,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''not on my watch''; END'",
    )
    query(
        database_url,
        "CREATE TRIGGER refuse BEFORE DELETE ON dead_jobs FOR EACH STATEMENT EXECUTE FUNCTION refuse()",
    )
    held.set()
    text = ended(browser, answer)
    assert "Failed 2 of 6 jobs discarded" in text
    assert "Stopped: not on my watch." in text
    assert ids_in(database_url, "dead_jobs") == ids[2:]


def dies_again(database_url: str, *ids: int) -> None:
    """What a retry that fails again leaves: the same id, and a later death."""
    query(database_url, "UPDATE dead_jobs SET died_at = clock_timestamp() WHERE id = ANY (%s)", list(ids))


@pytest.mark.parametrize("which", ["all", "chosen"])
@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_a_job_that_died_again_after_the_form_was_shown_stays_dead(
    database_url: str, browser: Visitor, verb: str, which: str
) -> None:
    ids = sorted(bury(database_url, last_error=error(JOBS), count=4))
    (page,) = group_pages(browser.get("/dead"))
    shown = hidden(browser.get(page)) | {"which": which, "id": ids}
    dies_again(database_url, ids[0])
    question = browser.post(f"/dead/{verb}", shown, of=page)
    assert f"{verb.capitalize()} 3 " in question.text
    dies_again(database_url, ids[1])
    done = confirm(browser, verb, question)
    assert done.status_code == 303, done.text
    if which == "all":
        ended(browser, done)
    assert ids_in(database_url, "dead_jobs") == ids[:2]
    dies_again(database_url, *ids)
    refused = browser.post(f"/dead/{verb}", shown, of=page)
    assert refused.status_code == 400
    assert "the jobs were retried or discarded in the meantime" in refused.text
    assert ids_in(database_url, "dead_jobs") == ids[:2]


def test_a_job_that_dies_again_while_its_slice_waits_stays_dead(
    database_url: str, browser: Visitor, held: threading.Event
) -> None:
    ids = sorted(bury(database_url, last_error=error(JOBS), count=6))
    answer = start_discard(browser)
    wait_until(lambda: len(ids_in(database_url, "dead_jobs")) == 4)
    dies_again(database_url, ids[4])
    held.set()
    text = ended(browser, answer)
    assert "Completed 5 of 6 jobs discarded, by Anna. 1 was no longer dead, or had died again." in text
    assert ids_in(database_url, "dead_jobs") == [ids[4]]


def test_a_job_that_dies_again_while_the_form_is_rendered_stays_dead(
    database_url: str, browser: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = sorted(bury(database_url, last_error=error(JOBS), count=2))
    (page,) = group_pages(browser.get("/dead"))
    read = dead_groups.read_groups

    def slow(connection: Any) -> Any:
        groups = read(connection)
        dies_again(database_url, ids[0])
        return groups

    with monkeypatch.context() as patched:
        patched.setattr(dead_groups, "read_groups", slow)
        shown = hidden(browser.get(page))
    question = browser.post("/dead/discard", shown | {"which": "all"}, of=page)
    ended(browser, confirm(browser, "discard", question))
    assert ids_in(database_url, "dead_jobs") == [ids[0]]


def test_an_outage_between_two_slices_ends_the_action_and_its_page_says_so(
    database_url: str, browser: Visitor, held: threading.Event
) -> None:
    ids = sorted(bury(database_url, last_error=error(JOBS), count=6))
    answer = start_discard(browser)
    wait_until(lambda: len(ids_in(database_url, "dead_jobs")) == 4)
    with away(database_url):
        held.set()
        text = ended(browser, answer)
    assert "Failed 2 of 6 jobs discarded" in text
    assert "Stopped: PostgreSQL at" in text
    assert ids_in(database_url, "dead_jobs") == ids[2:]
    # A session that the outage ended is noticed once.
    wait_until(lambda: browser.client.get("/dead").status_code == 200)
    assert "Completed 4 of 4 jobs discarded" in ended(browser, start_discard(browser))


def test_slices_of_a_retry_come_due_at_one_rate(
    database_url: str, browser: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk_actions, "SLICE", 2)
    bury(database_url, last_error=error(JOBS), count=5)
    (page,) = group_pages(browser.get("/dead"))
    question = send(browser, "retry", page, {"which": "all", "per_second": "0.5"})
    assert "Completed 5 of 5" in ended(browser, confirm(browser, "retry", question))
    ((seconds,),) = query(
        database_url,
        "SELECT array_agg(extract(epoch FROM scheduled_at - first)::integer ORDER BY id) FROM staged_jobs, "
        "(SELECT min(scheduled_at) AS first FROM staged_jobs) AS all_of_them",
    )
    assert seconds == [0, 2, 4, 6, 8]


def test_only_the_owner_of_the_tables_acts_on_a_group(place: Place) -> None:
    bury(place.url_of("owner"), last_error=error(JOBS), count=3)
    for role, says in (
        ("inspection", "permission denied for table dead_jobs"),
        ("owner", "Completed 3 of 3"),
    ):
        with visitor(place.url_of(role)) as browser:
            browser.log_in()
            assert says in ended(browser, start_discard(browser))
    with visitor(place.url_of("owner"), token=None) as browser:
        assert "Retry or discard" not in browser.get("/dead")
        assert browser.send("/dead/actions/x/cancel", {"secret": "x"}).status_code == 403


def test_actions_are_forgotten_and_limited(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    actions, go_on = BulkActions(Sessions(Settings(database_url=database_url))), threading.Event()

    def start(group: str, wait: bool) -> BulkAction:
        return actions.start(
            "retry", group, "jobs", "Anna", [1], lambda *_: int(not wait or go_on.wait(PATIENCE_SECONDS))
        )

    for number in range(bulk_actions.MOST + 2):
        each = start(str(number), wait=False)
        wait_until(lambda each=each: each.state == bulk_actions.COMPLETED)  # type: ignore[misc]
    assert len(actions.latest()) == bulk_actions.MOST
    assert actions.find(each.name) is each
    for number in range(bulk_actions.MOST_RUNNING):
        start(f"slow {number}", wait=True)
    with pytest.raises(DrainError, match="4 bulk actions are running"):
        start("one more", wait=False)
    go_on.set()
    actions.close()
    assert {each.state for each in actions.latest()} == {bulk_actions.COMPLETED}


def test_an_action_whose_thread_does_not_start_leaves_nothing_behind(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    actions = BulkActions(Sessions(Settings(database_url=database_url)))
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            actions.start("retry", "group", "jobs", "Anna", [1], lambda *_: 1)
    assert actions.latest() == []
    begun = actions.start("retry", "group", "jobs", "Anna", [1], lambda *_: 1)
    wait_until(lambda: begun.state == bulk_actions.COMPLETED)
    actions.close()


def test_an_unknown_action_says_where_its_jobs_are(browser: Visitor) -> None:
    text = assert_sound(browser.get("/dead/actions/of-another-process", status=404))
    assert "another process runs it, this one has restarted (which cancels it)" in text
    assert "Failures shows the jobs that are still dead" in text


def test_the_page_without_dead_jobs_says_so(browser: Visitor) -> None:
    assert "No dead jobs." in assert_sound(browser.get("/dead"))


def test_groups_link_to_their_jobs(database_url: str, browser: Visitor) -> None:
    bury(database_url, "shop.jobs.send", error(JOBS, MAIL, message="customer 1"), count=3)
    bury(database_url, "shop.jobs.remind", error(JOBS))
    html = browser.get("/dead")
    text = assert_sound(html)
    assert "staged last" not in text
    assert text.index("shop.jobs.send") < text.index("shop.jobs.remind")
    assert "app/shop/mail.py:7 in deliver" in text
    assert "4 deaths in the last hour, at most 4 in 1m" in text
    assert "<svg" in html
    largest, _ = group_pages(html)
    text = assert_sound(browser.get(largest))
    assert "/srv/app/shop/mail.py:7 in deliver" in text
    assert "ValueError: customer 1" in text
    assert text.count("Select job") == 0
    assert browser.get(largest).count('aria-label="Select job') == 3


def test_a_page_of_a_group_leads_to_the_next_one(database_url: str, browser: Visitor) -> None:
    ids = bury(database_url, last_error=error(JOBS), count=ROWS + 3)
    (page,) = group_pages(browser.get("/dead"))
    seen: list[int] = []
    while page:
        html = browser.get(page)
        assert_sound(html)
        seen += map(int, re.findall(r'name="id" value="(\d+)"', html))
        following = re.search(r'rel="next" href="([^"]+)"', html)
        page = following[1] if following else ""
    assert seen == sorted(ids, reverse=True)


def test_the_bound_of_the_search_is_shown(
    database_url: str, browser: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(database_url, last_error=error(JOBS), count=5)
    read = dead_groups.read_groups
    monkeypatch.setattr(dead_groups, "read_groups", lambda connection: read(connection, 3))
    html = browser.get("/dead")
    assert "The 3 jobs staged last; there are more." in assert_sound(html)
    (page,) = group_pages(html)
    assert "3, among the 3 staged last" in assert_sound(browser.get(page))


def test_a_missing_group_is_reported(database_url: str, browser: Visitor) -> None:
    assert "No dead job is in this group now" in assert_sound(
        browser.get("/dead/groups/0123456789abcdef", status=404)
    )


def test_selected_jobs_are_retried_at_once_after_confirmation(
    database_url: str, browser: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "drain.contrib.web.writes")
    ids = sorted(bury(database_url, last_error=error(JOBS), count=4))
    (page,) = group_pages(browser.get("/dead"))
    question = send(browser, "retry", page, {"which": "chosen", "id": ids[:2]})
    assert "Retry 2 chosen dead jobs, at once?" in question.text
    assert ids_in(database_url, "staged_jobs") == []
    done = confirm(browser, "retry", question)
    assert done.status_code == 303
    assert "2 jobs staged again" in browser.get(done.headers["location"])
    assert ids_in(database_url, "staged_jobs") == ids[:2]
    assert ids_in(database_url, "dead_jobs") == ids[2:]
    (record,) = [record for record in caplog.records if getattr(record, "event", "") == "web_write"]
    logged = vars(record)
    assert (logged["who"], logged["action"], logged["jobs"], logged["ids"]) == (
        "Anna",
        "dead_retry",
        2,
        ids[:2],
    )


def test_a_whole_group_is_retried_at_a_rate_after_confirmation(database_url: str, browser: Visitor) -> None:
    bury(database_url, last_error=error(JOBS), count=5)
    bury(database_url, "shop.other", last_error=error(JOBS))
    page, _ = group_pages(browser.get("/dead"))
    question = send(browser, "retry", page, {"which": "all", "per_second": "0.5"})
    assert "at 0.5 a second: the last one comes due in 8s?" in question.text
    # Another one dies before the person has answered: it is not among those that were asked about.
    (later,) = bury(database_url, last_error=error(JOBS), died_at=datetime.now(UTC) + timedelta(minutes=1))
    done = confirm(browser, "retry", question)
    assert done.status_code == 303, done.text
    assert "Completed 5 of 5 jobs retried, by Anna." in ended(browser, done)
    ((seconds,),) = query(
        database_url,
        "SELECT array_agg(extract(epoch FROM scheduled_at - first)::integer ORDER BY id) FROM staged_jobs, "
        "(SELECT min(scheduled_at) AS first FROM staged_jobs) AS all_of_them",
    )
    assert seconds == [0, 2, 4, 6, 8]
    assert later in ids_in(database_url, "dead_jobs")


def test_jobs_already_retried_or_discarded_are_skipped(database_url: str, browser: Visitor) -> None:
    ids = sorted(bury(database_url, last_error=error(JOBS), count=3))
    (page,) = group_pages(browser.get("/dead"))
    question = send(browser, "retry", page, {"which": "chosen", "id": ids})
    query(database_url, "DELETE FROM dead_jobs WHERE id = %s", ids[0])
    done = confirm(browser, "retry", question)
    assert "2 jobs staged again; 1 other had moved on" in browser.get(done.headers["location"])
    again = confirm(browser, "retry", question)
    assert again.status_code == 400
    assert "the jobs were retried or discarded in the meantime" in again.text
    assert ids_in(database_url, "staged_jobs") == ids[1:]


def test_a_group_is_discarded_after_confirmation(database_url: str, browser: Visitor) -> None:
    bury(database_url, last_error=error(JOBS), count=3)
    (other,) = bury(database_url, reason="expired")
    page, _ = group_pages(browser.get("/dead"))
    question = send(browser, "discard", page, {"which": "all"})
    assert "Discard 3 dead jobs of shop.jobs.send (app/shop/jobs.py:12 in send)?" in assert_sound(
        question.text
    )
    assert "They are gone then" in question.text
    done = confirm(browser, "discard", question)
    assert "Completed 3 of 3 jobs discarded, by Anna." in ended(browser, done)
    assert ids_in(database_url, "dead_jobs") == [other]
    (page,) = group_pages(browser.get("/dead"))
    question = send(browser, "discard", page, {"which": "chosen", "id": [other]})
    assert "Discard 1 job for ever" in question.text
    assert confirm(browser, "discard", question).status_code == 303
    assert ids_in(database_url, "dead_jobs") == []


NO_SENSE: list[tuple[dict[str, Any], str]] = [
    ({"which": "chosen"}, "mark at least one"),
    ({"which": "chosen", "id": ["7", "x"]}, "whole number"),
    ({"which": "chosen", "id": ["9" * 30]}, "below 2 to the power of 63"),
    ({"which": "all", "seen_at": "yesterday"}, "when the page was loaded"),
    *[
        ({"which": which, "id": "1", "seen_at": at}, "when the page was loaded")
        for which in ("all", "chosen")
        for at in (
            "",
            "2026-01-01",
            "2026-01-01T00:00:00",
            "0001-01-01T00:00+01:00",
            "9999-12-31T23:59-01:00",
        )
    ],
    ({"which": "all", "group": "0"}, "No dead job is in this group"),
    *[
        ({"which": "all", "per_second": rate}, "the rate is a number")
        for rate in ("0", "-1", "nan", "inf", "1_0", "1e9", "fast", "٣")
    ],
]


def test_an_invalid_form_is_refused_with_the_reason(
    database_url: str, browser: Visitor, subtests: pytest.Subtests
) -> None:
    bury(database_url, last_error=error(JOBS), count=2)
    (page,) = group_pages(browser.get("/dead"))
    for fields, says in NO_SENSE:
        with subtests.test(says, **fields):
            answer = send(browser, "retry", page, fields)
            assert answer.status_code in (400, 404)
            assert says in assert_sound(answer.text)
            assert len(ids_in(database_url, "dead_jobs")) == 2


def test_a_hundred_thousand_dead_jobs_have_a_page(database_url: str, browser: Visitor) -> None:
    bury(database_url, last_error=error(JOBS), count=100_000)
    text = assert_sound(browser.get("/dead"))
    assert "The 10,000 jobs staged last; there are more." in text


def test_a_histogram_covers_all_events_and_says_what_it_shows() -> None:
    now = datetime(2026, 11, 22, tzinfo=UTC)
    found = histogram([now, now + timedelta(seconds=5), now - timedelta(minutes=59, seconds=59)], now)
    assert (found.numbers[0], found.numbers[-1], sum(found.numbers), found.span) == (1, 2, 3, "hour")
    found = histogram([now - timedelta(days=3), now - timedelta(days=800)], now)
    assert (found.span, sum(found.numbers), found.earlier) == ("year", 1, 1)
    assert "1 death in the last year, at most 1 in 6d 2h; 1 earlier" in found.draw()
