"""The page of the search, and hostile texts on it and on the pages of jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html import unescape
from urllib.parse import quote

import psycopg
import pytest

from drain import stage
from drain.contrib.web import search
from drain.contrib.web.templating import _quoted
from tests.dead_rows import bury, error
from tests.helpers import query, stage_jobs
from tests.sound_pages import assert_sound
from tests.web_pages import Visitor, visitor

SCRIPT = "<script>alert(1)</script>"
HOSTILE = (
    SCRIPT,
    "\"><img src=x onerror=alert(1)> ' onmouseover='alert(1)",
    "javascript:alert(1)//",
    "</pre></td></tr></table><h1>",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnp.exe\u2066 \x1b[31m \x07 \x85 \u2028",
    "x" * 255,
    "%s %(id)s \\ %",
    "é 漢字 🎉 \ufeff \u200b",
    "]]><!-- -->",
)


@pytest.fixture
def browser(database_url: str) -> Iterator[Visitor]:
    with visitor(database_url) as browser:
        yield browser


def test_an_unmatched_word_finds_no_job(browser: Visitor) -> None:
    text = assert_sound(browser.get("/search"))
    assert "Search" in text
    assert "10,000 rows of each table" in text
    assert "No job found." in assert_sound(browser.get("/search?q=nothing"))


def test_jobs_of_all_tables_are_found_and_link_to_their_pages(database_url: str, browser: Visitor) -> None:
    ids = stage_jobs(database_url, 2, job="shop.jobs.send", tag="import")
    ids += bury(database_url, "shop.jobs.send", tag="import")
    html = browser.get("/search?q=%20import%20")
    assert_sound(html)
    assert set(re.findall(r'href="/jobs/(\d+)"', html)) == set(map(str, ids))
    assert html.count("<caption>Waiting</caption>") == html.count("<caption>Dead</caption>") == 1


def test_a_truncated_list_says_so(
    database_url: str, browser: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MOST", 3)
    stage_jobs(database_url, 5, tag="import")
    assert "Waiting: the newest 3" in assert_sound(browser.get("/search?q=import"))


@pytest.mark.parametrize("word", ["a\0b", "x" * 256, "x" * 5000])
def test_words_that_no_job_can_contain_are_refused_with_a_reason(browser: Visitor, word: str) -> None:
    assert "at most 255 characters" in assert_sound(browser.get(f"/search?q={quote(word)}"))


def test_a_hostile_word_is_searched_as_text(browser: Visitor, subtests: pytest.Subtests) -> None:
    for word in HOSTILE:
        with subtests.test(word):
            text = assert_sound(browser.get(f"/search?q={quote(word)}"))
            assert "No job found." in text or "at most" in text


def jobs_on(html: str) -> set[int]:
    """Ids of the jobs that a page lists."""
    assert_sound(html)
    return {int(found) for found in re.findall(r'data-label="Job"><a href="/jobs/(-?\d+)"', html)}


def test_filters_narrow_the_results_and_stay_in_the_field(database_url: str, browser: Visitor) -> None:
    (waits,) = stage_jobs(database_url, 1, job="shop.jobs.send", queue="mail", tag="a b")
    (dead,) = bury(database_url, "shop.jobs.send", tag="a b")
    (other,) = bury(database_url, "shop.jobs.send", queue="calls")
    for query_text, ids in (
        ("queue:mail", {waits, dead}),
        ("state:dead", {dead, other}),
        ("queue:mail state:dead", {dead}),
        ('tag:"a b" state:waiting', {waits}),
        ("queue:mail state:running", set()),
        ("colour:mail", set()),
    ):
        html = browser.get(f"/search?q={quote(query_text)}")
        assert jobs_on(html) == ids, query_text
        assert ("No job found." in html) is (not ids)
        assert f'value="{query_text}"' in unescape(html)
        assert 'class="problem"' not in html


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("queue:Mail queue:calls", "The filter queue: is given twice."),
        ("state:Asleep", "There is no state 'asleep': use waiting, "),
        ("id:Seven", "'Seven' is not the id of a job, a whole number."),
        ("id:<b>", "'<b>' is not the id of a job, a whole number."),
        ("queue:" + "x" * 256, "Search for a storable text of at most 255 characters."),
        ("queue:a\0b", "Search for a storable text of at most 255 characters."),
        ("queue:mail " + "x" * 256, "Search for a storable text of at most 255 characters."),
        ("queue:mail " + "x " * 5000, "A search has at most 8 words: quote a text that belongs together."),
    ],
)
def test_an_invalid_search_is_reported_in_one_line(browser: Visitor, text: str, problem: str) -> None:
    html = browser.get(f"/search?q={quote(text)}")
    (shown,) = re.findall(r'<p class="problem" role="alert">([^\n]*)</p>', html)
    assert problem in unescape(shown)
    assert_sound(html)
    assert "No job found." not in html


def test_the_search_page_lists_filters_and_states(browser: Visitor) -> None:
    html = browser.get("/search")
    for name in search.FILTERS:
        assert f"<code>{name}:" in html
    for state in search.STATES:
        assert f'<option value="state:{state}">' in html
        assert f'href="/search?q=state%3A{state}"' in html
        browser.get(f"/search?q=state%3A{state}")


def test_a_hostile_filter_value_is_treated_as_a_value(browser: Visitor, subtests: pytest.Subtests) -> None:
    for name in search.FILTERS:
        for text in HOSTILE:
            with subtests.test(name, text=text):
                html = browser.get(f"/search?q={quote(f'{name}:{_quoted(text)}')}")
                assert_sound(html)
                assert SCRIPT not in html
                assert ("No job found." in html) is (name not in ("id", "state"))


@pytest.mark.parametrize("text", [*HOSTILE, "a\nb", "a\tb", 'say "hi" \\', "\\", '"' * 255])
def test_a_job_attribute_links_to_the_jobs_that_share_it(
    database_url: str, browser: Visitor, text: str
) -> None:
    (dead,) = bury(database_url, key=text, tag=text, unique_key=text)
    links = re.findall(r'<dd><a href="(/search\?q=[^"]+)"', browser.get(f"/jobs/{dead}"))
    assert len(links) == 3
    for link in links:
        assert jobs_on(browser.get(unescape(link))) == {dead}, link


def test_a_table_that_takes_too_long_is_named(
    database_url: str, browser: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury(database_url)
    newest = search._newest
    slow = "SELECT 1, '', '', '', '', now(), '' FROM pg_sleep(60) -- "
    monkeypatch.setattr(
        search,
        "_newest",
        lambda state, *given, **options: slow if state == "finished" else newest(state, *given, **options),
    )
    text = assert_sound(browser.get("/search?q=send"))
    assert "The search of completed jobs timed out: search for an id or a key." in text
    assert "shop.jobs.send" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_neither_runs_nor_breaks_a_page(database_url: str, browser: Visitor, text: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        staged = stage(
            connection,
            f"a{text}"[:200].strip(),
            [text, {text: text}],
            tag=text[:255],
            key=text[:255],
            unique_key=text[:255],
            context={text: text},
        )
    last = error(f"/srv/{text}.py".replace(":", "").replace("\n", "") + ":1:f", kind=text, message=text)
    (dead,) = bury(
        database_url,
        f"a{text}",
        last,
        explanation=text,
        reason="failed",
        tag=text,
        key=text,
        job_args=[text],
        history=[
            {"reason": text, "attempts": text, "died_at": text, "explanation": text, "last_error": last}
        ],
    )
    query(database_url, "UPDATE dead_jobs SET queue = %s WHERE id = %s", f"q{text}".replace("/", ""), dead)
    browser.log_in()
    pages = [f"/jobs/{staged}", f"/jobs/{dead}", "/dead", f"/search?q={quote(text)}"]
    pages += re.findall(r'href="(/dead/groups/[0-9a-f]{16})"', browser.get("/dead"))
    assert len(pages) == 5
    for page in pages:
        html = browser.get(page)
        assert_sound(html)
        assert SCRIPT not in html


def test_pages_work_below_a_prefix(database_url: str) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    from drain.config import Settings
    from drain.contrib.web import application
    from tests.web_pages import TOKEN, browsing

    ids = bury(database_url, last_error=error("/srv/a.py:1:f"), count=2)
    app = application(Settings(database_url=database_url), token=TOKEN)
    with browsing(Starlette(routes=[Mount("/jobs", app)]), "/jobs") as browser:
        for page in (f"/jobs/{ids[0]}", "/dead", "/search?q=shop"):
            links = set(re.findall(r'(?:href|action)="([^"#]+)"', browser.get(page)))
            assert all(link.startswith("/jobs/") for link in links), links
        browser.log_in()
        given = {"which": "chosen", "id": ids, "seen_at": datetime.now(UTC).isoformat()}
        question = browser.post("/dead/discard", given, of="/dead")
        assert 'action="/jobs/dead/discard"' in question.text
    app.state.site.close()
