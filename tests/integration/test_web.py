"""`drain web`: pages, writes and who may, on real servers."""

from __future__ import annotations

from tests.helpers import query, stage_jobs
from tests.web_pages import visitor


def test_the_overview_names_each_queue(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url, 3, queue="mail")
    with visitor(database_url, redis_url) as browser:
        text = browser.get("/")
    assert ">mail</a>" in text


def test_who_has_the_token_pauses_a_queue(database_url: str) -> None:
    with visitor(database_url) as browser:
        browser.log_in()
        answer = browser.post("/queues/mail/pause", of="/queues/mail")
        assert answer.status_code == 303
        assert "paused: queue mail" in browser.get(answer.headers["location"])
    assert query(database_url, "SELECT queue FROM queue_pauses") == [("mail",)]


def test_who_has_no_token_writes_nothing(database_url: str) -> None:
    with visitor(database_url) as browser:
        assert browser.post("/queues/mail/pause", of="/login").status_code == 403
    assert query(database_url, "SELECT queue FROM queue_pauses") == []
