"""Ticks of cron lines in time zones, across the changes of their clocks."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st

from drain.jobs.timetable import Timetable, TimetableError, check_schedule

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
# Its clock changes by half an hour, at 02:00: on 5 April and 4 October 2026.
LORD_HOWE = "Australia/Lord_Howe"
# Its clock changes from 02:45 to 03:45, on 27 September 2026: the gap ends within an hour.
CHATHAM = "Pacific/Chatham"


def ticks(cron: str, zone: str, after: str, count: int) -> list[str]:
    """The ticks after a time of the zone, as its clock shows them, each with its distance from UTC."""
    begin = datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    found = list(islice(Timetable(cron, zone).until(begin, begin + timedelta(days=400)), 1, count + 1))
    assert all(tick.tzinfo is UTC for tick in found)
    assert found == sorted(set(found))
    return [f"{tick.astimezone(ZoneInfo(zone)):%d %H:%M %z}" for tick in found]


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        # A time that the clock skips ticks right after the change, once.
        ("30 2 * * *", BERLIN, "2026-03-28 12:00", ["29 03:00 +0200", "30 02:30 +0200"]),
        ("30 2 * * *", NEW_YORK, "2026-03-07 12:00", ["08 03:00 -0400", "09 02:30 -0400"]),
        ("0 2,3 * * *", BERLIN, "2026-03-28 12:00", ["29 03:00 +0200", "30 02:00 +0200"]),
        # A time that the clock shows twice ticks at the first of the two alone.
        ("30 2 * * *", BERLIN, "2026-10-24 12:00", ["25 02:30 +0200", "26 02:30 +0100"]),
        ("30 1 * * *", NEW_YORK, "2026-10-31 12:00", ["01 01:30 -0400", "02 01:30 -0500"]),
        # In real time: no tick is left out, and none comes twice.
        (
            "*/15 * * * *",
            BERLIN,
            "2026-03-29 01:30",
            ["29 01:45 +0100", "29 03:00 +0200", "29 03:15 +0200"],
        ),
        (
            "*/15 * * * *",
            NEW_YORK,
            "2026-03-08 01:30",
            ["08 01:45 -0500", "08 03:00 -0400", "08 03:15 -0400"],
        ),
        (
            "*/15 * * * *",
            BERLIN,
            "2026-10-25 02:30",
            [
                *("25 02:45 +0200", "25 02:00 +0100", "25 02:15 +0100", "25 02:30 +0100"),
                *("25 02:45 +0100", "25 03:00 +0100"),
            ],
        ),
        (
            "*/15 * * * *",
            NEW_YORK,
            "2026-11-01 01:30",
            [
                *("01 01:45 -0400", "01 01:00 -0500", "01 01:15 -0500", "01 01:30 -0500"),
                *("01 01:45 -0500", "01 02:00 -0500"),
            ],
        ),
    ],
)
def test_ticks_are_right_when_the_clock_changes(
    cron: str, zone: str, after: str, expected: list[str]
) -> None:
    assert ticks(cron, zone, after, len(expected)) == expected


@pytest.mark.parametrize(
    ("zone", "days"),
    [
        (BERLIN, ["2026-03-28", "2026-10-24"]),
        (NEW_YORK, ["2026-03-07", "2026-10-31"]),
        (LORD_HOWE, ["2026-04-04", "2026-10-03"]),
    ],
)
def test_quarter_hours_stay_even_across_both_clock_changes(zone: str, days: list[str]) -> None:
    every_quarter = Timetable("*/15 * * * *", zone)
    for day in days:
        begin = datetime.fromisoformat(day).replace(tzinfo=UTC)

        found = list(every_quarter.until(begin, begin + timedelta(days=3)))

        assert found == [begin + timedelta(minutes=15 * number) for number in range(4 * 24 * 3 + 1)]


@pytest.mark.parametrize(
    "cron",
    [
        "*/20 3 * * *",
        "*/15 2,4 * * *",
        "40 * * * *",
        "10 * * * *",
        "*/7 * * * *",
        "*/10 1,2 * * *",
        "15 */3 * * *",
        "* 2 4,5 * *",
    ],
)
@pytest.mark.parametrize("day", ["2026-04-04", "2026-10-03", "2026-09-26"])
@pytest.mark.parametrize("zone", [LORD_HOWE, BERLIN, CHATHAM])
def test_a_real_time_line_ticks_at_every_matching_minute(cron: str, day: str, zone: str) -> None:
    """Compared with a look at each minute of three days, by the fields of the line in UTC."""
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC)
    minutes = [begin + timedelta(minutes=number) for number in range(3 * 24 * 60)]
    shown = {minute: minute.astimezone(ZoneInfo(zone)).replace(tzinfo=UTC) for minute in minutes}
    every_minute = Timetable(cron, "UTC")
    expected = [
        minute
        for minute in minutes[1:]
        if every_minute.after(shown[minute] - timedelta(minutes=1)) == shown[minute]
    ]

    found = Timetable(cron, zone).until(begin, minutes[-1])

    assert list(found)[1:] == expected


@pytest.mark.parametrize("name", ["localtime", "posixrules"])
def test_a_zone_that_differs_between_machines_is_refused(name: str) -> None:
    with pytest.raises(TimetableError, match="differs from machine to machine: use a name such as"):
        Timetable("0 3 * * *", name)


def test_a_schedule_created_in_the_repeated_hour_has_no_past_tick() -> None:
    second = datetime(2026, 10, 25, 1, 10, tzinfo=UTC)
    assert second.astimezone(ZoneInfo(BERLIN)).fold == 1

    assert Timetable("30 2 * * *", BERLIN).after(second) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    "cron",
    [
        "*/15 * * * * *",
        "7 */5 3 * * *",
        "* * * * *",
        "*/7 3 * * *",
        "30 2 * * *",
        "0 0 1 1 *",
        "0 4 29 2 *",
        "*/20 2 * * sun",
        "0 0 L * *",
    ],
)
@pytest.mark.parametrize("end", ["2026-03-29 01:30", "2026-10-25 01:30", "2026-07-01 00:00"])
def test_the_latest_tick_is_the_last_one_listed(cron: str, end: str) -> None:
    table = Timetable(cron, BERLIN)
    until = datetime.fromisoformat(end).replace(tzinfo=UTC)
    first = table.after(until - timedelta(days=3))

    expected = list(table.until(first, until))[-1] if first <= until else first

    assert table.latest(first, until) == expected


@pytest.mark.parametrize("zone", ["UTC", BERLIN, LORD_HOWE])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25", "2026-04-04", "2026-10-03"])
def test_a_line_of_seconds_ticks_evenly_across_changes_of_the_clock(day: str, zone: str) -> None:
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC)
    day_after = begin + timedelta(days=1)

    found = list(Timetable("*/15 * * * * *", zone).until(begin, day_after))

    assert found == [begin + timedelta(seconds=15 * number) for number in range(4 * 60 * 24 + 1)]


def test_seconds_come_first() -> None:
    table = Timetable("5,20 30 3 * * *")
    morning = datetime(2026, 7, 1, 3, 30, tzinfo=UTC)

    first = table.after(morning + timedelta(seconds=4, microseconds=999_999))

    assert first == morning + timedelta(seconds=5)
    assert table.after(first) == morning + timedelta(seconds=20)
    assert table.after(table.after(first)) == morning + timedelta(days=1, seconds=5)


@pytest.mark.parametrize(
    ("cron", "zone", "words"),
    [
        ("0 0 31 2 *", "UTC", "none of its months has that day"),
        ("0 0 31 4,6 */2", "UTC", "none of its months has that day"),
        ("0 0 * * * * *", "UTC", "has 7 fields, and a cron line has five"),
        ("0 0 * * * * *", "UTC", "or six, with seconds first"),
        ("60 * * * * *", "UTC", "bad second"),
        ("0 3", "UTC", "has 2 fields"),
        ("", "UTC", "has 0 fields"),
        ("@daily", "UTC", "is a nickname: write the five fields"),
        ("61 * * * *", "UTC", "bad minute"),
        ("0 0 * * MONTAG", "UTC", "bad day-of-week"),
        ("0 0 * * 1L/2", "UTC", "bad day-of-week"),
        (f"* * {'*/1' * 100} * *", "UTC", "at most 255 characters"),
        ("0 3 * * *", "Europe/Berln", "there is no time zone 'Europe/Berln'"),
        ("0 3 * * *", "Europe", "there is no time zone"),
        ("0 3 * * *", "../../etc/passwd", "there is no time zone"),
        ("0 3 * * *", "a\0b", "there is no time zone"),
    ],
)
def test_an_invalid_line_or_zone_is_reported_on_one_line(cron: str, zone: str, words: str) -> None:
    with pytest.raises(TimetableError) as error:
        Timetable(cron, zone)

    assert words in str(error.value)
    assert "\n" not in str(error.value)


@given(st.lists(st.text("0123456789*/,-#L", min_size=1, max_size=6), min_size=5, max_size=6))
def test_any_line_is_read_or_refused(fields: list[str]) -> None:
    try:
        table = Timetable(" ".join(fields), BERLIN)
    except TimetableError:
        return
    now = datetime(2026, 10, 25, 0, 10, tzinfo=UTC)
    assert table.after(now) > now


@pytest.mark.parametrize(
    ("cron", "zone", "missed", "words"),
    [
        (5, "UTC", "last", "cron and timezone must be strings"),
        ("0 3 * * *", None, "last", "cron and timezone must be strings"),
        ("0 3 * * *", "UTC", "first", "missed must be 'last', 'all' or 'none', not 'first'"),
    ],
)
def test_an_invalid_schedule_is_refused(cron: str, zone: str, missed: str, words: str) -> None:
    with pytest.raises(TimetableError, match=words):
        check_schedule(cron, zone, missed)
