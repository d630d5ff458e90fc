"""Reports of `drain queue`: rules, pauses, and changes by a file of rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drain.admission.declared import Difference
from drain.admission.options import OPTIONS, as_options
from drain.admission.rules import Rules
from drain.formatting import count, duration, relative, visible
from drain.tables.pauses import Pause

_MOST_LINES = 1000
_WEIGHTS = 3


def show_queues(rules: Sequence[Rules], pauses: Sequence[Pause], now: datetime) -> None:
    """Print the queues with rules, and the pauses."""
    console = Console(highlight=False, markup=False)
    if rules:
        console.print(_rules_table(rules[:_MOST_LINES]))
        _print_rest(console, len(rules), "queue")
    else:
        console.print("no queue has rules or jobs")
    if pauses:
        console.print()
        console.print(_pauses_table(pauses[:_MOST_LINES], now))
        _print_rest(console, len(pauses), "pause")


def _print_rest(console: Console, number: int, what: str) -> None:
    if number > _MOST_LINES:
        console.print(f"and {count(number - _MOST_LINES, f'more {what}')}: `--json` shows all")


def show_queue(rules: Rules, pauses: Sequence[Pause], now: datetime) -> None:
    """Print a queue's rules and pauses."""
    console = Console(highlight=False, markup=False)
    options = as_options(rules)
    width = max(map(len, OPTIONS)) + 2
    if not options:
        console.print(f"queue {rules.queue} has no rules")
    for name, value in options.items():
        console.print(f"{name:{width}}{_shown(name, value)}", soft_wrap=True)
    if pauses:
        console.print()
        console.print(_pauses_table(pauses, now))


def show_differences(found: Sequence[Difference]) -> None:
    """Print changed rules."""
    console = Console(highlight=False, markup=False)
    for each in found:
        console.print(each.queue)
        for name, (before, after) in each.options.items():
            console.print(f"  {name:16}{_shown(name, before)} -> {_shown(name, after)}", soft_wrap=True)


def differences_as_json(found: Sequence[Difference], *, applied: bool) -> str:
    """Build JSON of changed rules."""
    changed = [
        {"queue": each.queue, "before": as_options(each.before), "after": as_options(each.after)}
        for each in found
    ]
    return json.dumps({"changed": changed, "applied": applied})


def queue_as_json(rules: Rules, pauses: Sequence[Pause]) -> dict[str, Any]:
    """Build the JSON of a queue's rules and pauses."""
    return {"queue": rules.queue, "rules": as_options(rules), "pauses": pauses_as_json(pauses)}


def pauses_as_json(pauses: Sequence[Pause]) -> list[dict[str, Any]]:
    """Build the JSON of pauses."""
    return [
        {
            "queue": each.queue,
            "job": each.job_name,
            "key": each.key,
            "until": None if each.until is None else each.until.isoformat(),
            "reason": each.reason,
            "paused_by": each.paused_by,
            "paused_at": None if each.paused_at is None else each.paused_at.isoformat(),
        }
        for each in pauses
    ]


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "aging":
        return duration(value)
    if name == "weights":
        return visible(", ".join(f"{key}={weight:g}" for key, weight in value.items()))
    return f"{value:,}" if isinstance(value, int) else visible(str(value))


def _rules_table(rules: Sequence[Rules]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("queue", overflow="fold")
    for column in ("running", "per key", "rate", "per key", "burst"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("order", overflow="fold")
    for each in rules:
        limits = (each.running, each.running_per_key, each.rate, each.rate_per_key, each.burst)
        table.add_row(
            visible(each.queue),
            *("" if limit is None else _number(limit) for limit in limits),
            _order(each) if as_options(each) else "no rules",
        )
    return table


def _number(limit: object) -> str:
    return f"{limit:,}" if isinstance(limit, int) else str(limit)


def _order(rules: Rules) -> str:
    words = []
    if rules.fair:
        named = [f"{key}={weight:g}" for key, weight in list(rules.weights.items())[:_WEIGHTS]]
        more = len(rules.weights) - len(named)
        words.append(" ".join(["fair", *named, *([f"and {more} more"] if more else [])]))
    if rules.ordered:
        words.append(f"ordered ({rules.on_dead})")
    if rules.aging_seconds:
        words.append(f"aging {duration(rules.aging_seconds)}")
    return visible(", ".join(words))


def _pauses_table(pauses: Sequence[Pause], now: datetime) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("paused", "since", "until", "by", "reason"):
        table.add_column(column, overflow="fold")
    for each in pauses:
        table.add_row(
            Text(_named(each), style="yellow"),
            "" if each.paused_at is None else relative(each.paused_at, now),
            "resumed" if each.until is None else relative(max(each.until, now), now),
            visible(each.paused_by or ""),
            visible(each.reason or ""),
        )
    return table


def _named(pause: Pause) -> str:
    parts = (("queue", pause.queue), ("job", pause.job_name), ("key", pause.key))
    return visible(" ".join(f"{kind} {name}" for kind, name in parts if name is not None))
