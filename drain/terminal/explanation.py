"""Explanation of one job: a few lines, folded to the width of the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.console import Console

from drain.explain import Explanation
from drain.visible import visible
from drain.wording import clock, duration, relative

# Width of the words at the left.
_TITLE = 8
# States of jobs that have ended, or run: they wait for nothing.
_WAITS_FOR_NOTHING = ("running", "finished", "dead", "unknown")


def show_explanation(found: Explanation) -> None:
    """Print what a job waits for, since when, and when it will probably start."""
    console = Console(highlight=False, markup=False)
    for title, text in _lines(found):
        folded = textwrap.wrap(visible(text), max(console.width - _TITLE, 20), break_on_hyphens=False)
        for number, line in enumerate(folded):
            console.print(f"{title if number == 0 else '':{_TITLE}}{line}", soft_wrap=True)


def _lines(found: Explanation) -> Iterator[tuple[str, str]]:
    finding = found.finding
    yield "job", f"{found.id}{_name(found)}"
    yield "state", f"{found.state}: {finding.cause}"
    yield "why", finding.why
    if finding.since is not None:
        yield "since", f"{clock(finding.since)}, {relative(finding.since, found.now)}"
    if found.state not in _WAITS_FOR_NOTHING:
        yield "starts", _start(found)
    for remark in found.also:
        yield "note", remark


def _name(found: Explanation) -> str:
    if found.job_name is None:
        return ""
    key = f", key {found.key}" if found.key is not None else ""
    return f", {found.job_name}, queue {found.queue}{key}"


def _start(found: Explanation) -> str:
    seconds, reason = found.finding.estimate
    return f"no estimate: {reason}" if seconds is None else f"in about {duration(seconds)}: {reason}"
