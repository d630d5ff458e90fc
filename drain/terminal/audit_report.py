"""Report of `drain audit`: a line for each check, a line for each breach, and one that sums up."""

from __future__ import annotations

import os

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from drain.audit import CHECKS, Breach, Report
from drain.audit.report import OF_REDIS
from drain.visible import visible
from drain.wording import count

_NAME_WIDTH = max(map(len, CHECKS))
_NOT_ASKED = "no Redis is named: set DRAIN_REDIS_URL"


def show_audit(report: Report) -> None:
    """Print the report.

    Lines of breaches are wrapped on a terminal; in a file each breach has one line.
    """
    console = Console(highlight=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.soft_wrap = True
    checks = report.checks()
    for name in CHECKS:
        _show_check(console, report, name, checks.get(name))
    # One line for all: there is one Redis, and so one reason.
    for reason in sorted(set(report.unchecked.values()))[:1]:
        _show_indented(console, reason)
    console.print(Text(_summary(report)))


def _show_check(console: Console, report: Report, name: str, breaches: list[Breach] | None) -> None:
    if breaches is None:
        _show_line(
            console, "-", "", name, f"not checked, {_NOT_ASKED}" if name == OF_REDIS[0] else "not checked"
        )
    elif name in report.unchecked:
        _show_line(console, "?", "yellow", name, "could not be checked: Redis does not answer")
    elif breaches:
        _show_line(console, "FAIL", "red", name, CHECKS[name].breach)
        for breach in breaches:
            _show_indented(console, _breach_line(breach))
    else:
        _show_line(console, "ok", "green", name, CHECKS[name].ok)


def _show_line(console: Console, word: str, style: str, name: str, text: str) -> None:
    console.print(Text.assemble((f"{word:4}", style), f"  {name:{_NAME_WIDTH}}  {text}"))


def _show_indented(console: Console, text: str) -> None:
    line = Text(visible(text))
    console.print(Text("      ") + line if console.soft_wrap else Padding(line, (0, 0, 0, 6)))


def _breach_line(breach: Breach) -> str:
    ids = ", ".join(map(str, breach.ids))
    more = ", ..." if breach.count > len(breach.ids) else ""
    return f"{breach.count:,} {breach.explanation}" + (f": {ids}{more}" if ids else "")


def _summary(report: Report) -> str:
    counts = ", ".join(f"{number:,} {state}" for state, number in report.counts.items())
    if report.breaches:
        return f"{counts}: {count(len(report.breaches), 'breach', 'breaches')}"
    return f"{counts}: {'not all could be checked' if report.unchecked else 'all is well'}"
