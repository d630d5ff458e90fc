"""Pages of cron, workers, stacks, bulk runs and statistics, on real servers."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from drain.database import postgres
from drain.tables import bulk
from tests import jobs_that_hang as jobs
from tests.database.contrib.test_questions_of_pages import claims
from tests.helpers import NAMESPACE, PATIENCE_SECONDS, ids_in, listening_rq_worker, query, wait_until
from tests.web_pages import Visitor, visitor
from tests.worker_processes import Yard

HOSTILE = "<script>alert(1)</script> \u202e\" ' &amp; " + "x" * 150
SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt; \\u202e"


def schedule(database_url: str, name: str, **columns: Any) -> None:
    given = {"name": name, "job_name": "m.f", "cron": "0 3 * * *", **columns}
    places = ", ".join(["%s"] * len(given))
    query(database_url, f"INSERT INTO crons ({', '.join(given)}) VALUES ({places})", *given.values())


def has_no_markup_of_others(text: str) -> bool:
    return "<script>alert" not in text and "\u202e" not in text and "\x1b" not in text


def state_of(database_url: str, name: str) -> bool:
    ((paused,),) = query(database_url, "SELECT paused FROM crons WHERE name = %s", name)
    return bool(paused)


def test_schedules_are_listed_with_their_states(database_url: str) -> None:
    schedule(database_url, "on")
    schedule(database_url, "held", paused=True)
    schedule(database_url, "broken", error="no zone is called Mars")
    schedule(database_url, "late", next_tick_at="2026-01-01Z")
    schedule(database_url, "ran", last_tick_at="2026-01-01Z", last_job_id=42)
    with visitor(database_url) as browser:
        text = browser.get("/cron")
        assert browser.get("/cron/schedule?name=broken").count("no zone is called Mars") == 1
    rows = dict(re.findall(r'name=(\w+)">\w+</a>.*?class="badge (\w+)"', text, re.DOTALL))
    assert rows == {"on": "good", "held": "watch", "broken": "bad", "late": "bad", "ran": "good"}
    assert 'href="/jobs/42"' in text
    assert "There is no leader, so no tick is staged." in text


def test_a_schedule_is_paused_resumed_and_run_by_its_page(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = "a/b?c=d&e " + HOSTILE[:80]
    schedule(database_url, name)
    with visitor(database_url) as browser, caplog.at_level(logging.INFO):
        browser.log_in()
        page = address(browser)
        for path, paused in (("/cron/pause", True), ("/cron/resume", False)):
            answer = browser.post(path, {"name": name}, of=page)
            assert answer.status_code == 303
            assert state_of(database_url, name) is paused
            shown = browser.get(answer.headers["location"])
            assert has_no_markup_of_others(shown)
        assert browser.post("/cron/run", {"name": name}, of=page).status_code == 303
        again = browser.post("/cron/resume", {"name": name}, of=page)
        assert again.status_code == 400
        assert "is not paused" in again.text
        assert browser.post("/cron/run", {"name": "none"}, of=page).status_code == 400
    assert query(database_url, "SELECT job_name, tag FROM staged_jobs") == [("m.f", f"cron:{name}")]
    written = [record.__dict__ for record in caplog.records if record.__dict__.get("event") == "web_write"]
    assert [(each["action"], each["who"], each["schedule"]) for each in written] == [
        (f"cron_{action}", "Anna", name) for action in ("pause", "resume", "run")
    ]


def address(browser: Visitor) -> str:
    (found,) = re.findall(r'href="(/cron/schedule\?name=[^"]+)"', browser.get("/cron"))
    return str(found)


def test_a_visitor_without_write_access_has_no_buttons_and_changes_no_schedule(database_url: str) -> None:
    schedule(database_url, "on")
    with visitor(database_url) as browser:
        assert "<button>Pause" not in browser.get("/cron/schedule?name=on")
        assert browser.post("/cron/pause", {"name": "on"}, of="/login").status_code == 403
    assert not state_of(database_url, "on")


def test_many_schedules_come_in_pages(database_url: str) -> None:
    for number in range(60):
        schedule(database_url, f"s{number:02}")
    with visitor(database_url) as browser:
        first = browser.get("/cron")
        (following,) = re.findall(r'rel="next" href="([^"]+)"', first)
        second = browser.get(following)
        browser.get("/cron?after=nonsense", status=400)
        browser.get("/cron/schedule?name=none", status=400)
    found = [re.findall(r">(s\d\d)</a>", text) for text in (first, second)]
    assert [len(names) for names in found] == [50, 10]
    assert sorted(found[0] + found[1]) == [f"s{number:02}" for number in range(60)]


def test_a_running_job_is_shown_with_progress_and_its_stack(
    yard: Yard, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    (job_id,) = yard.pushed(jobs.hang, "secret")
    with yard.working(DRAIN_JOBS=jobs.MODULE), visitor(yard.database_url, yard.redis_url) as browser:
        worker = listening_rq_worker(client, tracked=True)
        wait_until(yard.effects, PATIENCE_SECONDS)
        told = {"token": 1, "done": 340, "total": 1000, "text": HOSTILE, "attempt": 1, "at": 0}
        client.set(f"drain:progress:{NAMESPACE}:{job_id}", json.dumps(told))
        text = browser.get("/workers")
        assert f"{worker.pid} on " in text
        assert f'href="/jobs/{job_id}"' in text
        assert f"/workers/stack/{job_id}" in text
        assert "340 of 1,000 (34 %)" in text
        assert has_no_markup_of_others(text)
        assert f"{worker.pid} on " in browser.get("/workers?queue=default")
        assert "No live workers match." in browser.get("/workers?queue=none")
        page = f"/workers/stack/{job_id}"
        assert ">Read the stack</button>" not in browser.get(page)
        assert f"drain stack {job_id}" in browser.get(page)
        browser.log_in()
        assert ">Read the stack</button>" in browser.get(page)
        with caplog.at_level(logging.INFO):
            answer = browser.post(f"{page}/read", of=page)
        assert answer.status_code == 200
        assert "_deep_inside" in answer.text
        assert "tests/jobs_that_hang.py" in answer.text
        assert "secret" not in re.sub(r'name="secret"', "", answer.text)
        yard.say("go")
        yard.wait_for("finished_jobs", [job_id])
        assert "is finished, not running" in browser.get(page)
        ended = browser.post(f"{page}/read", of="/workers")
        assert "is finished, not running" in ended.text
        browser.get("/workers/stack/999999", status=404)
        browser.get(f"/workers/stack/{10**30}", status=404)
    # A second one, of the job that has ended, where an earlier test has left the log at this level.
    written, *_ = [r.__dict__ for r in caplog.records if r.__dict__.get("event") == "web_write"]
    assert (written["action"], written["who"], written["job_id"]) == ("stack_read", "Anna", job_id)


def test_a_visitor_without_write_access_reads_no_stack(database_url: str, redis_url: str) -> None:
    claims(database_url, 1)
    with visitor(database_url, redis_url) as browser:
        assert browser.post("/workers/stack/1/read", of="/login").status_code == 403
        browser.log_in()
        answer = browser.post("/workers/stack/1/read", of="/workers/stack/1")
        assert answer.status_code == 200
        assert "has exited" in answer.text


def test_markup_in_names_is_escaped_on_the_workers_page(
    database_url: str, redis_url: str, client: Redis
) -> None:
    claims(database_url, 3)
    query(
        database_url, "UPDATE inflight_jobs SET job_name = %s, claimed_by = %s WHERE id = 1", HOSTILE, HOSTILE
    )
    hashes: list[Any] = [
        {"hostname": HOSTILE, "pid": HOSTILE, "queues": HOSTILE, "state": HOSTILE, "current_job": HOSTILE},
        {"hostname": b"\xff\x00\x1b[2J", "birth": "tomorrow", "last_heartbeat": "9" * 400, "pid": "1e400"},
        {"successful_job_count": "nan", "drain": NAMESPACE, "current_job": f"{NAMESPACE}-{'9' * 300}-1"},
    ]
    for number, fields in enumerate(hashes):
        client.hset(f"rq:worker:w{number}{HOSTILE}", mapping=fields)
        client.sadd("rq:workers", f"rq:worker:w{number}{HOSTILE}")
    client.set("rq:worker:none", "a string")
    client.sadd("rq:workers", "rq:worker:none", "rq:worker:expired", b"\xfe")
    client.rpush("drain:progress:test:2", "a list")
    with visitor(database_url, redis_url) as browser:
        text = browser.get("/workers")
        running = browser.get("/workers/running")
        browser.get("/workers", params={"host": HOSTILE, "queue": HOSTILE})
        stack = browser.get("/workers/stack/1")
    assert all(has_no_markup_of_others(each) for each in (text, running, stack))
    assert SHOWN in text
    assert SHOWN in stack


def test_the_page_says_so_if_redis_is_unavailable_or_not_configured(database_url: str) -> None:
    claims(database_url, 3)
    for redis_url in ("", "unix:///nonexistent.sock"):
        with visitor(database_url, redis_url) as browser:
            text = browser.get("/workers")
            assert "Live workers are unknown: " in text
            assert "/workers/stack/1" in text
            browser.log_in()
            answer = browser.post("/workers/stack/1/read", of="/workers/stack/1")
            assert answer.status_code in (200, 400)
            assert "Redis" in answer.text


def test_all_running_jobs_come_in_pages_longest_first(database_url: str) -> None:
    claims(database_url, 60)
    with visitor(database_url) as browser:
        text = browser.get("/workers")
        assert "Expired leases" in text
        first = browser.get("/workers/running")
        (following,) = re.findall(r'rel="next" href="([^"]+)"', first)
        second = browser.get(following)
        browser.get("/workers/running?after=WyJub3ciLDFd", status=400)
    found = [int(each) for text in (first, second) for each in re.findall(r"/workers/stack/(\d+)", text)]
    assert found == list(range(1, 61))


def test_bulk_runs_are_listed_under_any_name(database_url: str) -> None:
    query(database_url, "INSERT INTO bulk_runs VALUES (%s, 12345, now())", HOSTILE)
    query(database_url, "INSERT INTO bulk_runs VALUES ('backfill-20261101-000000-abcdef', 7, now())")
    with postgres.connect(database_url, "driver") as driver, visitor(database_url) as browser:
        assert bulk.try_to_run(driver, "nightly")
        for run in ("nightly", "left behind"):
            bulk.begin(driver, run, None)
        text = browser.get("/bulk")
    assert SHOWN in text
    assert has_no_markup_of_others(text)
    assert "12,345" in text
    assert re.search(r"nightly.*Copying rows.*left behind.*Driver is gone", text, re.DOTALL)
    assert ">backfill<" in text


def test_the_page_of_statistics_is_shown_in_a_sandbox(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "week <b>.html"
    with visitor(database_url) as browser:
        assert "drain web --statistics FILE" in browser.get("/statistics")
        browser.get("/statistics/page", status=400)
    with visitor(database_url, statistics=file) as browser:
        assert "is missing or cannot be shown." in browser.get("/statistics")
        browser.get("/statistics/page", status=400)
        file.write_text("<script>top.location = '/'</script>plots")
        text = browser.get("/statistics")
        assert 'href="/statistics/page"' in text
        assert "week <b>" not in text
        answer = browser.client.get("/statistics/page")
        assert answer.text.endswith("plots")
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("sandbox; default-src 'none';")
        assert "script-src" not in policy
        assert answer.headers["x-frame-options"] == "DENY"
        # All other pages have theirs.
        assert "sandbox" not in browser.client.get("/statistics").headers["content-security-policy"]
        file.unlink()
        file.mkdir()
        browser.get("/statistics/page", status=400)


def test_each_page_is_in_the_navigation(database_url: str) -> None:
    with visitor(database_url) as browser:
        text = browser.get("/")
        for path in ("/cron", "/workers", "/bulk", "/statistics"):
            assert f'href="{path}"' in text
            assert 'aria-current="page"' in browser.get(path)
    assert ids_in(database_url, "staged_jobs") == []
