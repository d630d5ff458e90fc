"""What `drain top` and `drain events` show on terminals of several sizes; texts of others do nothing there."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console

from drain.contrib.check.command import nagios_line
from drain.contrib.check.thresholds import Figure, Finding, Level, Threshold, Verdict, worst
from drain.contrib.events.command import event_line
from drain.contrib.events.life import Event
from drain.read.queue import Queue
from drain.read.system import System
from drain.tables.pauses import Pause
from drain.terminal.top_view import SORTS, curve, top_view
from tests.golden import WIDTHS, assert_printed

NOW = datetime(2026, 11, 22, 1, 31, 7, tzinfo=UTC)
LEADER = {"name": "shop-1:4711:c0ffee", "since": "2026-11-22T01:01:07.123456+00:00"}


def queue(
    waiting: dict[str, int], running: int = 0, per_second: float = 0, oldest: float = 0, **more: Any
) -> Queue:
    return Queue(waiting=waiting, running=running, per_second=per_second, queued_seconds=oldest, **more)


def runs(id_: int, job_name: str, queue: str, seconds: float, worker: str, **more: Any) -> dict[str, Any]:
    since = {"now": NOW, "claimed_at": NOW - timedelta(seconds=seconds)}
    names = {"id": id_, "job_name": job_name, "queue": queue, "claimed_by": worker}
    return {"attempt": 1, "is_over": False, **names, **since, **more}


def busy() -> System:
    queues = {
        "default": queue({"queued": 3}, 2, 35.25, 0.042, workers=4, free=2),
        "mail": queue(
            {"list_full": 10_000, "queued": 1_201, "scheduled": 7},
            *(16, 0.0, 75.0),
            estimates={"ready", "list_full"},
            workers=2,
            free=0,
        ),
        "calls": queue(
            {"limited": 950, "paused": 12},
            *(50, 4.0, 3_720.0),
            paused=Pause("calls", None, None, None, None, None, NOW),
            workers=8,
            free=8,
        ),
        "reports-of-the-week:europe": queue({"retrying": 6}, dead=17, failing=True, workers=0),
    }
    running = [
        runs(1_204_511, "shop.reports.weekly.digest", "calls", 7_340.0, "w7:31:ab", attempt=3, is_over=True),
        runs(42, "shop.jobs.\x1b[2Jsend_receipt", "mail", 4.2, "shop-2.internal:4711:c0ffee"),
    ]
    return System(NOW, LEADER, queues, running, dead_groups=3)


def drawn(width: int, height: int | None, system: System, sort: str = "waiting", **more: Any) -> str:
    console = Console(file=io.StringIO(), width=width, height=height or 100, highlight=False, markup=False)
    console.print(top_view(system, width, height, sort, more.pop("problem", None), **more))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


# Ten looks, in the order of `CURVES`.
SAMPLES = [(240 * look, 12_166 - 500 * look, 68, look % 2) for look in range(10)]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_screen_shows_queues_and_running_jobs(width: int) -> None:
    assert_printed("top", width, drawn(width, 24, busy(), samples=SAMPLES))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_stale_screen_shows_the_reason(width: int) -> None:
    problem = "PostgreSQL at localhost/shop cannot be used: connection refused; trying again"
    assert_printed(
        "top-away", width, drawn(width, 24, busy(), "name", problem=problem, paused=True, samples=SAMPLES)
    )


def test_an_empty_system_is_drawn() -> None:
    text = drawn(80, 24, System(NOW))
    assert "No leader  Jobs are not drained: start `drain run`." in text
    assert "no queue has jobs" in text


def many() -> System:
    queues = {f"queue-{number:03}": queue({"due": number}, 1, workers=1) for number in range(500)}
    running = [runs(n, "m.f", "q", 600.0 - n, "w:1:a") for n in range(100)]
    return System(NOW, LEADER, queues, running)


@pytest.mark.parametrize("size", [(80, 24), (80, 14), (80, 13), (80, 10), (80, 8), (120, 50), (200, 200)])
def test_a_screen_fits_the_terminal_and_its_last_line_names_the_keys(size: tuple[int, int]) -> None:
    width, height = size
    for system in (busy(), many()):
        for problem in (None, "away", "away " * 80):
            lines = drawn(width, height, system, problem=problem, samples=SAMPLES).splitlines()
            assert len(lines) <= height
            assert all(len(line) <= width for line in lines)
            assert lines[-1].startswith("q quit")


@pytest.mark.parametrize("size", [(40, 8), (20, 5), (1, 1)])
def test_a_tiny_terminal_breaks_nothing(size: tuple[int, int]) -> None:
    drawn(*size, many())


def test_the_longest_runs_are_shown_if_not_all_fit() -> None:
    text = drawn(80, 24, many())
    assert "and 493 more queues" in text
    assert "10m" in text


@pytest.mark.parametrize(
    ("sort", "first"),
    [("waiting", "mail"), ("rate", "default"), ("oldest", "calls"), ("busy", "calls"), ("name", "calls")],
)
def test_the_queues_are_sorted(sort: str, first: str) -> None:
    assert sort in SORTS.values()
    assert drawn(120, 24, busy(), sort).splitlines()[7].startswith(first)


@pytest.mark.parametrize(
    ("values", "drawn_values"),
    [
        ([], ""),
        ([0, 0], "▁▁"),
        ([0, 1, 1_000], "▁▂█"),
        # More values than columns: the largest of each part.
        ([0, 7, 0, 0, 3, 0], "█▁▄"),
    ],
)
def test_a_curve_begins_at_zero_and_ends_at_its_largest_value(values: list[int], drawn_values: str) -> None:
    assert curve(values, 3) == drawn_values


def test_curves_appear_with_the_second_look() -> None:
    for samples, has_curves in ((SAMPLES[:1], False), (SAMPLES[:2], True)):
        assert ("█" in drawn(80, 24, busy(), samples=samples)) is has_curves
    # A low terminal needs its lines for queues.
    assert "█" not in drawn(80, 19, busy(), samples=SAMPLES)


def test_the_health_line_names_the_worst_queues_first() -> None:
    system = busy()
    assert "3 of 4 queues: mail Stalled, reports" in drawn(80, 24, system)
    system.queues = {"calls": system.queues["calls"], "default": system.queues["default"]}
    assert drawn(80, 24, system).startswith("Needs attention  1 of 2 queues: calls Paused ")
    del system.queues["calls"]
    assert drawn(80, 24, system).startswith("OK  leader shop-1:4711:c0ffee since")
    # Outdated numbers do not prove health.
    assert drawn(80, 24, system, problem="away").startswith("Not current ")


@pytest.mark.parametrize(
    ("found", "leader", "state"),
    [
        (queue({"queued": 1}), LEADER, "OK"),
        (queue({"rate": 9, "limited": 1}), LEADER, "Rate-limited, Limited"),
        (queue({"rate": 9}, failing=True, workers=0), LEADER, "Failing, No workers"),
        (queue({"due": 1}), None, "Not drained"),
    ],
)
def test_the_state_names_troubles_or_else_rules(
    found: Queue, leader: dict[str, str] | None, state: str
) -> None:
    text = drawn(120, 24, System(NOW, leader, {"mail": found}))
    (row,) = [line for line in text.splitlines() if line.startswith("mail ")]
    assert re.split(" {2,}", row)[1] == state


# --- events


def event(name: str, after: float, **more: Any) -> Event:
    at = NOW + timedelta(seconds=after)
    job: dict[str, Any] = {"id": 42, "job_name": "shop.send", "queue": "mail", "tag": None}
    return Event(at=at, order=at, event=name, **job, **more)


def test_each_event_is_a_line() -> None:
    events = [
        event("staged", 0.001, until=NOW + timedelta(hours=1)),
        event("moved", 1.25),
        event("claimed", 2, attempt=1, worker="shop-1:4711:c0ffee"),
        event("failed", 3, attempt=1, error="NoRow: \x1b[31m", until=NOW + timedelta(seconds=13)),
        event("delivered_again", 13, is_exact=False),
        event("finished", 14, attempt=2, seconds=0.34),
        event("superseded", 14, superseded_by=43),
        event("dead", 15, attempt=5, reason="failed", error="it broke"),
    ]
    lines = [event_line(each, with_day=False) for each in events]
    for line in lines:
        # As the command does on a terminal.
        line.truncate(80, overflow="ellipsis")
    text = "\n".join(line.plain for line in lines)
    assert_printed("events", 80, text)


# --- checks


def test_the_nagios_output_is_one_line_with_its_numbers() -> None:
    verdict = Verdict(
        [Finding("lag", Level.WARNING, "a|b\nc"), Finding("dead", Level.UNKNOWN, "x" * 2_000)],
        [
            Figure("lag", 1.5, "s", Threshold(30, 120)),
            Figure("dead", 3, "", Threshold(0, None)),
            Figure("wait", 1e9),
        ],
    )
    line = nagios_line(verdict)
    assert line.startswith("DRAIN WARNING - a/b\\nc; xxx")
    assert line.endswith("\u2026 | lag=1.5s;30;120;0 dead=3;0;;0 wait=1000000000;;;0")
    assert len(line) < 1_200


def test_a_critical_finding_outranks_an_unknown_one() -> None:
    assert worst([]) == Level.OK
    assert worst([Level.OK, Level.UNKNOWN]) == Level.UNKNOWN
    assert worst([Level.UNKNOWN, Level.WARNING]) == Level.WARNING
    assert worst([Level.CRITICAL, Level.UNKNOWN]) == Level.CRITICAL


def test_a_value_at_its_threshold_is_ok() -> None:
    threshold = Threshold(1, 2)
    assert [threshold.level(value) for value in (0, 1, 1.5, 2, 3)] == [0, 0, 1, 1, 2]
