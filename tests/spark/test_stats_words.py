"""Times that people write and numbers that they read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from drain.errors import ConfigError
from pipeline.commands.stats import _show, about
from pipeline.stats import page, words
from pipeline.stats.as_json import as_json
from pipeline.stats.question import Question, literal, parse_time
from pipeline.stats.report import Finished, Group, Period, Report, Times


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        *((None, "–"), (0.0, "0 µs"), (0.000_25, "250 µs"), (0.000_999_9, "1 ms"), (0.01234, "12.3 ms")),
        *((0.9999, "1 s"), (3.576, "3.58 s"), (99.9, "99.9 s"), (100, "1.67 min"), (5_400, "90 min")),
        *((7_200, "2 h"), (86_400, "24 h"), (200_000, "2.31 d"), (86_400 * 1234.0, "1,234 d")),
    ],
)
def test_a_duration_has_the_unit_in_which_it_is_short(duration: float | None, text: str) -> None:
    assert words.seconds(duration) == text


def test_a_share_is_in_percent_and_a_tiny_one_is_not_none() -> None:
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
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no time; give 2026-11-01"):
        parse_time(text)


def test_how_long_ago_counts_from_the_given_now_however_long_it_is() -> None:
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert Question(since=timedelta(days=7)).begin(now) == datetime(2026, 11, 14, 12, tzinfo=UTC)
    assert Question(since=timedelta(days=999_999)).begin(now) == datetime(1, 1, 1, tzinfo=UTC)


def test_a_condition_names_all_that_was_asked_for() -> None:
    now = datetime(2026, 11, 21, tzinfo=UTC)
    assert Question().condition(now) is None
    asked = Question(since=timedelta(days=1), queue="mail", job="it's")
    assert asked.condition(now) == (
        "finished_at >= '2026-11-20 00:00:00+00:00' AND queue = ('mail') AND job_name = ('it' || chr(39) || 's')"
    )


def test_an_empty_text_is_a_literal_too() -> None:
    assert literal("") == "''"


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
    return Report(at=at, since=None, per="day", total=group, jobs=[group], periods=[period], details=[period])


@pytest.mark.parametrize(
    ("since", "told"),
    [(None, True), (datetime(2026, 3, 1, tzinfo=UTC), True), (datetime(2026, 3, 8, tzinfo=UTC), False)],
)
def test_the_heading_says_from_when_on_finished_jobs_are_seen(since: datetime | None, *, told: bool) -> None:
    report = replace(hostile_report(), since=since, dropped_before=date(2026, 3, 8))
    said = about(Question(since=since), report)
    assert ("; finished jobs from before 2026-03-08 have been dropped" in said) == told
    assert as_json(report, 1)["dropped_before"] == "2026-03-08"


def test_names_command_neither_a_terminal_nor_a_page(
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
