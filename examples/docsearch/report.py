"""Output of the example: progress while it runs, and at the end figures, hits and the verdict.

With `--json` standard output is one line of JSON.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from docsearch import progress
from docsearch.application import UNDER_WAY
from docsearch.index import Hit
from docsearch.progress import Show
from docsearch.verdict import Verdict
from drain.formatting import duration

_IDS_SHOWN = 5
_MARKED = re.compile("\x02(.*?)\x03", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Result:
    """Result of the example.

    Attributes:
        verdict: Result of the comparison.
        seconds: Duration of the run.
        words: Words of the search.
        hits: Documents that the search found, the best first.
        absent: Names of some documents that were rolled back, and are not in the index.
    """

    verdict: Verdict
    seconds: float
    words: str
    hits: Sequence[Hit]
    absent: Sequence[str]

    def as_json(self) -> dict[str, object]:
        """Convert to JSON's types, for programs."""
        verdict = self.verdict
        return {
            "committed": verdict.committed,
            "executed": verdict.executed,
            "rolled_back": verdict.rolled_back,
            "lost": len(verdict.lost),
            "ran_without_commit": len(verdict.ran_without_commit),
            "ran_twice": verdict.ran_twice,
            "commit_to_start_p50_ms": _rounded(verdict.commit_to_start_ms(50)),
            "commit_to_start_p99_ms": _rounded(verdict.commit_to_start_ms(99)),
            "seconds": round(self.seconds, 1),
            "search": {"words": self.words, "hits": [hit.name for hit in self.hits]},
        }


class Report:
    """Printer of progress and result.

    Args:
        as_json: Print one line of JSON, for programs.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(stderr=as_json, highlight=False)

    def say(self, line: str) -> None:
        """Print a line for people; with JSON, on standard error if it is a terminal."""
        if not self._as_json or self._console.is_terminal:
            self._console.print(line, markup=False, soft_wrap=True)

    def error(self, line: str) -> None:
        """Print the reason why there is no result, in one line."""
        print(f"Error: {line}", file=sys.stderr, flush=True)

    def progress(self) -> AbstractContextManager[Show]:
        """Show the progress while the block runs."""
        if self._console.is_terminal:
            return progress.bars(self._console)
        return progress.lines(self.say)

    def conclude(self, result: Result) -> None:
        """Show the result."""
        if self._as_json:
            print(json.dumps(result.as_json()))
            return
        for part in (_figures(result), _findings(result), _sentence(result.verdict)):
            self._console.print()
            self._console.print(part)


def sentence(verdict: Verdict) -> str:
    """Put the verdict into words; every number in it is computed."""
    if verdict.holds:
        return (
            f"Nothing was lost: all {verdict.committed:,} committed documents are in the index, "
            f"word for word. Nothing ran for any of the {verdict.rolled_back:,} transactions "
            "that were rolled back."
        )
    faults = []
    if verdict.lost:
        faults.append(
            f"{len(verdict.lost):,} committed, yet not in the index as saved (ids {_some(verdict.lost)})"
        )
    if verdict.ran_without_commit:
        faults.append(
            f"{len(verdict.ran_without_commit):,} never committed, yet something ran for them "
            f"(ids {_some(verdict.ran_without_commit)})"
        )
    return f"The promise was broken. Documents: {'; '.join(faults)}."


def _sentence(verdict: Verdict) -> Text:
    return Text(sentence(verdict), style="bold green" if verdict.holds else "bold red")


def _some(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:_IDS_SHOWN]))
    return shown if len(ids) <= _IDS_SHOWN else f"{shown}, …"


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)


def _figures(result: Result) -> Table:
    verdict = result.verdict
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    for row in (
        ("committed", f"{verdict.committed:,}", "documents, each with its job"),
        ("executed", f"{verdict.executed:,}", "jobs, by two RQ workers"),
        ("rolled back", f"{verdict.rolled_back:,}", "on purpose, with the job already staged"),
        ("lost", f"{len(verdict.lost):,}", "committed, but not so in the index"),
        ("ran without commit", f"{len(verdict.ran_without_commit):,}", "rolled back, but left a trace"),
        ("ran twice", f"{verdict.ran_twice:,}", "allowed, should a worker die"),
        ("commit to start, p50", _milliseconds(verdict, 50), "COMMIT sent → job's first line"),
        ("commit to start, p99", _milliseconds(verdict, 99), f"at most {UNDER_WAY} under way, no fsync"),
        ("everything", duration(result.seconds), "from the start to this table"),
    ):
        table.add_row(*row)
    return table


def _milliseconds(verdict: Verdict, percent: int) -> str:
    number = verdict.commit_to_start_ms(percent)
    return "-" if number is None else f"{number:.1f} ms"


def _findings(result: Result) -> Text:
    text = Text.assemble("A search in the index for ", (result.words, "bold"), ":")
    for hit in result.hits:
        text.append(f"\n  {hit.name}\n      ", style="cyan").append_text(_best_line(hit))
    if result.hits:
        text.append(f"\nTo check a hit:            python -m pydoc {result.hits[0].name}")
    if result.absent:
        text.append(f"\nRolled back, so not there: {', '.join(result.absent)}")
    return text


def _best_line(hit: Hit) -> Text:
    """Choose the line of the document that has the most matches; the matches are bold."""
    line = max(hit.marked.splitlines(), key=lambda line: line.count("\x02"), default="")
    text = Text()
    for position, part in enumerate(_MARKED.split(line.strip())):
        text.append(part, style="bold yellow" if position % 2 else "default")
    return text
