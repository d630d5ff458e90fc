"""`drain web`: the news of a page, from one thread for all who listen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import httpx
import pytest

from drain.config import Settings
from drain.contrib.web import application, live
from drain.contrib.web.clients import Visitor
from drain.contrib.web.live import FullError, Listener, Live, News
from drain.contrib.web.pages import overview
from tests.helpers import NAMESPACE, stage_jobs, wait_until
from tests.web_pages import Visitor as Browser, away, browsing

READER = "drain web live"


@pytest.fixture
def browser(database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    monkeypatch.setattr(live, "EVERY_SECONDS", 0.05)
    monkeypatch.setattr(live, "_LONGEST_SECONDS", 0.2)
    app = application(Settings(database_url=database_url, redis_url=redis_url, namespace=NAMESPACE))
    with browsing(app) as visiting:
        visiting.site = app.state.site  # type: ignore[attr-defined]
        with closing(app.state.site):
            yield visiting


def site_live(browser: Browser) -> Live:
    return browser.site.live  # type: ignore[attr-defined, no-any-return]


@contextmanager
def listening(browser: Browser, page: str = "/") -> Iterator[Iterator[tuple[str, str]]]:
    """The events of a tab, as pairs of name and text."""
    with browser.client.stream("GET", "/stream", params={"page": page}) as answer:
        assert answer.status_code == 200
        yield events(answer)


def events(answer: httpx.Response) -> Iterator[tuple[str, str]]:
    name, lines = "", list[str]()
    for line in answer.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            lines.append(line.removeprefix("data: "))
        elif not line and name:
            yield name, "\n".join(lines)
            name, lines = "", []


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == READER]


def test_a_page_updates_live(browser: Browser, database_url: str) -> None:
    with listening(browser) as news:
        assert next(news)[0] == "page"
        stage_jobs(database_url, 7, queue="mail")
        text = next(text for _, text in news if "mail" in text)
    assert 'href="/queues/mail"' in text
    assert "<html" not in text


def test_one_thread_polls_for_all_tabs(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set[str]()
    measure = overview.measure

    def noted(*args: object) -> object:
        threads.add(threading.current_thread().name)
        return measure(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(overview, "measure", noted)
    with ExitStack() as stack:
        tabs = [stack.enter_context(listening(browser)) for _ in range(10)]
        for tab in tabs:
            assert next(tab)[0] == "page"
        assert len(readers()) == 1
        assert site_live(browser).number == 10
    assert threads == {READER}
    wait_until(lambda: not site_live(browser).number and not readers())


def test_tabs_are_notified_of_a_database_outage_and_its_end(browser: Browser, database_url: str) -> None:
    with listening(browser, "/queues/mail") as news:
        assert next(news)[0] == "page"
        with away(database_url):
            text = next(text for name, text in news if name == "away")
            assert "PostgreSQL at" in text
        assert next(name for name, _ in news if name == "page")


@pytest.mark.parametrize("page", ["/nothing", "/login", "", "/stream", "//evil.example"])
def test_a_page_without_live_updates_has_no_stream(browser: Browser, page: str) -> None:
    assert browser.client.get("/stream", params={"page": page}).status_code == 404


def test_shutting_down_ends_all_streams(browser: Browser) -> None:
    with listening(browser) as news:
        next(news)
        site_live(browser).close()
        for _ in news:
            pass
    assert browser.client.get("/stream", params={"page": "/"}).status_code == 503


def test_a_tab_that_reads_nothing_is_dropped() -> None:
    async def run() -> None:
        slow = Listener()
        for number in range(10):
            slow.offer(News("page", str(number)))
        await asyncio.wait_for(slow.ended(), 30)
        assert (await slow.next()).text == "0"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("many", "one"),
    [
        (Visitor("10.0.0.1", "a"), Visitor("10.0.0.2", "b")),
        (Visitor("10.0.0.1", "a"), Visitor("10.0.0.1", "b")),
    ],
    ids=["of another address", "of the same address"],
)
@pytest.mark.parametrize("bound", ["LISTENERS", "_TOPICS"])
def test_one_visitors_streams_make_room_for_other_visitors(
    monkeypatch: pytest.MonkeyPatch, bound: str, many: Visitor, one: Visitor
) -> None:
    monkeypatch.setattr(live, bound, 4)

    async def run() -> None:
        listeners = Live()
        held = [listeners.listen(f"/queues/{number}", lambda: "", many) for number in range(4)]
        fair = [listeners.listen(f"/cron/{number}", lambda: "", one) for number in range(2)]
        # The ends are set on this loop.
        await asyncio.sleep(0)
        for visitor in (one, many):
            with pytest.raises(FullError, match="too many tabs"):
                listeners.listen("/workers", lambda: "", visitor)
        assert sum(has_ended(each) for each in held) == 2
        assert not any(has_ended(each) for each in fair)
        assert listeners.number == 4
        listeners.close()

    asyncio.run(run())


def has_ended(listener: Listener) -> bool:
    return listener._end.is_set()


def test_the_number_of_listeners_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LISTENERS", 3)

    async def run() -> None:
        listeners = Live()
        for _ in range(3):
            listeners.listen("/", lambda: "")
        with pytest.raises(FullError, match="too many tabs"):
            listeners.listen("/", lambda: "")
        listeners.close()

    asyncio.run(run())
