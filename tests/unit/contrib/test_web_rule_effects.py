"""Preview of changed rules, from a queue's numbers."""

from __future__ import annotations

from typing import Any

import pytest

from drain.admission.options import with_options
from drain.admission.rules import Rules
from drain.contrib.web.pages.rule_effects import describe
from drain.read.queue import Queue

NUMBERS = Queue(
    ready=5000, queued=2, running=4, waiting={"rate": 4998, "queued": 2, "paused": 7, "scheduled": 50}
)
CASES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"running": 10},
        {"running": 2},
        "Maximum running jobs: 10 → 2; 6 jobs are queued or running now, so none is delivered until 5 end.",
    ),
    ({"running": 10}, {"running": 7}, "Maximum running jobs: 10 → 7; 6 jobs are queued or running now."),
    (
        {"running": 10},
        {"running": 6},
        "Maximum running jobs: 10 → 6; 6 jobs are queued or running now, so none is delivered until 1 ends.",
    ),
    ({"running": 10}, {"running": None}, "Maximum running jobs: 10 → none."),
    (
        {"rate": "100/s"},
        {"rate": "10/s"},
        "Maximum start rate: 100/s → 10/s; the backlog of 5,000 jobs takes at least 8m 20s instead of 50s.",
    ),
    (
        {},
        {"rate": "10/min"},
        "Maximum start rate: none → 10/min; the backlog of 5,000 jobs takes at least 8h 20m.",
    ),
    (
        {"rate": "1/s"},
        {"rate": None},
        "Maximum start rate: 1/s → none; the backlog of 5,000 jobs is no longer rate-limited.",
    ),
    ({}, {"fair": True}, "Fair: keys take turns: none → yes."),
]


@pytest.mark.parametrize(("before", "changes", "says"), CASES)
def test_a_changed_rule_is_described_with_its_effect(
    before: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    old = with_options(Rules("mail"), before)
    assert describe(old, with_options(old, changes), NUMBERS) == [says]


def test_an_estimate_is_marked() -> None:
    numbers = Queue(ready=20_000, waiting={"due": 20_000}, estimates={"due"})
    (line,) = describe(Rules("mail"), with_options(Rules("mail"), {"rate": "100/s"}), numbers)
    assert "the backlog of ~20,000 jobs takes at least 3m 20s" in line
