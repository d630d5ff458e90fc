"""Effects of changed rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from drain.admission.options import OPTIONS, as_options
from drain.admission.rules import Rate, Rules
from drain.contrib.web.pages.queue import TITLES_OF_RULES
from drain.formatting import count, duration, visible
from drain.read.queue import Queue


def describe(before: Rules, after: Rules, numbers: Queue) -> list[str]:
    """Describe each changed rule and its effect."""
    old, new = as_options(before), as_options(after)
    lines = []
    for name in OPTIONS:
        if old.get(name) != new.get(name):
            change = f"{TITLES_OF_RULES[name]}: {_value(old.get(name))} → {_value(new.get(name))}"
            lines.append("; ".join([change, *_effects(name, before, after, numbers)]) + ".")
    return lines


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return visible(", ".join(f"{key}={weight}" for key, weight in value.items()))[:500]
    return "yes" if value is True else str(value)


def _effects(name: str, before: Rules, after: Rules, numbers: Queue) -> Iterator[str]:
    backlog = numbers.waits - numbers.waiting.get("paused", 0)
    if name == "running" and after.running:
        # A job counts from its delivery, before a worker takes it.
        taken = numbers.queued + numbers.running
        about = "~" if numbers.is_estimate("running") or numbers.is_estimate("queued") else ""
        jobs = f"{about}{count(taken, 'job')} {'is' if taken == 1 else 'are'} queued or running now"
        excess = taken - after.running + 1
        wait = f", so none is delivered until {excess:,} {'ends' if excess == 1 else 'end'}"
        yield jobs + (wait if taken >= after.running else "")
    if name == "rate" and backlog:
        about = "~" if numbers.is_estimate("waits") else ""
        jobs = f"the backlog of {about}{count(backlog, 'job')}"
        if after.rate is None:
            yield f"{jobs} is no longer rate-limited"
        else:
            instead = f" instead of {_takes(backlog, before.rate)}" if before.rate else ""
            yield f"{jobs} takes at least {_takes(backlog, after.rate)}{instead}"


def _takes(jobs: int, rate: Rate) -> str:
    return duration(jobs * rate.seconds / rate.count)
