"""What a reader sees: progress while it runs, and at the end figures, hits and the verdict.

With `--json` standard output gets one line and nothing else.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from docsearch.application import UNDER_WAY
from docsearch.index import Hit
from docsearch.verdict import Verdict

_SECONDS_BETWEEN_LINES = 10.0
_IDS_SHOWN = 5
_MARKED = re.compile("\x02(.*?)\x03", re.DOTALL)


class Show(Protocol):
    """Shows how far it has come."""

    def __call__(
        self, *, expected: int | None, saved: int, committed: int, drained: int, indexed: int
    ) -> None:
        """Take the latest figures; `expected` transactions is None while nobody knows yet."""


class Report:
    """The reader's view.

    Args:
        as_json: Standard output is for a program.
    """

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(stderr=as_json, highlight=False, soft_wrap=True)

    def say(self, line: str) -> None:
        """One line for people."""
        if not self._as_json or self._console.is_terminal:
            self._console.print(line, markup=False)

    def error(self, line: str) -> None:
        """One line that says why there is no result."""
        print(f"Error: {line}", file=sys.stderr)

    @contextmanager
    def progress(self) -> Iterator[Show]:
        """Bars on a terminal, a line now and then elsewhere, nothing between program and program."""
        if self._console.is_terminal:
            with _bars(self._console) as bars:
                yield _Bars(bars)
        else:
            yield _Lines(self)

    def conclude(
        self,
        verdict: Verdict,
        seconds: float,
        words: str,
        hits: Sequence[Hit],
        examples: Sequence[str],
    ) -> None:
        """Show the result.

        Args:
            verdict: What the comparison found.
            seconds: How long everything took.
            words: What was searched for.
            hits: What was found.
            examples: Names of some documents that were rolled back.
        """
        if self._as_json:
            print(json.dumps(as_json(verdict, seconds, words, hits)))
            return
        self._console.print(_figures(verdict, seconds))
        self._console.print(_findings(words, hits))
        if hits:
            self.say(f"Check a hit:          python -m pydoc {hits[0].name}")
        if examples:
            self.say(f"Rolled back, say:     {', '.join(examples)}")
        self._console.print(Text(sentence(verdict), style="green" if verdict.holds else "bold red"))


def as_json(verdict: Verdict, seconds: float, words: str, hits: Sequence[Hit]) -> dict[str, object]:
    """The result as an object for programs."""
    return {
        "committed": verdict.committed,
        "executed": verdict.executed,
        "rolled_back": verdict.rolled_back,
        "lost": len(verdict.lost),
        "ran_without_commit": len(verdict.ran_without_commit),
        "ran_twice": verdict.ran_twice,
        "commit_to_start_ms": {
            f"p{percent}": _rounded(verdict.commit_to_start_ms(percent)) for percent in (50, 99)
        },
        "seconds": round(seconds, 1),
        "search": {"words": words, "hits": [hit.name for hit in hits]},
    }


def sentence(verdict: Verdict) -> str:
    """The verdict in words; each number in it has been computed."""
    if verdict.holds:
        return (
            f"Nothing was lost: all {verdict.committed:,} committed documents are in the index, "
            f"word for word. Nothing ran for any of the {verdict.rolled_back:,} rolled-back transactions."
        )
    faults = []
    if verdict.lost:
        faults.append(
            f"{len(verdict.lost):,} committed documents are not in the index as they were saved "
            f"(ids {_some(verdict.lost)})"
        )
    if verdict.ran_without_commit:
        faults.append(
            f"something ran for {len(verdict.ran_without_commit):,} documents that were never committed "
            f"(ids {_some(verdict.ran_without_commit)})"
        )
    return f"The promise was broken: {'; '.join(faults)}."


def _some(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:_IDS_SHOWN]))
    return shown if len(ids) <= _IDS_SHOWN else f"{shown}, …"


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)


def _figures(verdict: Verdict, seconds: float) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    rows = [
        ("committed", f"{verdict.committed:,}", "documents in PostgreSQL"),
        ("rolled back", f"{verdict.rolled_back:,}", "on purpose, after their job was staged"),
        ("executed", f"{verdict.executed:,}", "jobs finished by two RQ workers"),
        ("ran twice", f"{verdict.ran_twice:,}", "allowed where a worker died"),
        ("lost", f"{len(verdict.lost):,}", "committed, and not in the index with the same text"),
        ("ran without commit", f"{len(verdict.ran_without_commit):,}", "of whatever trace it left"),
        *(
            (f"commit to start, p{percent}", _milliseconds(verdict, percent), _MEANING[percent])
            for percent in (50, 99)
        ),
        ("everything", f"{seconds:.1f} s", "servers and processes started, worked, and ended"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


_MEANING = {
    50: "from asking for the commit to the job's first line,",
    99: f"with at most {UNDER_WAY} documents under way at a time",
}


def _milliseconds(verdict: Verdict, percent: int) -> str:
    number = verdict.commit_to_start_ms(percent)
    return "-" if number is None else f"{number:.1f} ms"


def _findings(words: str, hits: Sequence[Hit]) -> Table:
    table = Table(box=None, pad_edge=False, title=f"Search: {words}", title_justify="left")
    table.add_column("found", no_wrap=True)
    table.add_column("its first line", no_wrap=True, overflow="ellipsis")
    for hit in hits:
        table.add_row(Text(hit.name, style="cyan"), _first_line(hit))
    return table


def _first_line(hit: Hit) -> Text:
    line = next((line for line in hit.marked.splitlines() if line.strip()), "").strip()
    text = Text()
    for position, part in enumerate(_MARKED.split(line)):
        text.append(part, style="bold yellow" if position % 2 else "")
    return text


@contextmanager
def _bars(console: Console) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, refresh_per_second=5) as bars:
        yield bars


class _Bars:
    """Three bars on a terminal."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._saved = bars.add_task("saved   ", total=None)
        self._drained = bars.add_task("drained ", total=None)
        self._indexed = bars.add_task("indexed ", total=None)

    def __call__(
        self, *, expected: int | None, saved: int, committed: int, drained: int, indexed: int
    ) -> None:
        # Nine in ten will be committed. How many exactly is known once all transactions have ended.
        to_come = None if expected is None else committed + (expected - saved) * 9 // 10
        self._bars.update(self._saved, completed=saved, total=expected)
        self._bars.update(self._drained, completed=drained, total=to_come)
        self._bars.update(self._indexed, completed=indexed, total=to_come)


class _Lines:
    """A line every few seconds, for logs."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._next = monotonic() + _SECONDS_BETWEEN_LINES

    def __call__(
        self, *, expected: int | None, saved: int, committed: int, drained: int, indexed: int
    ) -> None:
        if monotonic() >= self._next:
            of = "" if expected is None else f" of {expected:,}"
            self._report.say(
                f"saved {saved:,}{of}, committed {committed:,}, drained {drained:,}, indexed {indexed:,}"
            )
            self._next = monotonic() + _SECONDS_BETWEEN_LINES
