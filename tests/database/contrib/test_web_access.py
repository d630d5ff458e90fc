"""`drain web`: write access, and requests that the page refuses."""

from __future__ import annotations

import logging
import re
from typing import Any

import psycopg
import pytest
from starlette.requests import Request

from drain import queues
from drain.contrib.web.access import SESSION, VISIT
from drain.contrib.web.pages import ROUTES
from drain.errors import ConfigError
from tests.helpers import query, stage_jobs
from tests.hostility import Place
from tests.web_pages import TOKEN, visitor

PAUSES = "SELECT queue, job_name, key FROM queue_pauses"
OF = "/queues/mail"


def signed_in(page: str) -> str | None:
    """The name of the visitor whom the page lets write; None if it asks for a token."""
    found = re.search(r'<div class="who">\s*<span>([^<]+)</span>\s*<form method="post"', page)
    assert bool(found) != (">Sign in</a>" in page)
    return found[1] if found else None


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 400),
        ("localhost.evil.example", 400),
        ("", 400),
        ("localhost", 200),
        ("LOCALHOST.", 200),
        ("127.0.0.1:9189", 200),
        ("[::1]:9189", 200),
        ("jobs.example.com", 200),
        ("jobs.example.com:8443", 200),
    ],
)
def test_only_configured_host_names_are_served(database_url: str, host: str, status: int) -> None:
    with visitor(database_url, hosts=["jobs.example.com"]) as browser:
        assert browser.client.get("/", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    "origin",
    [
        *("", "null", "http://", "http://evil.example", "http://localhost:1", "http://localhost", "file://"),
        *("http://127.0.0.1:1", "http://127.0.0.1", "https://jobs.example.com:8443"),
        "http://jobs.example.com:9189",
    ],
)
def test_a_form_from_another_origin_is_refused(database_url: str, origin: str) -> None:
    with visitor(database_url, hosts=["127.0.0.1:9189", "jobs.example.com"]) as browser:
        browser.log_in()
        answer = browser.post("/queues/mail/pause", of=OF, headers={"Origin": origin})
        assert answer.status_code == 403
    assert query(database_url, PAUSES) == []


@pytest.mark.parametrize(
    "origin", ["https://jobs.example.com", "https://JOBS.example.com:443", "https://ops.example.com:8443"]
)
def test_a_form_from_the_public_proxy_address_is_accepted(database_url: str, origin: str) -> None:
    with visitor(database_url, hosts=["jobs.example.com", "ops.example.com:8443"]) as browser:
        browser.log_in()
        assert browser.post("/queues/mail/pause", of=OF, headers={"Origin": origin}).status_code == 303


def test_a_form_without_the_visitors_own_secret_is_refused(database_url: str) -> None:
    with visitor(database_url) as browser, visitor(database_url) as other:
        browser.log_in()
        other.log_in()
        for secret in ("", "x", "ä", other.secret(OF)):
            answer = browser.send("/queues/mail/pause", {"secret": secret})
            assert answer.status_code == 403
            assert "reload the page" in answer.text
        # A visitor's cookie of somebody's own making is none.
        browser.client.cookies.set(VISIT, "", domain="localhost.local")
        assert browser.send("/queues/mail/pause", {"secret": browser.secret(OF)}).status_code in (303, 403)
    assert len(query(database_url, PAUSES)) <= 1


def test_a_visitor_without_a_token_cannot_write(database_url: str) -> None:
    with visitor(database_url) as browser:
        assert browser.post("/queues/mail/pause", of="/login").status_code == 403
        for wrong in ("", "a token", TOKEN + "x", "ä"):
            assert browser.post("/login", {"token": wrong}, of="/login").status_code == 403
        assert browser.post("/queues/mail/pause", of="/login").status_code == 403
        assert 'action="/queues/mail/pause"' not in browser.get(OF)
    assert query(database_url, PAUSES) == []


def test_failed_logins_are_rate_limited(database_url: str) -> None:
    with visitor(database_url) as browser:
        tried = [browser.post("/login", {"token": "x"}, of="/login").status_code for _ in range(10)]
        assert tried == [403] * 10
        assert browser.post("/login", {"token": TOKEN}, of="/login").status_code == 429


def test_the_cookie_of_a_login_cannot_be_forged(database_url: str) -> None:
    with visitor(database_url) as browser, visitor(database_url, token="another token of the page") as other:
        other.log_in(token="another token of the page")
        answer = browser.post("/login", {"token": TOKEN, "name": "Anna"}, of="/login")
        flags = answer.headers["set-cookie"].lower()
        assert "httponly" in flags
        assert "samesite=strict" in flags
        assert TOKEN not in answer.headers["set-cookie"]
        assert signed_in(browser.get("/")) == "Anna"
        true, false = browser.client.cookies[SESSION], other.client.cookies[SESSION]
        text, _, mark = true.partition(".")
        for forged in (false, f"{text}x.{mark}", f"{text}.", f".{mark}", text, "", "ä.b"):
            answer = browser.client.get("/", headers={b"Cookie": f"{SESSION}={forged}".encode("latin-1")})
            assert answer.status_code == 200
            assert signed_in(answer.text) is None


def test_a_visitor_cannot_write_after_logging_out(database_url: str) -> None:
    with visitor(database_url) as browser:
        browser.log_in()
        assert signed_in(browser.get("/")) == "Anna"
        browser.post("/logout", of="/")
        assert signed_in(browser.get("/")) is None
        assert 'action="/queues/mail/pause"' not in browser.get(OF)


def test_a_login_returns_to_the_page_but_never_to_another_site(database_url: str) -> None:
    with visitor(database_url) as browser:
        for to, leads_to in (
            ("/queues/mail", "/queues/mail"),
            ("//evil.example", "/"),
            ("https://evil.example", "/"),
        ):
            answer = browser.post("/login", {"token": TOKEN, "to": to}, of="/login")
            assert answer.headers["location"] == leads_to


def test_a_user_authenticated_by_the_proxy_may_write(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "drain.contrib.web")
    with visitor(database_url, token=None, trust_header="X-Remote-User") as browser:
        assert browser.send("/queues/mail/pause", {"secret": "x"}).status_code == 403
        browser.client.headers["X-Remote-User"] = "anna@example.com"
        assert browser.post("/queues/mail/pause", of=OF).status_code == 303
        # One of the two is the visitor's own.
        twice: Any = [("X-Remote-User", "anna"), ("X-Remote-User", "mallory")]
        page = browser.client.get(OF, headers=twice).text
        assert "<span>Read-only</span>" in page
        assert 'action="/queues/mail/pause"' not in page
    (event,) = [record for record in caplog.records if getattr(record, "event", "") == "web_write"]
    assert vars(event)["who"] == "anna@example.com"
    assert query(database_url, "SELECT reason FROM queue_pauses") == [
        ("paused on the page (anna@example.com)",)
    ]


def test_the_application_callback_decides_whether_a_user_may_write(database_url: str) -> None:
    def user(request: Request) -> str | None:
        return request.headers.get("x-session")

    with visitor(database_url, token=None, user=user) as browser:
        assert "<span>Read-only</span>" in browser.get("/")
        browser.client.headers["X-Session"] = "anna"
        assert browser.post("/queues/mail/pause", of=OF).status_code == 303


def test_a_write_to_several_jobs_requires_confirmation(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "drain.contrib.web")
    stage_jobs(database_url, 3, queue="mail")
    held = {"queue": "mail", "key": "their <b>server</b>"}
    with visitor(database_url) as browser:
        browser.log_in()
        assert browser.post("/queues/mail/pause", held, of=OF).status_code == 303
        asked = browser.post("/queues/mail/resume", held, of=OF)
        assert (
            "Resume queue mail key their &lt;b&gt;server&lt;/b&gt;? 3 jobs of queue mail wait now."
            in asked.text
        )
        assert 'value="their &lt;b&gt;server&lt;/b&gt;"' in asked.text
        assert browser.post("/queues/mail/resume", {**held, "confirmed": "2"}, of=OF).status_code == 200
        assert query(database_url, PAUSES) == [("mail", None, held["key"])]
        assert browser.confirm("/queues/mail/resume", held, of=OF).status_code == 303
        assert query(database_url, PAUSES) == []
    events = [vars(record) for record in caplog.records if getattr(record, "event", "") == "web_write"]
    assert [event["action"] for event in events] == ["queue_pause", "queue_resume"]
    assert {event["who"] for event in events} == {"Anna"}
    assert events[1]["given"] == {**held, "confirmed": "3"}
    assert TOKEN not in caplog.text


def test_pauses_of_a_key_and_of_its_queue_are_independent(database_url: str) -> None:
    with visitor(database_url) as browser:
        browser.log_in()
        browser.post("/queues/mail/pause", {"key": "acme", "lasts": "10m"}, of=OF)
        browser.post("/queues/mail/pause", of=OF)
        assert query(database_url, PAUSES) == [("mail", None, "acme"), ("mail", None, None)]
        browser.post("/queues/mail/resume", {"queue": "mail", "job": "", "key": "acme"}, of=OF)
        assert query(database_url, PAUSES) == [("mail", None, None)]
        again = browser.post("/queues/mail/resume", {"queue": "mail", "key": "acme"}, of=OF)
        assert again.status_code == 400
        assert "not paused: queue mail key acme" in again.text
        assert browser.post("/queues/mail/pause", {"lasts": "soon"}, of=OF).status_code == 400


def test_a_rules_form_changes_only_the_edited_rules(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        queues.set(connection, "mail", running=5, rate="10/s")
        with visitor(database_url) as browser:
            browser.log_in()
            seen = {"was": '{"running": 5, "rate": "10/s"}', "running": "5", "rate": "20/s", "weights": ""}
            queues.set(connection, "mail", running=7)
            asked = browser.post("/queues/mail/rules", seen, of=OF)
            assert "Maximum start rate: 10/s → 20/s." in asked.text
            assert 'href="/queues/mail">Cancel' in asked.text
            assert str(queues.show(connection, "mail").rate) == "10/s"  # type: ignore[union-attr]
            assert browser.confirm("/queues/mail/rules", seen, of=OF).status_code == 303
            rules = queues.show(connection, "mail")
            assert rules is not None
            assert (rules.running, str(rules.rate)) == (7, "20/s")
            again = browser.post("/queues/mail/rules", seen, of=OF)
            assert again.status_code == 400
            assert "queue mail has these rules already" in again.text
            wrong = browser.post("/queues/mail/rules", {**seen, "rate": "fast"}, of=OF)
            assert wrong.status_code == 400
            assert "a rate is written as 100/s" in wrong.text
            browser.confirm(
                "/queues/mail/rules", {"fair": "yes", "weights": "acme=3\nb=0.5", "was": "{}"}, of=OF
            )
            rules = queues.show(connection, "mail")
            assert rules is not None
            assert (rules.fair, dict(rules.weights)) == (True, {"acme": 3, "b": 0.5})


def test_a_rule_that_another_tab_has_changed_is_not_overwritten(database_url: str) -> None:
    form = {"was": '{"rate": "10/s"}', "rate": "20/s"}
    with psycopg.connect(database_url, autocommit=True) as connection, visitor(database_url) as browser:
        browser.log_in()
        queues.set(connection, "mail", rate="10/s")
        asked = browser.post("/queues/mail/rules", form, of=OF)
        assert "10/s → 20/s" in asked.text
        queues.set(connection, "mail", rate="5/s")
        for confirmed in ({}, {"confirmed": "2"}):
            refused = browser.post("/queues/mail/rules", form | confirmed, of=OF)
            assert refused.status_code == 400
            assert "Maximum start rate of queue mail was changed since the form was loaded" in refused.text
        assert str(queues.show(connection, "mail").rate) == "5/s"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "mode", [{"token": TOKEN}, {"token": None}, {"trust_header": "X-User"}, {"user": lambda _: None}]
)
def test_no_action_is_open_to_readers_or_to_forms_of_others(
    database_url: str, mode: dict[str, Any], subtests: pytest.Subtests
) -> None:
    with visitor(database_url, **{"token": None, **mode}) as browser, visitor(database_url) as other:
        other.log_in()
        # A visitor who cannot write has a secret only on the login page.
        secret = browser.secret() if mode.get("token") else "x"
        paths = {re.sub(r"\{\w+\}", "7", route.path) for route in ROUTES if "POST" in (route.methods or ())}
        assert len(paths) > 15
        for path in paths - {"/login", "/logout"}:
            with subtests.test(path):
                for sent in ({}, {"secret": ""}, {"secret": other.secret("/")}, {"secret": secret}):
                    assert browser.send(path, {**sent, "name": "7"}).status_code == 403
                foreign = other.post(path, of="/", headers={"Origin": "https://evil.example"})
                assert foreign.status_code == 403
                assert "comes from another site" in foreign.text


def test_the_inspection_role_reads_every_page_and_writes_nothing(place: Place, redis_url: str) -> None:
    stage_jobs(place.url_of("owner"), queue="mail", key="acme")
    with visitor(place.url_of("inspection"), redis_url) as browser:
        for path in ("/", "/queues/mail", "/queues/mail/next", "/queues/mail/keys"):
            browser.get(path)
        browser.log_in()
        refused = browser.post("/queues/mail/pause", of=OF)
        assert refused.status_code == 403
        assert "permission denied for table queue_pauses" in refused.text
        assert "drain roles" in refused.text


@pytest.mark.parametrize("body", [b"secret=%ff", b"a" * 70_000, b"&".join(b"a=1" for _ in range(300))])
def test_a_form_that_cannot_be_read_is_refused(database_url: str, body: bytes) -> None:
    with visitor(database_url) as browser:
        headers = {
            "Origin": str(browser.client.base_url).rstrip("/"),
            "Content-Type": "application/x-www-form-urlencoded",
        }
        assert browser.client.post("/login", content=body, headers=headers).status_code == 400
        headers["Content-Type"] = "text/plain"
        assert browser.client.post("/login", content=b"token=x", headers=headers).status_code == 400


def test_a_private_page_requires_write_access_to_read(database_url: str) -> None:
    stage_jobs(database_url, queue="mail")
    with visitor(database_url, private=True) as browser:
        for path in ("/", "/queues/mail", "/queues/mail/next"):
            answer = browser.client.get(path)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/login?to=")
        assert browser.client.get("/stream?page=/").status_code == 403
        browser.log_in()
        assert "mail" in browser.get("/")
    with visitor(database_url, private=True, token=None, user=lambda _: None) as browser:
        assert "This page is private" in browser.get("/", status=403)
    with (
        pytest.raises(ConfigError, match="closed to everyone"),
        visitor(database_url, token=None, private=True),
    ):
        pass


def test_a_page_without_live_updates_has_no_stream(database_url: str) -> None:
    with visitor(database_url, live=False) as browser:
        assert "data-stream" not in browser.get("/")
        assert browser.client.get("/stream?page=/").status_code == 404
