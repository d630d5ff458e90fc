"""What `drain explain` prints, compared with text files; and the page that lists its causes."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from drain.commands.explain import show_explanation
from drain.read.explain import CAUSES, Estimate, Explanation
from drain.read.explain.explanation import Finding
from tests.golden import WIDTHS, assert_printed

NOW = datetime(2026, 11, 22, 1, 31, 7, tzinfo=UTC)
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "why-does-it-wait.md"


def explanation(state: str, finding: Finding, **more: Any) -> Explanation:
    job: Mapping[str, Any] = {"job_name": "shop.jobs.call_back", "queue": "calls", "key": "acme"} | more
    return Explanation(1_204_511, state, finding, NOW, **job)


EXPLANATIONS = {
    "limit": explanation(
        "staged",
        Finding(
            "limit_of_key",
            "4 jobs with key acme are running in queue calls, the maximum: job 1204400 on web-1:4711:a1b2c3 since "
            "2026-11-22 01:27:00Z; job 1204403 on web-1:4712:d4e5f6 since 2026-11-22 01:28:00Z; job 1204404 queued "
            "since 2026-11-22 01:31:06Z; job 1204405 queued since 2026-11-22 01:31:06Z",
            NOW - timedelta(seconds=200),
            Estimate(40.0, "3 ahead; key acme recently completed a job every 10s"),
        ),
    ),
    "unknown": explanation(
        "unknown",
        Finding(
            "not_given_out",
            "the id was never assigned: the last one is 42",
            None,
            Estimate(None, "there is no such job"),
        ),
        job_name=None,
        queue=None,
        key=None,
    ),
    "without-redis": explanation(
        "queued",
        Finding(
            "queued",
            "it is waiting for a worker of queue calls",
            NOW - timedelta(seconds=0.1),
            Estimate(None, "its position in Redis is unknown"),
        ),
        key=None,
        also=("Redis is not configured, so lists and workers are unknown: set DRAIN_REDIS_URL",),
    ),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", EXPLANATIONS)
def test_an_explanation_is_a_few_lines_that_fit_the_terminal(
    name: str, width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    show_explanation(EXPLANATIONS[name])
    assert_printed(f"explain-{name}", width, capsys.readouterr().out)


def test_control_characters_in_user_texts_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    show_explanation(
        explanation("dead", Finding("dead", "gave up: \x1b[2J", NOW, Estimate(None, "")), key="\x1b]")
    )

    assert "\x1b" not in capsys.readouterr().out


def test_the_page_lists_each_cause_with_its_meaning() -> None:
    text = PAGE.read_text(encoding="utf-8").split("## Causes")[1]
    listed = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE))

    assert listed == dict(CAUSES)
