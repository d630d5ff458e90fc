"""The page of a job, and what it lets a person do about the job."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from drain.contrib.web.pages import job as job_texts
from drain.contrib.web.shortening import VALUE
from drain.database import postgres
from drain.tables import claims, dead
from drain.tables.dead import Selection
from tests.dead_rows import bury, error
from tests.helpers import ids_in, new_enqueuer, query, stage_jobs
from tests.inprocess_worker import NAME, Workshop
from tests.sound_pages import assert_sound
from tests.web_pages import Visitor, visitor

WORKER = "web-1:4711:c0ffee"


@pytest.fixture
def browser(database_url: str, redis_url: str) -> Iterator[Visitor]:
    with visitor(database_url, redis_url) as browser:
        yield browser


def claim(database_url: str, job_id: int) -> claims.Claim:
    with closing(postgres.connect(database_url, "test")) as connection:
        found = claims.claim(connection, job_id, worker=WORKER, limits={})
    assert found is not None
    return found


def press(browser: Visitor, verb: str, job_id: int, seen_at: str = "2100-01-01T00:00:00Z") -> Any:
    """Send the form of a button, with the secret of a page that has a form in any case."""
    return browser.post(f"/jobs/{job_id}/{verb}", {"seen_at": seen_at}, of="/dead")


def said(browser: Visitor, answer: Any) -> str:
    assert answer.status_code == 303, answer.text
    return assert_sound(browser.get(answer.headers["location"]))


def page(browser: Visitor, path: str) -> str:
    """The page's HTML."""
    html = browser.get(path)
    assert_sound(html)
    return html


def test_a_blocked_job_links_to_its_predecessors_and_they_link_to_it(
    database_url: str, browser: Visitor
) -> None:
    (first,) = stage_jobs(database_url)
    options = json.dumps({"after": [[first, "hold"]], "run_at": "2090-01-31T08:30:00Z"})
    ((child,),) = query(database_url, "SELECT drain_stage('m.f', '[]', %s)", options)
    text = page(browser, f"/jobs/{child}")
    for part in ("Blocked", "Waits for", "wait for its retry", "Earliest start", f'href="/jobs/{first}"'):
        assert part in text
    assert "9999" not in text
    text = page(browser, f"/jobs/{first}")
    assert "Waited for by" in text
    assert f'href="/jobs/{child}"' in text
    assert f'href="/jobs/{child}"' in page(browser, "/search?q=state:blocked")
    assert f'href="/jobs/{child}"' not in page(browser, "/search?q=state:scheduled")
    assert "1 blocked" in page(browser, "/")


def test_a_staged_job_says_why_it_waits(database_url: str, browser: Visitor) -> None:
    (job_id,) = stage_jobs(database_url, queue="mail", tag="shop.order", key="acme", unique_key="u:1")
    text = assert_sound(browser.get(f"/jobs/{job_id}"))
    for part in ("Waiting", "Staged", "m.f", "mail", "shop.order", "acme", "u:1", "drain run", "Arguments"):
        assert part in text
    # Nobody has signed in.
    assert "Cancel job" not in text


def test_a_job_is_followed_from_table_to_table(shop: Workshop, redis_url: str) -> None:
    with visitor(shop.database_url, redis_url) as browser:
        ids = stage_jobs(shop.database_url, 1, queue="mail")
        with new_enqueuer(shop.database_url, redis_url) as enqueuer:
            enqueuer.drain()
        text = assert_sound(browser.get(f"/jobs/{ids[0]}"))
        assert "Queued" in text
        assert "Moved in flight" in text
        claimed = claim(shop.database_url, ids[0])
        text = assert_sound(browser.get(f"/jobs/{ids[0]}"))
        assert "Running" in text
        assert WORKER in text
        shop.finish(claimed)
        text = assert_sound(browser.get(f"/jobs/{ids[0]}"))
    assert f"{WORKER} completed it in 1 attempt" in text
    assert "not kept" in text
    assert [step for step in ("Staged", "Moved in flight", "Claimed", "Completed") if step not in text] == []


@pytest.mark.parametrize("result", [None, {"answer": 42}, [], "text"])
def test_a_result_that_was_kept_is_shown(shop: Workshop, result: Any) -> None:
    job_id = shop.delivered(lambda: result, name=NAME, result="keep")
    assert shop.work_to_the_end(job_id) == ["finished"]
    with visitor(shop.database_url) as browser:
        text = assert_sound(browser.get(f"/jobs/{job_id}"))
        assert "Resultsee below" in text
        whole = browser.get(f"/jobs/{job_id}/whole/result")
    assert json.loads(whole) == result


def test_errors_of_a_dead_job_and_of_its_earlier_deaths_are_shown(
    database_url: str, browser: Visitor
) -> None:
    life = {
        "died_at": "2026-11-20T10:00:00+00:00",
        "reason": "failed",
        "explanation": "failed 3 times",
        "attempts": 3,
        "last_error": error("/srv/shop/old.py:1:f", message="of the former life"),
    }
    last = error("/srv/shop/jobs.py:12:send", kind="shop.NoOrder", message="no order 7")
    (job_id,) = bury(database_url, last_error=last, history=[life, {**life, "reason": "expired"}])
    text = assert_sound(browser.get(f"/jobs/{job_id}"))
    assert 'File "/srv/shop/jobs.py", line 12, in send' in text
    assert text.count("shop.NoOrder: no order 7") == 1
    assert text.index("Death 2: expired") < text.index("Death 1: failed")
    assert "of the former life" in text


def test_recorded_steps_are_in_the_timeline(database_url: str, browser: Visitor) -> None:
    (job_id,) = stage_jobs(database_url)
    query(
        database_url,
        "INSERT INTO job_steps (job_id, name, result, seconds, fencing_token) VALUES (%s, 'charge <b>', '42', 1, 1)",
        job_id,
    )
    text = assert_sound(browser.get(f"/jobs/{job_id}"))
    assert "Step charge <b>" in text


def test_an_unknown_id_is_reported_in_one_clear_sentence(browser: Visitor, subtests: pytest.Subtests) -> None:
    for job_id in ("0", "7", "-3", "9223372036854775807", "9" * 40, "seven", "٣", "1%00"):
        with subtests.test(job_id):
            text = assert_sound(browser.get(f"/jobs/{job_id}", status=404))
            assert (
                "this id has not been assigned" in text or "There is no job" in text or "whole number" in text
            )


def test_a_job_with_a_negative_id_has_a_page(database_url: str, browser: Visitor) -> None:
    (job_id,) = bury(database_url)
    query(database_url, "UPDATE dead_jobs SET id = -5 WHERE id = %s", job_id)
    assert "dead" in assert_sound(browser.get("/jobs/-5"))
    assert "/jobs/-5" in browser.get("/search?q=shop")


def test_large_arguments_are_truncated_and_available_as_plain_text(
    database_url: str, browser: Visitor
) -> None:
    large = "<script>alert(1)</script>é" * 3000
    (job_id,) = bury(database_url, job_args=[large], job_kwargs={"small": 1})
    html = browser.get(f"/jobs/{job_id}")
    assert_sound(html)
    assert len(html) < 40_000
    left_out = len(json.dumps([large], ensure_ascii=False)) - VALUE
    assert f"{left_out:,} characters are left out" in html
    answer = browser.client.get(f"/jobs/{job_id}/whole/arguments")
    assert json.loads(answer.text) == [large]
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"].startswith("attachment; ")
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_each_part_can_be_downloaded_or_is_not_found(database_url: str, browser: Visitor) -> None:
    (job_id,) = bury(database_url, last_error=error("/a.py:1:f"))
    for part in job_texts.PARTS:
        there = part in ("arguments", "keyword-arguments", "error")
        browser.get(f"/jobs/{job_id}/whole/{part}", status=200 if there else 404)
    browser.get(f"/jobs/{job_id}/whole/salt", status=404)
    browser.get("/jobs/77/whole/arguments", status=404)


def test_very_deeply_nested_arguments_do_not_break_the_page(database_url: str, browser: Visitor) -> None:
    for depth in (900, 5000):
        (job_id,) = bury(database_url)
        query(
            database_url,
            "UPDATE dead_jobs SET job_args = (repeat('[', %s) || repeat(']', %s))::jsonb WHERE id = %s",
            *(depth, depth, job_id),
        )
        assert_sound(browser.get(f"/jobs/{job_id}"))
        assert browser.get(f"/jobs/{job_id}/whole/arguments") == "[" * depth + "]" * depth


def test_a_read_only_visitor_has_no_buttons_and_cannot_post(database_url: str, browser: Visitor) -> None:
    (job_id,) = bury(database_url)
    page = browser.get(f"/jobs/{job_id}")
    assert 'method="post"' not in page
    assert page.count("<form") == page.count('<form class="find" method="get"') + page.count(
        'method="dialog"'
    )
    for verb in ("retry", "discard", "cancel"):
        assert browser.post(f"/jobs/{job_id}/{verb}", of="/login").status_code == 403
    assert ids_in(database_url, "dead_jobs") == [job_id]


def test_a_dead_job_is_retried_once(
    database_url: str, browser: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "drain.contrib.web.writes")
    (job_id,) = bury(database_url, last_error=error("/a.py:1:f"))
    browser.log_in("Anna")
    assert "Retry" in browser.get(f"/jobs/{job_id}")
    assert f"job {job_id} is staged again" in said(browser, press(browser, "retry", job_id))
    again = press(browser, "retry", job_id)
    assert again.status_code == 400
    assert f"job {job_id} is staged now, and waits; nothing was done" in assert_sound(again.text)
    assert (ids_in(database_url, "staged_jobs"), ids_in(database_url, "dead_jobs")) == ([job_id], [])
    (record,) = [record for record in caplog.records if getattr(record, "event", "") == "web_write"]
    assert vars(record)["who"] == "Anna"
    assert vars(record)["action"] == "job_retry"
    assert vars(record)["jobs"] == 1
    assert vars(record)["given"]["job_id"] == str(job_id)


def test_a_dead_job_is_retried_with_other_arguments(
    database_url: str, browser: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "drain.contrib.web.writes")
    (job_id,) = bury(database_url, job_args=["coffee"])
    browser.log_in("Anna")
    form = {"seen_at": "2100-01-01T00:00:00Z", "args": "[tea]", "kwargs": ""}
    refused = browser.post(f"/jobs/{job_id}/retry", form, of="/dead")
    assert (refused.status_code, "cannot be read as JSON" in refused.text) == (400, True)
    answer = browser.post(f"/jobs/{job_id}/retry", form | {"args": '["tea"]'}, of="/dead")
    assert f"job {job_id} is staged again with other arguments" in said(browser, answer)
    ((args, death),) = query(database_url, "SELECT job_args, history -> -1 FROM staged_jobs")
    assert (args, death["job_args"], death["edited_by"]) == (["tea"], ["coffee"], "Anna")
    assert "coffee" in browser.get(f"/jobs/{job_id}").partition("Arguments before the edit of death 1")[2]
    assert "tea" not in str([vars(record) for record in caplog.records])


def test_only_one_of_many_simultaneous_retries_succeeds(database_url: str, browser: Visitor) -> None:
    (job_id,) = bury(database_url)
    browser.log_in()
    with ThreadPoolExecutor(6) as people:
        answers = list(people.map(lambda _: press(browser, "retry", job_id), range(6)))
    assert sorted(answer.status_code for answer in answers) == [303, *[400] * 5]
    assert (ids_in(database_url, "staged_jobs"), ids_in(database_url, "dead_jobs")) == ([job_id], [])


def test_a_dead_job_is_discarded_once(database_url: str, browser: Visitor) -> None:
    (job_id,) = bury(database_url)
    browser.log_in()
    assert f"job {job_id} is discarded" in said(browser, press(browser, "discard", job_id))
    again = press(browser, "discard", job_id)
    assert again.status_code == 400
    assert f"job {job_id} is in no table any more; nothing was done" in again.text


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_a_job_that_died_again_after_its_page_was_loaded_stays_dead(
    database_url: str, browser: Visitor, verb: str
) -> None:
    (job_id,) = bury(database_url)
    browser.log_in()
    (seen_at,) = set(re.findall(r'name="seen_at" value="([^"]+)"', browser.get(f"/jobs/{job_id}")))
    query(database_url, "UPDATE dead_jobs SET died_at = clock_timestamp()")
    refused = press(browser, verb, job_id, seen_at)
    assert refused.status_code == 400
    assert f"job {job_id} has died again since the page was loaded; nothing was done" in refused.text
    assert press(browser, verb, job_id, "").status_code == 400
    assert ids_in(database_url, "dead_jobs") == [job_id]
    (seen_at,) = set(re.findall(r'name="seen_at" value="([^"]+)"', browser.get(f"/jobs/{job_id}")))
    assert press(browser, verb, job_id, seen_at).status_code == 303
    assert ids_in(database_url, "dead_jobs") == []


def test_waiting_and_running_jobs_are_cancelled(shop: Workshop, redis_url: str) -> None:
    (waits,) = stage_jobs(shop.database_url, run_in=3600)
    (runs,) = stage_jobs(shop.database_url)
    shop.move(runs)
    claimed = claim(shop.database_url, runs)
    with visitor(shop.database_url, redis_url) as browser:
        browser.log_in()
        assert f"job {waits} is cancelled" in said(browser, press(browser, "cancel", waits))
        assert "its worker learns so" in said(browser, press(browser, "cancel", runs))
    assert ids_in(shop.database_url, "dead_jobs") == sorted([waits, runs])
    # The worker had it, and can finish nothing any more.
    assert not shop.finish(claimed)


def test_a_job_that_has_moved_on_meanwhile_is_left_unchanged(shop: Workshop) -> None:
    (finished,) = stage_jobs(shop.database_url)
    shop.move(finished)
    (retried,) = bury(shop.database_url)
    (dead_already,) = bury(shop.database_url)
    with visitor(shop.database_url) as browser:
        browser.log_in()
        assert "Cancel" in browser.get(f"/jobs/{finished}")
        shop.finish(claim(shop.database_url, finished))
        assert "Retry" in browser.get(f"/jobs/{retried}")
        with closing(postgres.connect(shop.database_url, "test")) as connection:
            dead.revive(connection, Selection((retried,)))
        shop.move(retried)
        for verb, job_id, where in (
            ("cancel", finished, "has finished already"),
            ("retry", finished, "has finished already"),
            ("discard", retried, "is in flight now: queued"),
            ("retry", retried, "is in flight now: queued"),
            ("cancel", dead_already, "is dead already"),
            ("cancel", 999, "is in no table any more"),
        ):
            answer = press(browser, verb, job_id)
            assert answer.status_code == 400
            assert f"job {job_id} {where}; nothing was done" in answer.text
    tables = {
        table: ids_in(shop.database_url, table) for table in ("inflight_jobs", "finished_jobs", "dead_jobs")
    }
    assert tables == {"inflight_jobs": [retried], "finished_jobs": [finished], "dead_jobs": [dead_already]}


def test_a_job_that_is_being_undone_is_not_retried(shop: Workshop) -> None:
    (job_id,), (undo_id,) = bury(shop.database_url), bury(shop.database_url)
    step = "INSERT INTO job_steps (job_id, undone_by, name, result, seconds, fencing_token) "
    query(shop.database_url, step + "VALUES (%s, %s, 'a', '1', 1, 1)", job_id, undo_id)
    with visitor(shop.database_url) as browser:
        browser.log_in()
        assert f"undone by job {undo_id} (dead): " in browser.get(f"/jobs/{job_id}")
        answer = press(browser, "retry", job_id)
    assert answer.status_code == 400
    assert f"job {job_id} is being undone by job {undo_id}; retry it when that has finished" in answer.text
    assert ids_in(shop.database_url, "dead_jobs") == [job_id, undo_id]


def test_progress_of_a_running_job_is_shown_and_redis_is_not_needed(shop: Workshop, redis_url: str) -> None:
    from drain.wire import ProgressBoard
    from drain.wire.progress import Written
    from tests.helpers import NAMESPACE

    (job_id,) = stage_jobs(shop.database_url)
    shop.move(job_id)
    claimed = claim(shop.database_url, job_id)
    written = {
        "token": claimed.fencing_token,
        "done": 340,
        "total": 1000,
        "text": "page <7>",
        "attempt": 1,
        "at": 0,
    }
    with closing(ProgressBoard.at(redis_url, NAMESPACE)) as board:
        board.write([Written(job_id, claimed.fencing_token, json.dumps(written))])
    with visitor(shop.database_url, redis_url) as browser:
        text = assert_sound(browser.get(f"/jobs/{job_id}"))
        assert "340 of 1,000, page <7>" in text
    with visitor(shop.database_url, "redis://127.0.0.1:1/0") as browser:
        text = assert_sound(browser.get(f"/jobs/{job_id}"))
    assert "Running" in text
    assert "340" not in text
    assert "Redis" in text


def test_a_job_in_each_inflight_state_has_a_page(database_url: str, browser: Visitor) -> None:
    insert = (
        "INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, "
        "delivery, last_error, {}) VALUES (nextval('staged_jobs_id_seq'), 'm.f', '[]', '{{}}', 'mail', 0, now(), "
        "now(), 1, %s, {}) RETURNING id"
    )
    for state, columns, values in (
        ("retrying", "next_run_at, failed_at", "now() + interval '1 hour', now()"),
        ("deferred", "next_run_at, claimed_at", "now() + interval '1 hour', now()"),
        ("stalled", "claimed_at, claimed_by, lease_expires_at", "now(), 'w', now() - interval '1 hour'"),
    ):
        failed = Jsonb(error("/srv/a.py:1:f")) if state == "retrying" else None
        ((job_id,),) = query(database_url, insert.format(columns, values), failed)
        text = assert_sound(browser.get(f"/jobs/{job_id}"))
        assert state.capitalize() in text
        assert ('File "/srv/a.py"' in text) is (state == "retrying")
