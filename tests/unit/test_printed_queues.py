"""Tables of `drain queue` on terminals of 80 and of 120 columns; the texts are in tests/printed."""

from datetime import UTC, datetime, timedelta

import pytest

from drain.admission.declared import Difference
from drain.admission.options import with_options
from drain.admission.rules import Rules
from drain.tables.pauses import Pause
from drain.terminal import queue_report
from tests.golden import WIDTHS, assert_printed

NOW = datetime(2026, 11, 22, 1, 31, 7, tzinfo=UTC)
CALLS = with_options(
    Rules("calls"),
    {
        "running": 50, "running_per_key": 4, "rate": "100/s", "rate_per_key": "10/min", "burst": 20,
        "fair": True, "weights": {"acme": 3, "größe\x1b[2J": 0.5, "zoo": 2, "yak": 9},
    },
)  # fmt: skip
RULES = [
    CALLS,
    with_options(Rules("events-of-all-customers-in-order"), {"ordered": True, "on_dead": "skip"}),
    with_options(Rules("imports"), {"running": 20_000, "aging": 90}),
]
PAUSES = [
    Pause("calls", None, "acme", NOW + timedelta(seconds=30), "rate limited", "web-1:4711:a1", NOW),
    Pause(
        None, "shop.jobs.send_receipt", None, None, "the printer\nis on fire", "ann", NOW - timedelta(hours=2)
    ),
    Pause("mail", None, None, None, None, "drain_operator", NOW - timedelta(days=3)),
]
every_width = pytest.mark.parametrize("width", WIDTHS)


@every_width
def test_rules_and_pauses_fit_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    queue_report.show_queues(RULES, PAUSES, NOW)
    assert_printed("queue-list", width, capsys.readouterr().out)


@every_width
def test_the_rules_of_one_queue_have_a_line_each(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    queue_report.show_queue(CALLS, PAUSES[:2], NOW)
    assert_printed("queue-show", width, capsys.readouterr().out)


@every_width
def test_a_difference_has_a_line_for_each_rule(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    changed = with_options(CALLS, {"running": None, "weights": {"acme": 1}})
    new = Difference("imports", Rules("imports"), RULES[2])
    queue_report.show_differences([Difference("calls", CALLS, changed), new])
    assert_printed("queue-apply", width, capsys.readouterr().out)


def test_a_database_without_rules_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    queue_report.show_queues([], [], NOW)
    queue_report.show_queue(Rules("calls"), [], NOW)
    assert capsys.readouterr().out == "no queue has rules or jobs\nqueue calls has no rules\n"
