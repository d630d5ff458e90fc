"""`drain web`: what visitors with bad intentions send, and rows that others have written."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import signal
import subprocess
import sys
from contextlib import closing
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.requests import Request

from drain.config import Settings
from drain.contrib.web import application
from drain.contrib.web.forms import FormError, read_form
from tests.helpers import NAMESPACE, PATIENCE_SECONDS, ROOT, environment, query
from tests.web_pages import TOKEN, browsing, served, visitor

DEAD = """
INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, attempts,
    fencing_token, last_error, reason, explanation, history)
VALUES (%s, 'm.f', '[]', '{}', %s, 0, now(), now(), 1, 1, '{}', 'failed', 'x', %s)
"""
# A dead job, and jobs that are delivered, claimed, to be tried again, and finished.
TIMELESS = """
UPDATE dead_jobs SET died_at = '{time}', scheduled_at = '{time}', staged_at = '{time}';
INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, delivery, scheduled_at, staged_at,
    moved_at, claimed_at, claimed_by, lease_expires_at, next_run_at, failed_at, last_error)
SELECT id, 'm.f', '[]', '{{}}', 'mail', 0, id, '{time}', '{time}', '{time}',
    CASE WHEN id > 6 THEN '{time}'::timestamptz END, 'host:1:abcdef',
    CASE WHEN id = 7 THEN '{time}'::timestamptz END, CASE WHEN id = 8 THEN '{time}'::timestamptz END,
    CASE WHEN id = 8 THEN '{time}'::timestamptz END, '{{}}' FROM generate_series(6, 8) AS id;
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token)
SELECT 9, 'm.f', '[]', '{{}}', 'mail', 0, '{time}', '{time}', '{time}', '{time}', '{time}', 1, 1;
"""
DEEP = "[" * 5000
SEARCHES = ("/search?q=m.f", "/search?q=queue:mail+name:m.f", "/search?q=state:retrying")
SHOP = """
import socket, uvicorn, drain.contrib.web
from fastapi import FastAPI
app = FastAPI()
app.mount("/jobs", drain.contrib.web.application())
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app)).run([listening])
"""


def place(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_forged_address_is_refused(
    database_url: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    at = "2026-01-01T00:00:00+00:00"
    places = [
        DEEP,
        *(json.dumps(values) for values in (["\0"], ["\ud800"], [at, "\0"], [at, "\ud800"], [2**62, 1])),
    ]
    lists = ("/queues/mail/next", "/queues/mail/keys", "/cron", "/bulk", "/workers/running", "/flows")
    addresses = [
        "/queues/%00",
        "/queues/%00/next",
        "/queues/%00/keys",
        "/cron/schedule?name=%00",
        "/stream?page=/queues/%00",
        "/flows/%00",
        "/flows/99999999999999999999",
        f"/flows/{'1' * 5000}",
        "/flows/%ED%A0%80",
        f"/workers/stack/{'1' * 5000}",
        *(f"{each}?after={place(text)}" for each in lists for text in places),
    ]
    with visitor(database_url, redis_url) as browser:
        for address in addresses:
            assert browser.client.get(address).status_code in (400, 404), address
    assert failures(caplog) == []


@pytest.mark.parametrize(
    ("action", "fields"),
    [
        ("/queues/%00/pause", {}),
        ("/queues/mail/pause", {"key": "\0"}),
        ("/queues/mail/rules", {"was": DEEP}),
        ("/queues/mail/rules", {"running": "9" * 400}),
        ("/cron/pause", {"name": "\0"}),
        (f"/workers/stack/{'1' * 5000}/read", {}),
    ],
)
def test_a_forged_form_is_refused(
    database_url: str, caplog: pytest.LogCaptureFixture, action: str, fields: dict[str, str]
) -> None:
    with visitor(database_url) as browser:
        browser.log_in()
        assert browser.post(action, fields).status_code in (400, 404)
        # A browser sends no such origin.
        assert browser.post(action, fields, headers={"Origin": "http://["}).status_code == 403
    assert failures(caplog) == []


def test_hostile_rows_do_not_break_any_page(database_url: str, redis_url: str) -> None:
    for queue in ("a/b", "..", "?x#y", "%2f", '"', "\\"):
        query(database_url, "INSERT INTO queue_pauses (queue, reason) VALUES (%s, 'x')", queue)
    query(database_url, DEAD, 5, "a/b", "[{}]")
    with visitor(database_url, redis_url) as browser:
        browser.log_in()
        overview = browser.get("/")
        assert 'href="/queues/a%2Fb"' in overview
        assert 'href="/queues/%3Fx%23y"' in overview
        assert "Death 1: ?" in browser.get("/jobs/5")
        for queue in ("%22", "%5C"):
            for page in ("", "/next", "/keys"):
                assert browser.client.get(f"/queues/{queue}{page}").status_code in (200, 400)
        # No job can be staged for such a queue.
        seen_at = {"seen_at": "2100-01-01T00:00:00+00:00"}
        answer = browser.post("/jobs/5/retry", seen_at, of="/jobs/5")
        assert answer.status_code == 400
        assert "PostgreSQL refused" in answer.text


@pytest.mark.parametrize("time", ["infinity", "-infinity", "4000-01-01 BC"])
def test_a_row_with_an_impossible_time_does_not_break_any_page(
    database_url: str, redis_url: str, time: str
) -> None:
    query(database_url, DEAD, 5, "mail", "[]")
    query(database_url, TIMELESS.format(time=time))
    with visitor(database_url, redis_url) as browser:
        for page in ("/", "/queues/mail", "/workers", "/workers/running", "/dead", *SEARCHES):
            browser.get(page)
        for job_id in (5, 6, 7, 8, 9):
            assert "m.f" in browser.get(f"/jobs/{job_id}")


def test_wrong_tokens_from_one_address_do_not_lock_out_others(database_url: str) -> None:
    with visitor(database_url, behind_proxy=True) as browser:
        mallory, anna = {"X-Forwarded-For": "203.0.113.7"}, {"X-Forwarded-For": "203.0.113.8"}
        for status in [*[403] * 10, 429]:
            answer = browser.post("/login", {"token": "x"}, of="/login", headers=mallory)
            assert answer.status_code == status
        assert browser.post("/login", {"token": TOKEN}, of="/login", headers=anna).status_code == 303
        # One machine has all addresses of its network of IPv6.
        tried = [
            browser.post("/login", {"token": "x"}, of="/login", headers={"X-Forwarded-For": f"2001:db8::{n}"})
            for n in range(1, 12)
        ]
        assert [answer.status_code for answer in tried] == [*[403] * 10, 429]


@pytest.mark.parametrize("behind_proxy", [False, True])
def test_a_forged_client_address_does_not_reset_the_limit(database_url: str, behind_proxy: bool) -> None:
    with visitor(database_url, behind_proxy=behind_proxy) as browser:
        tried = []
        for number in range(11):
            # A proxy adds the address that it sees behind those that the visitor has sent.
            address = f"203.0.113.{number}{', 198.51.100.1' if behind_proxy else ''}"
            headers = {"X-Forwarded-For": address}
            tried.append(browser.post("/login", {"token": "x"}, of="/login", headers=headers).status_code)
        assert tried == [*[403] * 10, 429]


def test_responses_of_private_pages_are_never_cached(database_url: str, tmp_path: Any) -> None:
    def broken(_request: Request) -> str:
        raise RuntimeError("the session's database is away")

    (tmp_path / "page.html").write_text("<p>numbers</p>")
    settings = Settings(database_url=database_url, namespace=NAMESPACE)
    app = application(settings, user=broken, private=True)
    with browsing(app) as browser, closing(app.state.site):
        answer = browser.client.get("/")
        assert (answer.status_code, answer.headers["cache-control"]) == (500, "no-store")
        assert "away" not in answer.text
    with visitor(
        database_url, private=True, trust_header="X-User", statistics=tmp_path / "page.html"
    ) as browser:
        browser.client.headers["X-User"] = "anna"
        assert browser.client.get("/statistics/page").headers["cache-control"] == "private, no-cache"
        assert browser.client.get("/").headers["cache-control"] == "no-store"


def test_a_form_that_does_not_arrive_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drain.contrib.web.forms._ARRIVAL_SECONDS", 0.01)
    headers = [(b"content-type", b"application/x-www-form-urlencoded")]

    async def receive() -> Any:
        await asyncio.Event().wait()

    with pytest.raises(FormError, match="has not arrived within"):
        asyncio.run(read_form(Request({"type": "http", "method": "POST", "headers": headers}, receive)))


def test_a_server_that_cancels_a_stream_logs_no_error(
    database_url: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = FastAPI()
    jobs = application(Settings(database_url=database_url, redis_url=redis_url, namespace=NAMESPACE))
    shop.mount("/jobs", jobs)
    with closing(jobs.state.site), httpx.Client(timeout=PATIENCE_SECONDS) as client:
        with served(shop) as address:
            answer = client.send(client.build_request("GET", f"{address}/jobs/stream?page=/"), stream=True)
            lines = answer.iter_lines()
            assert next(lines).startswith("retry")
        assert jobs.state.site.live.number == 0
        answer.close()
    assert not any("ASGI" in text for text in failures(caplog))


@pytest.mark.usefixtures("processes")
def test_a_signal_stops_the_application_that_mounts_the_page(database_url: str, redis_url: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SHOP],
        env=environment(database_url, redis_url),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as shop:
        try:
            assert shop.stdout
            address = f"http://127.0.0.1:{shop.stdout.readline().strip()}/jobs/stream?page=/"
            with httpx.stream("GET", address, timeout=PATIENCE_SECONDS) as answer:
                lines = answer.iter_lines()
                assert next(lines).startswith("retry")
                shop.send_signal(signal.SIGTERM)
                output, _ = shop.communicate(timeout=PATIENCE_SECONDS)
        finally:
            shop.kill()
    assert "Traceback" not in output
    assert "Application shutdown complete" in output
