"""Times that people write, numbers that they read, and the page."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from drain.errors import ConfigError
from drain.pipeline.commands.stats import _show, _table, about
from drain.pipeline.stats import page, words
from drain.pipeline.stats.as_json import as_json
from drain.pipeline.stats.drawing import draw
from drain.pipeline.stats.plots import Plot, Series
from drain.pipeline.stats.question import Question, literal, parse_time
from drain.pipeline.stats.report import Ended, Error, Finished, Group, Period, Report, Times, Weeks
from drain.pipeline.stats.tables import Table
from tests.chromium import chromium, overhang, severe_findings, tab


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        *((None, "–"), (0.0, "0 µs"), (0.000_25, "250 µs"), (0.000_999_9, "1 ms"), (0.01234, "12.3 ms")),
        *((0.9999, "1 s"), (3.576, "3.58 s"), (99.9, "99.9 s"), (100, "1.67 min"), (5_400, "90 min")),
        *((7_200, "2 h"), (86_400, "24 h"), (200_000, "2.31 d"), (86_400 * 1234.0, "1,234 d")),
    ],
)
def test_a_duration_uses_the_most_compact_unit(duration: float | None, text: str) -> None:
    assert words.seconds(duration) == text


def test_long_names_of_flows_and_nodes_fit_into_a_terminal() -> None:
    times = ["27.8 h", "27.8 h", "27.8 h"]
    names = ["a flow " * 30, "a node " * 30]
    for texts, columns, row in (
        (1, ("flow", "completed", "unfinished", "cancelled", "members", "dead"), [names[0], *["1.23M"] * 5]),
        (2, ("flow", "node", "completed"), [*names, "1.23M"]),
    ):
        console = Console(width=80, file=StringIO())
        shown = Table("", (*columns, "p50", "p95", "max"), [[*row, *times]], texts=texts)
        console.print(_table(shown, 80))
        lines = cast(StringIO, console.file).getvalue().splitlines()
        # A heading may take a second line.
        assert len(lines) <= 3
        assert max(map(len, lines)) <= 80
        assert lines[-1].split()[-len(columns[texts:]) - 3 :] == [
            *["1.23M"] * len(columns[texts:]),
            *["27.8h"] * 3,
        ]


def test_a_share_is_a_percentage_and_a_tiny_one_is_not_zero() -> None:
    assert [words.share(share) for share in (0, 0.0001, 0.0349, 1)] == ["–", "<0.1 %", "3.5 %", "100.0 %"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC)),
        (" 2026-11-01T12:00 ", datetime(2026, 11, 1, 12, tzinfo=UTC)),
        ("2026-11-01T12:00+02:00", datetime(2026, 11, 1, 10, tzinfo=UTC)),
        ("7d", timedelta(days=7)),
        ("24h", timedelta(hours=24)),
        ("30m", timedelta(minutes=30)),
    ],
)
def test_a_time_is_written_as_a_date_or_as_how_long_ago(text: str, found: datetime | timedelta) -> None:
    assert parse_time(text) == found


@pytest.mark.parametrize("text", ["", "d", "7 days", "7y", "-1d", "2026-13-01", "0001-01-01T00:00+02:00"])
def test_an_invalid_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time; give 2026-11-01"):
        parse_time(text)


def test_relative_times_count_from_the_given_now() -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert Question(since=timedelta(days=7)).begin(now) == datetime(2026, 11, 14, 12, tzinfo=UTC)
    assert Question(since=timedelta(days=999_999)).begin(now) == datetime(1, 1, 1, tzinfo=UTC)


def test_a_condition_names_everything_that_was_requested() -> None:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    assert Question().condition(now) is None
    asked = Question(since=timedelta(days=1), queue="mail", job="it's")
    assert asked.condition(now) == (
        "finished_at >= '2026-11-20 00:00:00+00:00' AND queue = ('mail') AND job_name = ('it' || chr(39) || 's')"
    )


def test_an_empty_text_is_a_literal_too() -> None:
    assert literal("") == "''"


NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
ESCAPES = "\x1b]0;owned\x07\x9b31m\u202egnp.exe</script><b>"


def hostile_report() -> Report:
    times = Times(1, *[1.0] * 7)
    ended = {
        "queue": ESCAPES,
        "job_name": ESCAPES,
        "done": Finished(finished=1, attempts=2, waiting=times, processing=times, slowest_id=1),
        "dead": {ESCAPES: 1},
    }
    at = datetime(2026, 3, 10, 12, tzinfo=UTC)
    period = Period(start=at, **ended)  # type: ignore[arg-type]
    group = Group(**ended)  # type: ignore[arg-type]
    error = Error(ESCAPES, 1, [ESCAPES], at)
    return Report(
        at=at,
        since=None,
        per="day",
        total=group,
        jobs=[group],
        periods=[period],
        details=[period],
        weeks=[Weeks(Ended(), Ended()), Weeks(Ended(**ended), Ended(**ended))],  # type: ignore[arg-type]
        errors=[error],
    )


@pytest.mark.parametrize(
    ("since", "told"),
    [(None, True), (datetime(2026, 3, 1, tzinfo=UTC), True), (datetime(2026, 3, 8, tzinfo=UTC), False)],
)
def test_the_heading_says_since_when_finished_jobs_are_available(
    since: datetime | None, *, told: bool
) -> None:
    report = replace(hostile_report(), since=since, dropped_before=date(2026, 3, 8))
    said = about(Question(since=since), report)
    assert ("; finished jobs from before 2026-03-08 have been dropped" in said) == told
    assert as_json(report, 1)["dropped_before"] == "2026-03-08"


def test_names_can_control_neither_a_terminal_nor_a_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    report = hostile_report()
    which = about(Question(since=None, queue=ESCAPES, job=ESCAPES, per="day"), report)

    for columns in ("20", "80", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        _show(report, which, top=5)
    shown = capsys.readouterr().out
    html = page.html(report, which, top=5)

    for text in (shown, html):
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(text)
        assert r"\x1b]0;owned\x07" in text
    assert html.count("</script><b>") == 0


def crowded_report(jobs: int, periods: int, text: str = "x") -> Report:
    """Make a report of as many queues and names as `jobs`, whose names repeat a text up to 250 characters."""
    times = Times(1, *[12_345.0] * 7)
    done = Finished(
        finished=9_999_999_999, attempts=9_999_999_999, waiting=times, processing=times, slowest_id=1
    )
    start = datetime(2025, 1, 1, tzinfo=UTC)

    def ended(number: int) -> dict[str, Any]:
        name = f"{number}{text * 250}"[:250]
        return {"queue": name, "job_name": name, "done": done, "dead": {"failed": 7}}

    hours = [start + index * timedelta(hours=1) for index in range(periods)]
    return Report(
        at=datetime(2026, 3, 10, tzinfo=UTC),
        since=None,
        per="hour",
        total=Group(done=replace(done, finished=jobs * 9_999_999_999), dead={"failed": 7 * jobs}),
        jobs=[Group(**ended(number), staged=1) for number in range(jobs)],
        periods=[Period(start=hour, done=done, dead={"failed": 7}) for hour in hours],
        details=[Period(start=hour, **ended(number % jobs)) for number, hour in enumerate(hours)],
        weeks=[
            Weeks(Ended(done=done), Ended(done=done)),
            *(Weeks(Ended(**ended(number)), Ended(**ended(number))) for number in range(jobs)),
        ],
        errors=[Error(text * 200, 7, [ended(number)["job_name"]] * 4, start) for number in range(10)],
    )


@pytest.mark.parametrize("text", ["x", '"', "\U000e0001", "\u202e"])
def test_a_page_stays_below_a_megabyte_with_any_number_of_names(text: str) -> None:
    html = page.html(crowded_report(3000, 20_000, text), "all queues", top=10_000)
    assert len(html.encode()) < 1_000_000
    assert "the latest 400 of 20,000 hours" in html
    assert "2,995 other queues" in html
    assert html.count("2,950 others") == 2
    assert f"{2950 * 9_999_999_999:,}" in html


def test_a_page_fetches_nothing_and_runs_nothing() -> None:
    html = page.html(crowded_report(10, 30), "all queues", top=20)
    assert not re.search(
        r"<script|<link rel=.(?!icon. href=.data:)|<img|@import|url\(|https?:|\bon\w+=", html
    )


def test_an_empty_plot_is_replaced_by_a_sentence() -> None:
    nothing = Report(
        at=NOON,
        since=None,
        per="day",
        total=Group(),
        jobs=[],
        periods=[],
        details=[],
        weeks=[Weeks(Ended(), Ended())],
    )
    html = page.html(nothing, "all queues", top=20)
    assert "<svg" not in html
    for sentence in (
        "No completed jobs.",
        "No dead jobs.",
        "Every completed job took one attempt.",
    ):
        assert sentence in html
    # A period in which jobs only died.
    died = Period(start=NOON, dead={"failed": 1})
    html = page.html(replace(nothing, periods=[died], total=Group(dead={"failed": 1})), "", top=20)
    assert html.count('role="img"') == 1
    assert "No completed job was claimed only once." in html


def test_a_page_shows_this_week_and_the_change_since_last_week() -> None:
    this = Ended(done=Finished(finished=1500, waiting=Times(1, *[3.0] * 7)), dead={"failed": 2})
    last = Ended(done=Finished(finished=1000, waiting=Times(1, *[4.0] * 7)))

    def shown(report: Report) -> str:
        return page.html(report, "all queues", top=20)

    html = shown(replace(hostile_report(), weeks=[Weeks(this, last)]))
    for cell in ("1,500 (+50 %)", "<td>2</td>", "3 s (-25 %)"):
        assert cell in html
    assert "No jobs last week" not in html
    assert "No jobs last week." in shown(replace(hostile_report(), weeks=[Weeks(this, Ended())]))
    for change in (
        {"since": NOON - timedelta(days=13)},
        {"dropped_before": NOON.date() - timedelta(days=13)},
    ):
        html = shown(replace(hostile_report(), weeks=[Weeks(this, last)], **change))
        assert "Not compared: the report does not cover the last 14 days." in html
        assert "+50 %" not in html
    assert "+50 %" in shown(
        replace(hostile_report(), weeks=[Weeks(this, last)], dropped_before=NOON.date() - timedelta(days=14))
    )


def test_a_plot_has_its_numbers_in_a_table_and_few_dates_on_its_axis() -> None:
    html = page.html(crowded_report(2, 9), "all queues", top=20)
    for title in ("Throughput", "Waiting time", "Processing time", "Dead jobs"):
        plot = next(part for part in html.split("<section>") if part.startswith(f"<h2>{title}</h2>"))
        assert len(re.findall(r">2025-01-01 \d\d:00</span>", plot)) == 5
        assert len(re.findall(r"<th scope=row class=text>2025-01-01 \d\d:00</th>", plot)) == 9
    assert html.count("3.43 h") > 3 * 9
    assert "rotate" not in html


@pytest.mark.parametrize(
    ("series", "drawn"),
    [
        ([0.0, None, 0.0], None),
        ([1.0, 2.0, None, 4.0], "M5 750L15 500M32 0h6"),
    ],
)
def test_a_line_has_gaps_and_an_isolated_period_is_a_dash(
    series: list[float | None], drawn: str | None
) -> None:
    shown = Plot("t", "a", "nothing", list("abcd"), [Series("s", 1, series)], words.share)  # type: ignore[arg-type]
    assert shown.is_empty == (drawn is None)
    if drawn:
        assert f'd="{drawn}"' in draw(shown)


@pytest.mark.parametrize(
    ("most", "ticks"), [(1, ["0", "1"]), (7, ["0", "2", "4", "6", "8"]), (2e7, ["0", "5M"])]
)
def test_an_axis_of_counts_has_round_ticks(most: float, ticks: list[str]) -> None:
    shown = Plot("t", "a", "nothing", ["a"], [Series("s", 1, [most])], words.whole, bars=True)
    assert re.findall(r"bottom:[^>]*>([^<]*)<", draw(shown))[: len(ticks)] == ticks


@pytest.mark.parametrize(
    ("percent", "text"),
    [(None, "7"), (12.4, "7 (+12 %)"), (-0.2, "7 (±0 %)"), (-100, "7 (-100 %)"), (12345, "7 (+12,345 %)")],
)
def test_a_change_is_in_whole_percent(percent: float | None, text: str) -> None:
    assert words.changed("7", percent) == text


WIDER = """() => [...document.querySelectorAll(".fact, section, .fact *, .legend")]
    .filter(each => each.scrollWidth > each.clientWidth && getComputedStyle(each).display !== "inline")
    .map(each => each.textContent)"""
OUTSIDE = """() => [...document.querySelectorAll(".plot span")].filter(each => {
    const [inner, outer] = [each, each.closest("section")].map(one => one.getBoundingClientRect());
    return inner.width && (inner.left < outer.left || inner.right > outer.right || inner.bottom > outer.bottom);
}).map(each => each.textContent)"""


@pytest.mark.parametrize("width", [320, 375, 1440])
def test_in_a_browser_no_card_overflows_and_the_page_is_accessible(tmp_path: Path, width: int) -> None:
    (tmp_path / "page.html").write_text(page.html(crowded_report(9, 60), "queue " + "x" * 250, top=20))
    (tmp_path / "none.html").write_text(page.html(hostile_report(), "all queues", top=20))
    with chromium() as browser:
        for dark in (False, True):
            for file in ("page.html", "none.html"):
                address = (tmp_path / file).as_uri()
                with tab(browser, address, (width, 900), dark=dark) as opened:
                    opened.goto(address)
                    opened.evaluate(
                        "for (const each of document.querySelectorAll('details')) each.open = true"
                    )
                    assert overhang(opened) == 0
                    assert opened.evaluate(WIDER) == []
                    assert opened.evaluate(OUTSIDE) == []
                    assert severe_findings(opened) == []
