"""Every page of `drain web` in Chromium: with crowded tables, hostile texts, wide and narrow, light and dark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from benchmarks.crowd import HOSTILE, SCRIPT, fill, fill_with_hostile_texts
from drain.database import postgres
from tests.chromium import NARROW, WIDE, chromium, is_hacked, overhang, severe_findings, tab
from tests.helpers import PATIENCE_SECONDS
from tests.servers import _database
from tests.web_pages import dashboard, log_in

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

MANY = 100_000
# Pages as people reach them; those of one job are added for each state.
PAGES = (
    *("/", "/queues/queue-00", "/queues/hostile", "/queues/hostile/keys", "/queues/queue-00/next", "/login"),
    *("/dead", "/cron", "/workers", "/workers/running", "/bulk", "/statistics", "/design"),
    *("/flows", "/flows/nightly"),
    *("/search", "/search?q=queue:hostile", "/search?q=state:asleep", "/search?q=queue:none"),
)
WAYS = [(WIDE, False), (NARROW, True)]
MILLISECONDS = PATIENCE_SECONDS * 1000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def crowded(servers: Any, template: str) -> Iterator[str]:
    """URL of a database with a hundred thousand jobs in every state, and some whose texts are hostile."""
    with _database(servers, template) as url, closing(postgres.connect(url, "crowd")) as connection:
        fill(connection, staged=MANY, inflight=MANY, finished=MANY, dead=MANY)
        fill_with_hostile_texts(connection)
        with connection.transaction():
            ((flow_id,),) = connection.execute(
                'SELECT id FROM drain_flow(\'{"name": "nightly"}\')'
            ).fetchall()
            first = None
            for node in ("fetch", "<script>window.hacked = true</script>", "load"):
                options = json.dumps({"flow": flow_id, "node": node, "after": [first] if first else []})
                ((first,),) = connection.execute(
                    "SELECT drain_stage('m.f', '[]', %s::text::jsonb)", (options,)
                ).fetchall()
        yield url


@pytest.fixture(scope="module")
def address(servers: Any, crowded: str) -> Iterator[str]:
    with dashboard(crowded, servers.redis_url) as found:
        yield found


@pytest.fixture(scope="module")
def addresses_of_jobs(crowded: str) -> list[str]:
    """Pages of a job of each state, hostile ones among them."""
    with closing(postgres.connect(crowded, "test")) as connection:
        return [
            f"/jobs/{job_id}"
            for table in ("staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs")
            for (job_id,) in connection.execute(
                f"(SELECT id FROM {table} WHERE queue <> 'hostile' ORDER BY id LIMIT 2) "
                f"UNION ALL (SELECT id FROM {table} WHERE queue = 'hostile' LIMIT 9)".encode()
            )
        ]


def pages_of(address: str, jobs: list[str]) -> list[str]:
    return [*PAGES, *jobs[::11]]


@pytest.mark.parametrize(("size", "dark"), WAYS, ids=["wide", "narrow dark"])
def test_every_page_is_accessible_and_fits_its_window(
    browser: Browser, address: str, addresses_of_jobs: list[str], size: tuple[int, int], dark: bool
) -> None:
    with tab(browser, address, size, dark=dark) as page:
        log_in(page)
        for path in pages_of(address, addresses_of_jobs):
            answer = page.goto(path)
            assert answer is not None
            assert answer.status == 200, path
            assert severe_findings(page) == [], path
            assert overhang(page) == 0, path
            assert page.title().endswith("job-drain"), path


def test_untrusted_text_never_runs_as_a_script(
    browser: Browser, address: str, addresses_of_jobs: list[str]
) -> None:
    searches = [f"/search?{urlencode({'q': text})}" for text in HOSTILE]
    lists = [
        "/",
        "/queues/hostile",
        "/dead",
        "/dead?queue=hostile",
        "/cron",
        "/workers",
        "/flows",
        "/flows/nightly",
    ]
    with tab(browser, address) as page:
        log_in(page)
        for path in [*lists, *searches, *addresses_of_jobs]:
            page.goto(path)
            assert not is_hacked(page), path
            assert page.locator("main script, main img, main svg[onload], main [onfocus]").count() == 0, path
            for link in page.locator("a").all():
                assert str(link.get_attribute("href")).startswith(("/", "?", "#", address)), path


def test_the_keyboard_alone_reaches_the_content_and_every_link(browser: Browser, address: str) -> None:
    with tab(browser, address) as page:
        page.goto("/")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.closest('main') !== null")
        # The place of the keyboard is seen.
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"


def focused(page: Page, what: str) -> str:
    return str(page.evaluate(f"document.activeElement.{what}"))


def test_keys_open_pages_and_the_search(browser: Browser, address: str) -> None:
    with tab(browser, address) as page:
        page.goto("/")
        page.keyboard.press("/")
        assert focused(page, "id") == "find"
        # In a field, a key is a letter.
        page.keyboard.type("g f j ? /")
        assert page.locator("#find").input_value() == "g f j ? /"
        assert page.locator("dialog[open]").count() == 0
        page.locator("h1").click()
        page.keyboard.press("f")
        page.keyboard.press("g")
        page.keyboard.press("x")
        page.keyboard.press("f")
        assert page.get_by_role("heading", level=1).inner_text() == "Overview"
        for key, path in (("f", "/dead"), ("s", "/cron"), ("w", "/workers"), ("b", "/bulk"), ("o", "/")):
            page.keyboard.press("g")
            page.keyboard.press(key)
            page.wait_for_url(address + path, timeout=MILLISECONDS)
        page.goto("/search?q=queue:hostile")
        page.keyboard.press("/")
        assert focused(page, "id") == "q"


def test_keys_move_between_rows_and_open_one(browser: Browser, address: str) -> None:
    with tab(browser, address) as page:
        page.goto("/search?q=queue:queue-00 state:dead")
        links = page.locator("main tbody th a")
        ids = links.all_inner_texts()
        assert len(ids) > 2
        for key, row in (("j", 0), ("j", 1), ("j", 2), ("k", 1), ("k", 0), ("k", 0)):
            page.keyboard.press(key)
            assert focused(page, "textContent") == ids[row]
            assert page.locator("tr:focus-within").count() == 1
            assert page.locator("tr:focus-within a").first.inner_text() == ids[row]
        for _ in ids:
            page.keyboard.press("j")
        page.keyboard.press("j")
        assert focused(page, "textContent") == ids[-1]
        page.keyboard.press("Enter")
        page.wait_for_url(f"{address}/jobs/{ids[-1]}", timeout=MILLISECONDS)
        # A page without rows.
        page.goto("/login")
        page.locator("h1").click()
        page.keyboard.press("j")
        assert page.locator("tr:focus-within").count() == 0


def test_searches_are_saved_and_deleted_by_keyboard(browser: Browser, address: str) -> None:
    with tab(browser, address) as page:
        page.goto("/search?q=queue:hostile state:dead")
        saved = page.get_by_role("region", name="Saved searches")
        for name in (SCRIPT, "second"):
            saved.get_by_label("Name").focus()
            page.keyboard.type(name)
            page.keyboard.press("Enter")
            saved.get_by_role("status").filter(has_text=f"Saved {name}.").wait_for(timeout=MILLISECONDS)
        assert severe_findings(page) == []
        assert not is_hacked(page)
        page.goto("/search?q=other")
        saved.get_by_label("Name").fill("second")
        saved.get_by_role("button", name="Save this search").press("Enter")
        assert saved.locator("code").all_inner_texts() == ["queue:hostile state:dead", "other"]
        saved.get_by_role("button", name="Delete second").press("Enter")
        assert focused(page, "getAttribute('aria-label')") == f"Delete {SCRIPT}"
        saved.get_by_role("link", name=SCRIPT).press("Enter")
        page.wait_for_url("**/search?q=queue*", timeout=MILLISECONDS)
        assert page.locator("#q").input_value() == "queue:hostile state:dead"
        saved.get_by_role("button", name="Delete").press("Enter")
        assert focused(page, "name") == "name"
        assert page.evaluate("Object.values(localStorage)") == ["[]"]


def test_without_storage_or_scripts_searches_are_not_saved(browser: Browser, address: str) -> None:
    with tab(browser, address) as page:
        page.add_init_script(
            "Object.defineProperty(window, 'localStorage', "
            "{ get() { throw new DOMException('no', 'SecurityError'); } })"
        )
        page.goto("/search?q=mail")
        page.keyboard.press("?")
        page.get_by_role("dialog").wait_for(timeout=MILLISECONDS)
        assert not page.locator("#saved-searches").is_visible()
    context = browser.new_context(base_url=address, java_script_enabled=False)
    page = context.new_page()
    page.goto("/search?q=mail")
    assert not page.locator("#saved-searches").is_visible()
    context.close()


def test_a_question_mark_lists_the_keys(browser: Browser, address: str) -> None:
    with tab(browser, address) as page:
        page.goto("/")
        dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
        assert dialog.count() == 0
        page.keyboard.press("?")
        dialog.wait_for(timeout=MILLISECONDS)
        assert severe_findings(page) == []
        for key in ("/", "j", "k", "g", "f", "Enter"):
            assert dialog.locator("kbd", has_text=key).count() > 0
        page.keyboard.press("?")
        page.keyboard.press("Escape")
        dialog.wait_for(state="hidden", timeout=MILLISECONDS)
        page.keyboard.press("?")
        dialog.get_by_role("link", name="Failures").click()
        page.wait_for_url(f"{address}/dead", timeout=MILLISECONDS)


def test_shortcuts_can_be_turned_off_for_this_browser(browser: Browser, address: str) -> None:
    with tab(browser, address) as page:
        page.goto("/")
        dialog = page.get_by_role("dialog", name="Keyboard shortcuts")
        opens = page.get_by_role("button", name="Keyboard shortcuts")
        for on in (False, True):
            opens.press("Enter")
            dialog.get_by_label("Use shortcuts in this browser").set_checked(on)
            assert severe_findings(page) == []
            dialog.get_by_role("button", name="Close").press("Enter")
            assert opens.locator("kbd").is_visible() is on
            # Also on the next page, and with the focus on no field.
            page.goto("/dead")
            assert opens.locator("kbd").is_visible() is on
            page.locator("h1").click()
            page.keyboard.press("/")
            assert (focused(page, "id") == "find") is on
            page.locator("h1").click()
            page.keyboard.press("?")
            assert dialog.is_visible() is on
            page.keyboard.press("Escape")


def test_a_corrupted_saved_search_does_not_hide_the_others(browser: Browser, address: str) -> None:
    with tab(browser, address) as page:
        page.goto("/search")
        page.evaluate(
            """() => localStorage.setItem("drain searches /search", JSON.stringify(
                [null, { name: 7 }, { name: "half", query: "\\ud800 x" }, { name: "good", query: "a&b=c#d" }]))"""
        )
        page.reload()
        saved = page.get_by_role("region", name="Saved searches")
        assert saved.get_by_role("link").all_inner_texts() == ["half", "good"]
        saved.get_by_role("link", name="good").click()
        page.wait_for_url("**/search?q=a*", timeout=MILLISECONDS)
        assert page.locator("#q").input_value() == "a&b=c#d"


def test_the_keyboard_stays_on_its_link_when_rows_appear_above_it(
    browser: Browser, address: str, crowded: str
) -> None:
    with tab(browser, address) as page:
        page.goto("/")
        page.get_by_role("link", name="queue-07").first.focus()
        with closing(postgres.connect(crowded, "test")) as connection:
            connection.execute("INSERT INTO staged_jobs (job_name, queue) VALUES ('m.f', 'a-new-one')")
        page.get_by_role("link", name="a-new-one").first.wait_for(timeout=MILLISECONDS)
        assert page.evaluate("document.activeElement.textContent") == "queue-07"


_IS_SENT = """new Promise((sent) =>
    new EventSource(document.getElementById("connection").dataset.stream).addEventListener(
        "page", (event) => event.data.includes("pressed") && sent()))"""


def test_changes_wait_while_the_mouse_is_pressed(browser: Browser, address: str, crowded: str) -> None:
    """A link that changes between press and release would get no click."""
    with tab(browser, address) as page:
        page.goto("/")
        page.locator("#live a").first.hover()
        page.mouse.down()
        text = page.locator("#live").inner_text()
        with closing(postgres.connect(crowded, "test")) as connection:
            connection.execute("INSERT INTO staged_jobs (job_name, queue) VALUES ('m.f', 'pressed')")
        page.evaluate(_IS_SENT)
        assert page.locator("#live").inner_text() == text
        page.mouse.up()
        page.wait_for_url(lambda url: url != f"{address}/", timeout=MILLISECONDS)


def test_the_overview_updates_automatically(browser: Browser, address: str, crowded: str) -> None:
    with tab(browser, address) as page:
        page.goto("/")
        assert page.get_by_role("link", name="appeared-later").count() == 0
        with closing(postgres.connect(crowded, "test")) as connection:
            connection.execute("INSERT INTO staged_jobs (job_name, queue) VALUES ('m.f', 'appeared-later')")
        page.get_by_role("link", name="appeared-later").first.wait_for(timeout=MILLISECONDS)


def test_every_page_works_without_scripts(browser: Browser, address: str) -> None:
    context = browser.new_context(base_url=address, java_script_enabled=False)
    page = context.new_page()
    for path in PAGES:
        page.goto(path)
        assert page.get_by_role("heading", level=1).count() == 1, path
    context.close()


def test_a_database_outage_is_shown_until_it_ends(
    browser: Browser, servers: Any, database_url: str, redis_url: str
) -> None:
    with dashboard(database_url, redis_url) as found, tab(browser, found) as page:
        page.goto("/")
        servers.postgres.kill()
        try:
            page.locator("#connection").filter(has_text="cannot").wait_for(timeout=MILLISECONDS)
            answer = page.goto("/cron")
            assert answer is not None
            assert answer.status == 503
            assert page.get_by_role("heading", level=1).count() == 1
        finally:
            servers.postgres.start()
        page.goto("/")
        page.get_by_role("heading", name="Overview").wait_for(timeout=MILLISECONDS)


def test_hostile_text_is_shown_in_full(browser: Browser, address: str) -> None:
    with tab(browser, address) as page:
        page.goto("/dead?queue=hostile")
        assert SCRIPT in page.inner_text("main")
    assert SCRIPT in HOSTILE
