"""Numbers of jobs: `drain check` and the page say what `drain status` says."""

import re

from drain.contrib.check.thresholds import Thresholds, judge
from drain.database import postgres
from drain.read import system
from tests.database.contrib.test_web import text_of
from tests.database.test_one_definition import NUMBERS, WAITING, put_a_job_of_each_kind
from tests.web_pages import visitor


def test_the_check_and_the_page_agree_with_the_status(database_url: str, redis_url: str) -> None:
    put_a_job_of_each_kind(database_url)
    with postgres.connect(database_url, "tests") as connection:
        found = system.read(connection)
    figures = {each.name: each.value for each in judge(found, Thresholds()).figures}
    waits = sum(WAITING.values()) - WAITING["scheduled"] - WAITING["retrying"] - WAITING["parked"]
    expected = {name: NUMBERS[name] for name in ("running", "retrying", "dead")} | {"waiting": waits}
    assert {name: figures[name] for name in expected} == expected
    with visitor(database_url, redis_url) as browser:
        text = text_of(browser.get("/queues/mail"))
    for words in (
        "2 scheduled",
        "3 list full",
        "1 due",
        "5 queued",
        "2 retrying",
    ):
        assert words in text, text
    assert re.search(r"\bRunning 3\b", text), text
