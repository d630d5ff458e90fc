"""Charts of the page: numbers, gaps and estimates, as drawings and in words."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from drain.contrib.web import charts
from drain.contrib.web.charts import Numbers, Series
from drain.read.queue_overview import Number

ENDS = datetime(2026, 11, 1, 12, tzinfo=UTC)
BEGINS = ENDS - timedelta(hours=3)


def numbers(*given: int | None) -> list[Number | None]:
    return [None if each is None else Number(each) for each in given]


def stacked(*curves: Numbers) -> str:
    kinds = ("completed", "failures", "third")
    series = [Series(kind, kind, curve) for kind, curve in zip(kinds, curves, strict=False)]
    return str(charts.stacked(series, BEGINS, ENDS))


def bars(chart: str, kind: str) -> list[tuple[float, float]]:
    """Lowest and highest point of each bar, counted from the bottom of the chart."""
    (path,) = re.findall(rf'<path class="{kind}" d="([^"]*)"', chart)
    found = re.findall(r"M[\d.]+ ([\d.]+)v-([\d.]+)h", path)
    return [(180 - float(low), 180 - float(low) + float(tall)) for low, tall in found]


def scale(chart: str) -> list[str]:
    return re.findall(r'<text x="0" y="[\d.]+">([^<]+)</text>', chart)


def test_a_total_is_known_only_where_every_part_is() -> None:
    assert charts.total([numbers(1, 2, 3)]) == numbers(1, 2, 3)
    assert charts.total([numbers(1, None, 3), numbers(0, 5, None)]) == numbers(1, None, None)
    assert charts.total([]) == []


def test_a_total_is_an_estimate_if_a_part_is() -> None:
    found = charts.total([[Number(1), Number(2)], [Number(30, is_estimate=True), Number(4)]])
    assert found == [Number(31, is_estimate=True), Number(6)]


def test_series_of_different_lengths_are_rejected() -> None:
    with pytest.raises(ValueError, match="zip"):
        charts.total([numbers(1), numbers(1, 2)])


def test_stacked_bars_stay_within_the_scale() -> None:
    chart = stacked(numbers(40, 0, 100), numbers(10, 20, 100))
    assert scale(chart) == ["200", "100"]
    assert bars(chart, "completed") == [(0.0, 36.0), (0.0, 90.0)]
    assert bars(chart, "failures") == [(36.0, 45.0), (0.0, 18.0), (90.0, 180.0)]


@pytest.mark.parametrize(
    ("most", "top"),
    [(0, "2"), (1, "2"), (2, "2"), (3, "5"), (9, "10"), (10, "10"), (11, "20"), (4321, "5,000")],
)
def test_a_scale_ends_at_a_round_number(most: int, top: str) -> None:
    assert scale(stacked(numbers(0, most)))[0] == top


def test_an_uncounted_step_draws_no_bar_and_hides_no_other() -> None:
    chart = stacked(numbers(None, 5, None), numbers(100, 0, None))
    assert len(bars(chart, "completed")) == 1
    ((low, high),) = bars(chart, "failures")
    assert low == 0
    assert 0 < high <= 180


def test_zero_draws_no_bar_and_a_single_job_stays_visible() -> None:
    chart = stacked(numbers(0, 0), numbers(None, None))
    assert bars(chart, "completed") == bars(chart, "failures") == []
    assert "0 completed in 10 min, at most 0 in 5 min; not counted yet" in chart
    # One of a million is seen.
    assert bars(stacked(numbers(1, 1_000_000)), "completed")[0] == (0.0, 1.0)


def test_a_chart_shows_its_times_and_a_text_alternative() -> None:
    chart = stacked([Number(1234), Number(40)], [Number(7), Number(0)])
    assert re.findall(r'text-anchor="\w+">([^<]+)<', chart) == ["09:00", "10:30", "12:00"]
    words = "1,274 completed in 10 min, at most 1,234 in 5 min; 7 failures in 10 min, at most 7 in 5 min"
    assert f'aria-label="{words}"' in chart
    assert f"<title>{words}</title>" in chart


def test_text_rounds_estimates_and_counts_only_known_steps() -> None:
    known = [Number(1234, is_estimate=True), *([None] * 24), *([Number(1)] * 11)]
    assert charts.words(known) == "about 1,200 completed in 1 h, at most about 1,200 in 5 min"
    assert charts.words(numbers(3, None, 4), "dead") == "7 dead in 10 min, at most 4 in 5 min"
    assert charts.words([None]) == charts.words([]) == "not counted yet"


def test_markup_in_a_label_is_escaped() -> None:
    chart = str(charts.stacked([Series("completed", '"><script>', numbers(1))], BEGINS, ENDS))
    assert "<script>" not in chart
    assert "<script>" not in charts.spark(numbers(1), '"><script>')


def test_a_spark_has_a_bar_for_each_step_with_jobs() -> None:
    spark = charts.spark(numbers(3, 0, None, 6), "dead", "failures")
    assert 'class="spark failures"' in spark
    assert re.findall(r"M([\d.]+) 28.0v-([\d.]+)h", spark) == [("0.0", "14.0"), ("108.0", "28.0")]
    assert "9 dead in 15 min, at most 6 in 5 min" in spark
    assert 'd=""' in charts.spark([])


@pytest.mark.parametrize(
    ("used", "limit", "kind", "width"),
    [
        *((0, 8, "used", 0), (7, 8, "used", 88), (999, 1000, "used", 100)),
        *((8, 8, "full", 100), (9, 8, "full", 100), (1, 1, "full", 100)),
    ],
)
def test_a_meter_shows_how_much_of_a_limit_is_used(used: int, limit: int, kind: str, width: int) -> None:
    meter = charts.meter(used, limit)
    assert f'<rect class="{kind}" width="{width}"' in meter
    assert f'aria-label="{used:,} of {limit:,}"' in meter
