"""Numbers and times as people read them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from drain.formatting import clock, count, duration, figure, relative


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0004, "0s"),
        (0.0006, "1ms"),
        (0.0094, "9ms"),
        (0.344, "0.34s"),
        (4.21, "4.2s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.4, "59s"),
        (59.6, "1m"),
        (200, "3m 20s"),
        (3599.7, "1h"),
        (7500, "2h 5m"),
        (86_400, "1d"),
        (357_000, "4d 3h"),
        (-61, "-1m 1s"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_time_is_shown_relative_to_now() -> None:
    now = datetime(2026, 11, 22, tzinfo=UTC)
    assert relative(now - timedelta(seconds=200), now) == "3m 20s ago"
    assert relative(now + timedelta(hours=2), now) == "in 2h"
    assert relative(now, now) == "now"


def test_the_clock_is_in_utc() -> None:
    assert (
        clock(datetime(2026, 11, 22, 3, 31, 7, tzinfo=timezone(timedelta(hours=2)))) == "2026-11-22 01:31:07Z"
    )


def test_a_count_of_one_is_singular() -> None:
    assert [count(number, "job") for number in (0, 1, 12_000)] == ["0 jobs", "1 job", "12,000 jobs"]
    assert count(2, "process", "processes") == "2 processes"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, "0"), (0.1171, "0.117"), (14.4, "14.4"), (99.96, "100"), (100.0, "100"), (1234.5, "1,234")],
)
def test_a_figure_has_no_exponent(number: float, text: str) -> None:
    assert figure(number) == text
