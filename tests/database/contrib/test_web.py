"""`drain web`: the pages of queues, on real servers, and what they show when one of them is away."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from fastapi import FastAPI

from drain import queues
from drain.admission.options import OPTIONS
from drain.config import Settings
from drain.contrib.web import application
from drain.contrib.web.pages import overview, queue
from drain.contrib.web.routing import STATES
from drain.contrib.web.sessions import SESSIONS, Sessions
from drain.database import postgres
from drain.read import queue_overview
from drain.read.queue_overview import Step
from tests.helpers import NAMESPACE, PATIENCE_SECONDS, new_enqueuer, query, stage_jobs, wait_until
from tests.sound_pages import assert_sound
from tests.web_pages import TOKEN, away, browsing, visitor

HOSTILE = "<script>alert(1)</script>\"'\u202e\x1b[31m"
FINISHED = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token)
SELECT %s + number, 'm.f', '[]', '{}', %s, 0, at, at, at, at, at, 1, 1
FROM generate_series(1, %s) AS number, LATERAL (SELECT %s::timestamptz + number * %s::interval AS at) AS time
"""
IN_FLIGHT = """
INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, delivery,
    claimed_at, lease_expires_at)
SELECT %s, 'm.f', '[]', '{}', 'mail', 0, at, at, 1, %s::timestamptz, %s::timestamptz
FROM (SELECT now() - interval '1 hour' AS at) AS time
"""


def text_of(html: str) -> str:
    """The words of a page, without its tags."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def test_the_overview_says_why_the_jobs_of_each_queue_wait(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url, 3, queue="mail")
    stage_jobs(database_url, 2, queue="calls", run_at=datetime.now(UTC) + timedelta(days=1))
    query(database_url, IN_FLIGHT, 1000, None, None)
    later = datetime.now(UTC) + timedelta(hours=1)
    query(database_url, IN_FLIGHT.replace("'mail'", "'bulk'"), 1001, later, later)
    with visitor(database_url, redis_url) as browser:
        text = text_of(browser.get("/"))
    assert "No leader Jobs are not drained: start drain run" in text
    assert (
        "Needs attention mail No workers Not drained 4 jobs wait and no worker serves the queue Throughput"
        in text
    )
    rows = text[text.index(" Queues Queue State ") :]
    assert re.search(r" Dead mail No workers Not drained 4 3 list full 1 queued 1h 0 0 0 – 0", rows), rows
    assert re.search(r" calls OK 0 2 scheduled – 0 0 0 – 0", rows), rows
    assert re.search(r" bulk OK 0 – 1 0 0 – 0", rows), rows


def test_a_leader_and_queues_without_trouble_are_healthy(database_url: str, redis_url: str) -> None:
    query(database_url, IN_FLIGHT, 1000, *[datetime.now(UTC) + timedelta(hours=1)] * 2)
    query(
        database_url, FINISHED, 0, "mail", 40, datetime.now(UTC) - timedelta(minutes=10), timedelta(seconds=2)
    )
    with new_enqueuer(database_url, redis_url), visitor(database_url, redis_url) as browser:
        text = text_of(browser.get("/"))
    assert "Healthy Leader " in text
    assert "Needs attention" not in text
    assert "No leader" not in text
    assert re.search(r"Latency 0s p95 wait run time p95 0s", text), text
    assert "Wait from due to claim 0s 0s 0s Run time 0s 0s 0s The latest 40 completed jobs." in text


def test_missing_history_is_reported(database_url: str, redis_url: str) -> None:
    with visitor(database_url, redis_url) as browser:
        text = text_of(browser.get("/"))
    assert "No queue has jobs, rules or pauses, and no job completed in the last hours." in text
    stage_jobs(database_url, queue="mail")
    with visitor(database_url, redis_url) as browser:
        text = text_of(browser.get("/"))
    assert "Latency – p95 wait no recent job" in text
    assert "No job completed or died." in text


def test_each_component_is_shown(database_url: str) -> None:
    with visitor(database_url) as browser:
        html = browser.get("/design")
        text = assert_sound(html)
        assert 'method="post"' not in html
        browser.log_in()
        assert_sound(browser.get("/design"))
    for title in STATES.values():
        assert title in text
    for part in (
        "chart",
        "spark",
        "meter",
        "timeline",
        "facts",
        "legend",
        "badge good",
        "badge bad",
        "cards",
    ):
        assert f'class="{part}' in html


def test_each_rule_has_a_title() -> None:
    assert set(queue.TITLES_OF_RULES) == set(OPTIONS)


def test_without_redis_the_page_shows_what_postgresql_knows(database_url: str) -> None:
    stage_jobs(database_url, queue="mail")
    with visitor(database_url, "redis://127.0.0.1:1/0") as browser:
        for path in ("/", "/queues/mail"):
            text = text_of(browser.get(path))
            assert "unknown: Redis at 127.0.0.1:1/0 does not take commands" in text
            assert "1 due" in text
            assert "no worker" not in text.lower()


def test_the_page_reports_a_database_outage_and_recovers(database_url: str) -> None:
    with visitor(database_url) as browser:
        browser.get("/")
        with away(database_url):
            # Numbers of the last seconds serve a little longer.
            wait_until(lambda: browser.client.get("/").status_code == 503)
            answer = browser.client.get("/queues/mail/next")
            assert answer.status_code == 503
            assert answer.headers["refresh"]
            assert "PostgreSQL at" in answer.text
            assert "Content-Security-Policy" in answer.headers
        # A server that was away a moment ago is not asked at once.
        wait_until(lambda: browser.client.get("/").status_code == 200)


def test_untrusted_text_stays_text(database_url: str, redis_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        queues.pause(connection, "mail", key=HOSTILE.replace("\x1b", ""), reason=HOSTILE)
        queues.set(connection, "mail", fair=True, weights={"</dd><script>": 2})
    stage_jobs(database_url, 2, job=HOSTILE, queue="mail", key=HOSTILE.replace("\x1b", ""))
    with visitor(database_url, redis_url) as browser:
        browser.log_in(HOSTILE)
        for path in ("/", "/queues/mail", "/queues/mail/next", "/queues/mail/keys"):
            page = browser.get(path)
            assert "<script>" not in page
            assert "\u202e" not in page
            assert "\x1b" not in page
            assert not re.search(r"<[^>]+\son\w+=|<[^>]+\sstyle=", page)


def test_each_due_job_is_on_exactly_one_next_up_page(database_url: str) -> None:
    ids = [
        *stage_jobs(database_url, 70, queue="mail", priority=1, key="acme"),
        *stage_jobs(database_url, 70, queue="mail"),
    ]
    with visitor(database_url) as browser:
        path, found = "/queues/mail/next", list[int]()
        while path:
            page = browser.get(path)
            found += [int(text) for text in re.findall(r'data-label="Id">\s*(?:<a [^>]+>)?(\d+)', page)]
            following = re.search(r'rel="next" href="([^"]+)"', page)
            path = following[1] if following else ""
        assert browser.get("/queues/mail/next?after=W10", status=400)
    assert found == [*ids[70:], *ids[:70]]


def test_the_keys_of_a_queue_have_pages(database_url: str) -> None:
    for number in range(60):
        stage_jobs(database_url, queue="mail", key=f"key {number:02}")
    with visitor(database_url) as browser:
        first = browser.get("/queues/mail/keys")
        following = re.search(r'rel="next" href="([^"]+)"', first)
        assert following
        second = browser.get(following[1])
    found = re.findall(r"key \d\d", first + second)
    assert found == [f"key {number:02}" for number in range(60)]


def test_page_sessions_are_read_only(database_url: str) -> None:
    sessions = Sessions(Settings(database_url=database_url))
    with sessions.reading() as connection, pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        connection.execute("DELETE FROM drain_state")
    sessions.close()


def test_sessions_are_few_and_reused(database_url: str) -> None:
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'drain web'"
    with visitor(database_url) as browser:
        for _ in range(3 * SESSIONS):
            browser.get("/")
        assert query(database_url, f"{count} AND datname = current_database()") == [(1,)]


def test_charts_count_finished_jobs_and_mark_estimates(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_overview, "PART_UP_TO", 50)
    monkeypatch.setattr(
        queue_overview, "_FINISHED", queue_overview._FINISHED.replace("LIMIT 5000", "LIMIT 50")
    )
    begin = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=1)
    query(database_url, FINISHED, 0, "few", 40, begin, timedelta(seconds=5))
    query(database_url, FINISHED, 1000, "many", 600, begin, timedelta(milliseconds=500))
    with postgres.connect(database_url, "test") as connection:
        few, many, none = queue_overview.count_finished(
            connection,
            [Step("few", begin), Step("many", begin), Step("many", begin + timedelta(hours=1))],
            timedelta(minutes=5),
        )
    assert few == (40, False)
    assert many.is_estimate
    assert 590 <= many.number <= 610
    assert none == (0, False)
    # A visitor does not wait for all of the curves; on a busy machine, 72 steps would take minutes of visits.
    monkeypatch.setattr(overview, "_OF_A_VISIT", PATIENCE_SECONDS)
    with visitor(database_url) as browser:
        wait_until(lambda: re.search('"40 completed in 3 h', browser.get("/")))
        wait_until(lambda: re.search('"about (590|600|610) completed in 3 h', browser.get("/")))


def test_the_page_works_under_a_prefix_in_another_application(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url, 3, queue="mail")
    shop = FastAPI()
    settings = Settings(database_url=database_url, redis_url=redis_url, namespace=NAMESPACE)
    shop.mount("/admin/jobs", application(settings, token=TOKEN))
    with browsing(shop, "/admin/jobs") as browser:
        browser.log_in()
        page = browser.get("/queues/mail")
        links = re.findall(r'(?:href|src|action|data-stream)="([^"#]+)"', page)
        assert len(links) > 8
        assert [link for link in links if not link.startswith("/admin/jobs/")] == []
        for link in set(links):
            if "stream" not in link and "/pause" not in link and "/rules" not in link and "log" not in link:
                assert browser.client.get(link).status_code == 200, link
        done = browser.post("/queues/mail/pause", of="/queues/mail")
        assert done.headers["location"] == "/admin/jobs/queues/mail"
        assert "paused: queue mail" in browser.client.get(done.headers["location"]).text
        assert browser.get("/nothing", status=404)


def test_static_files_are_cached_until_they_change(database_url: str) -> None:
    with visitor(database_url) as browser:
        page = browser.get("/")
        for name, kind in (("drain.css", "text/css"), ("drain.js", "text/javascript")):
            link = re.search(rf'"(/static/{re.escape(name)}\?v=\w+)"', page)
            assert link
            answer = browser.client.get(link[1])
            assert answer.headers["content-type"].startswith(kind)
            assert "immutable" in answer.headers["cache-control"]
        assert browser.client.get("/static/..%2f__init__.py").status_code == 404
        assert "no-store" in browser.client.get("/").headers["cache-control"]
