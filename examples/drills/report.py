"""Output of the drills: events as they happen, the verdict of each drill, and at the end a table of all.

The events are JSON lines on standard output in any case. With `--json` the verdicts are JSON lines as well, and
there is no other output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from drain.formatting import duration
from drills.verdict import Evidence, Outcome, Verdict

_STYLES = {Outcome.SURVIVED: "green", Outcome.NOT_PROVEN: "yellow", Outcome.NOT_SURVIVED: "bold red"}


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one drill."""

    drill: str
    summary: str
    verdict: Verdict
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON's types, for programs."""
        verdict = self.verdict
        return {
            "drill": self.drill,
            "verdict": verdict.outcome,
            "passed": verdict.passed,
            "happened": verdict.happened,
            "race": [asdict(each) for each in verdict.race],
            "survival": [asdict(each) for each in verdict.survival],
            "seconds": round(self.seconds, 1),
        }


class Report:
    """Printer of events, verdicts and the final table.

    Args:
        as_json: Print JSON lines only, for programs.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(highlight=False, soft_wrap=True)
        self._drill = ""
        self._began = monotonic()

    def begin(self, drill: str, summary: str) -> None:
        """Begin a drill; the times of its events count from now."""
        self._drill, self._began = drill, monotonic()
        if not self._as_json:
            self._console.print(f"[bold]{drill}[/bold]: {escape(summary)}")

    def record(self, event: str, **details: Any) -> None:
        """Record an event of the drill."""
        line = {"at": round(self.seconds(), 3), "drill": self._drill, "event": event, **details}
        print(json.dumps(line), flush=True)

    def seconds(self) -> float:
        """Return the seconds since the drill began."""
        return monotonic() - self._began

    def conclude(self, result: Result) -> None:
        """Show the verdict of a drill."""
        if self._as_json:
            print(json.dumps(result.as_json()), flush=True)
            return
        for title, evidence in (("took place", result.verdict.race), ("survived", result.verdict.survival)):
            for each in evidence:
                self._console.print(_line(title, each))
        outcome = result.verdict.outcome
        style = _STYLES[outcome]
        self._console.print(f"[{style}]{result.drill}: {outcome}[/{style}], {duration(result.seconds)}\n")

    def summarise(self, results: Sequence[Result]) -> None:
        """Show all drills in one table."""
        if not self._as_json:
            self._console.print(_table(results), soft_wrap=False)

    def error(self, line: str) -> None:
        """Print the reason why there is no verdict, in one line."""
        print(f"Error: {line}", file=sys.stderr)


def _line(title: str, evidence: Evidence) -> str:
    mark = "[green]yes[/green]" if evidence.holds else "[bold red]NO [/bold red]"
    return f"  {title:10}  {mark}  {escape(evidence.claim)}: {escape(evidence.found)}"


def _table(results: Sequence[Result]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("drill", no_wrap=True)
    table.add_column("what happened")
    table.add_column("evidence")
    table.add_column("verdict", no_wrap=True)
    table.add_column("took", justify="right")
    for result in results:
        outcome = result.verdict.outcome
        found = "; ".join(each.found for each in result.verdict.race)
        table.add_row(
            result.drill,
            escape(result.verdict.happened),
            escape(found),
            f"[{_STYLES[outcome]}]{outcome}",
            duration(result.seconds),
        )
    return table
