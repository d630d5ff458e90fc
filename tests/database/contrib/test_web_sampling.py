"""Sparklines of waiting and running jobs on the overview, with real servers."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from drain.config import Settings
from drain.contrib.web import application, levels
from drain.contrib.web.levels import Levels
from drain.read import queues
from tests.helpers import NAMESPACE, stage_jobs, wait_until
from tests.web_pages import Visitor, browsing

SAMPLER = "drain web levels"
SPARKLINE = r'aria-label="([^"]*) (waiting|running) in the last [^"]+"'


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """Reads of all queues: by the sampling thread, and by others."""
    found, read = Counter[bool](), queues.read

    def noted(connection: object) -> object:
        found[threading.current_thread().name == SAMPLER] += 1
        return read(connection)  # type: ignore[arg-type]

    monkeypatch.setattr(queues, "read", noted)
    return found


@pytest.fixture
def browser(database_url: str, redis_url: str) -> Iterator[Visitor]:
    app = application(Settings(database_url=database_url, redis_url=redis_url, namespace=NAMESPACE))
    with browsing(app) as visiting:
        visiting.site = app.state.site  # type: ignore[attr-defined]
        with closing(app.state.site):
            yield visiting
    wait_until(lambda: not samplers())


def samplers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == SAMPLER]


def levels_of(browser: Visitor) -> Levels:
    return browser.site.levels  # type: ignore[attr-defined, no-any-return]


def test_the_thread_samples_what_the_page_shows(
    browser: Visitor, database_url: str, reads: Counter[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(levels, "EVERY_SECONDS", 0.1)
    stage_jobs(database_url, 3, queue="mail")
    assert not re.search(SPARKLINE, browser.get("/"))
    stage_jobs(database_url, 4, queue="calls")
    wait_until(lambda: reads[True] > 5)
    # The page is cached for seconds.
    found = wait_until(lambda: re.findall(SPARKLINE, browser.get("/")))
    assert found == [("3 to 7", "waiting"), ("0 to 0", "running")]


def test_visitors_share_one_thread_and_cause_no_further_query(browser: Visitor, reads: Counter[bool]) -> None:
    with ThreadPoolExecutor(4) as visitors:
        assert all(visitors.map(lambda _: "Overview" in browser.get("/"), range(8)))
    assert len(samplers()) == 1
    assert (reads[True], reads[False] > 0) == (0, True)
    assert len(levels_of(browser).curve()) <= 2
