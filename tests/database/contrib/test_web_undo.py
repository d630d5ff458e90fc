"""Undo of changed rules, and of paused or resumed schedules, from the notice of `drain web`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import psycopg
import pytest
from starlette.requests import Request
from starlette.responses import Response

import drain
from drain import queues
from drain.admission.options import as_options
from drain.contrib.web.access import Access
from drain.contrib.web.pages import undo
from drain.database.postgres import Connection
from drain.tables import crons
from tests.helpers import query
from tests.hostility import Place
from tests.sound_pages import assert_sound
from tests.web_pages import TOKEN, Visitor, visitor

OF = "/queues/mail"
PAUSED = "SELECT paused FROM crons"


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def browser(database_url: str) -> Iterator[Visitor]:
    with visitor(database_url) as browser:
        browser.log_in()
        yield browser


def sealed(browser: Visitor, where: str) -> str:
    """Value of the Undo button on a page, with its notice."""
    html = browser.get(where)
    assert_sound(html)
    found = re.search(r'name="undo" value="([^"]+)"', html)
    assert found, html
    assert 'name="undo"' not in browser.get(where)
    return found[1]


def change(browser: Visitor, was: str, **fields: str) -> str:
    assert browser.confirm("/queues/mail/rules", {"was": was, **fields}, of=OF).status_code == 303
    return sealed(browser, OF)


def rules(connection: Connection) -> dict[str, object]:
    found = queues.show(connection, "mail")
    return as_options(found) if found else {}


def test_changed_rules_are_restored_once(connection: Connection, browser: Visitor) -> None:
    before = {"rate": "10/s", "fair": True, "weights": {"acme": 3}}
    queues.change(connection, "mail", before)
    value = change(
        browser, '{"rate": "10/s", "fair": true, "weights": {"acme": 3}}', rate="20/s", ordered="yes"
    )
    assert rules(connection) == {"rate": "20/s", "ordered": True}
    done = browser.post("/undo", {"undo": value}, of=OF)
    assert done.status_code == 303
    assert "has its earlier rules again" in browser.get(done.headers["location"])
    assert rules(connection) == before
    again = browser.post("/undo", {"undo": value}, of=OF)
    assert again.status_code == 400
    assert "the rules of queue mail were changed since; nothing was undone" in again.text


def test_first_rules_are_taken_off_unless_changed_since(connection: Connection, browser: Visitor) -> None:
    browser.post("/undo", {"undo": change(browser, "{}", running="5")}, of=OF)
    assert rules(connection) == {}
    value = change(browser, "{}", running="5")
    queues.set(connection, "mail", running=6)
    refused = browser.post("/undo", {"undo": value}, of=OF)
    assert refused.status_code == 400
    assert "were changed since" in refused.text
    assert rules(connection) == {"running": 6}


def test_rules_changed_there_and_back_are_not_undone(connection: Connection, browser: Visitor) -> None:
    """The second 20/s is a later decision, which the first button must not end."""
    queues.set(connection, "mail", rate="10/s")
    value = change(browser, '{"rate": "10/s"}', rate="20/s")
    queues.set(connection, "mail", rate="10/s")
    queues.set(connection, "mail", rate="20/s")
    assert browser.post("/undo", {"undo": value}, of=OF).status_code == 400
    assert rules(connection) == {"rate": "20/s"}


def test_a_notice_that_is_kept_does_not_renew_its_undo() -> None:
    clock = [0.0]
    access = Access(token=TOKEN, now=lambda: clock[0])
    scope = {"type": "http", "scheme": "http", "server": ("localhost", 80), "path": "/", "headers": []}
    response = Response()
    access.notify(Request(scope), response, "done", {"queue": "mail"})
    cookie = response.headers["set-cookie"].partition(";")[0].encode()
    of_notice = Request(scope | {"headers": [(b"cookie", cookie)]})
    assert access.unseal_undo(access.notice(of_notice).undo) is not None
    clock[0] = 3601.0
    assert access.unseal_undo(access.notice(of_notice).undo) is None


def test_forged_and_old_values_and_visitors_who_may_not_write_are_refused(
    connection: Connection, browser: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = change(browser, "{}", running="5")
    text, _, mark = value.partition(".")
    for forged in ("", "x", f"{text}x.{mark}", f"{text}."):
        assert browser.post("/undo", {"undo": forged}, of=OF).status_code == 400
    assert browser.send("/undo", {"undo": value}).status_code == 403
    monkeypatch.setattr("drain.contrib.web.access._UNDO_SECONDS", -1)
    old = browser.post("/undo", {"undo": change(browser, '{"running": 5}', running="6")}, of=OF)
    assert "this undo is too old" in old.text
    browser.post("/logout", of="/")
    assert browser.post("/undo", {"undo": value}, of="/login").status_code == 403
    assert rules(connection) == {"running": 6}


def test_a_value_too_large_for_a_cookie_has_no_undo(connection: Connection, browser: Visitor) -> None:
    queues.set(connection, "mail", fair=True, weights={f"customer {number}": 2 for number in range(500)})
    browser.confirm("/queues/mail/rules", {"was": json.dumps(rules(connection))}, of=OF)
    html = browser.get(OF)
    assert "queue mail has new rules" in html
    assert 'name="undo"' not in html


def test_a_schedule_is_resumed_or_paused_again(
    database_url: str, connection: Connection, browser: Visitor
) -> None:
    drain.schedule(connection, "nightly", "m.f", cron="0 3 * * *")
    where = "/cron/schedule?name=nightly"
    for verb, before in (("pause", False), ("resume", True)):
        query(database_url, f"UPDATE crons SET paused = {before}")
        browser.post(f"/cron/{verb}", {"name": "nightly"}, of=where)
        value = sealed(browser, where)
        assert query(database_url, PAUSED) == [(not before,)]
        assert browser.post("/undo", {"undo": value}, of=where).status_code == 303
        assert query(database_url, PAUSED) == [(before,)]
        again = browser.post("/undo", {"undo": value}, of=where)
        assert "schedule nightly was changed since; nothing was undone" in again.text


def test_a_schedule_that_was_resumed_and_paused_again_stays_paused(
    database_url: str, connection: Connection, browser: Visitor
) -> None:
    drain.schedule(connection, "nightly", "m.f", cron="0 3 * * *")
    where = "/cron/schedule?name=nightly"
    browser.post("/cron/pause", {"name": "nightly"}, of=where)
    value = sealed(browser, where)
    crons.resume(connection, ["nightly"])
    crons.pause(connection, ["nightly"])
    assert "was changed since" in browser.post("/undo", {"undo": value}, of=where).text
    assert query(database_url, PAUSED) == [(True,)]


def test_the_operator_role_undoes_its_own_writes(place: Place) -> None:
    with place.connected("owner") as connection:
        drain.schedule(connection, "nightly", "m.f", cron="0 3 * * *")
    # Pages that read other tables need another role.
    with visitor(place.url_of("operator")) as browser:
        browser.log_in()
        browser.post("/cron/pause", {"name": "nightly"}, of="/login")
        assert browser.post("/undo", {"undo": sealed(browser, "/login")}, of="/login").status_code == 303
    assert query(place.url_of("owner"), PAUSED) == [(False,)]


def test_rules_are_locked_while_they_are_undone(database_url: str, connection: Connection) -> None:
    queues.set(connection, "mail", running=5)
    with connection.transaction(), psycopg.connect(database_url, autocommit=True) as other:
        undo.locked_rules(connection, "mail")
        other.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            queues.set(other, "mail", running=6)
