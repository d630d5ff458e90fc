"""Progress of the example: bars on a terminal, and a line every few seconds elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of the example so far.

    Attributes:
        expected: Number of transactions in all; None while the application counts them.
        saved: Number of transactions that have ended, by commit or rollback.
        committed: Number of transactions that were committed.
        drained: Number of jobs that the enqueuer has drained.
        indexed: Number of jobs that workers have finished.
    """

    expected: int | None
    saved: int
    committed: int
    drained: int
    indexed: int

    @property
    def expected_jobs(self) -> int | None:
        """Number of jobs in all; an estimate until all transactions have ended."""
        if self.expected is None:
            return None
        return self.committed + round((self.expected - self.saved) * 0.9)


Show: TypeAlias = Callable[[Figures], None]


@contextmanager
def bars(console: Console) -> Iterator[Show]:
    """Show three bars, which stay on the terminal at the end."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, refresh_per_second=5) as progress:
        saved, drained, indexed = (
            progress.add_task(title, total=None) for title in ("saved", "drained", "indexed")
        )

        def show(figures: Figures) -> None:
            progress.update(saved, completed=figures.saved, total=figures.expected)
            progress.update(drained, completed=figures.drained, total=figures.expected_jobs)
            progress.update(indexed, completed=figures.indexed, total=figures.expected_jobs)

        yield show


@contextmanager
def lines(say: Callable[[str], None]) -> Iterator[Show]:
    """Print a line every few seconds, for logs."""
    due = monotonic() + _SECONDS_BETWEEN_LINES

    def show(figures: Figures) -> None:
        nonlocal due
        if monotonic() >= due:
            due = monotonic() + _SECONDS_BETWEEN_LINES
            of = "" if figures.expected is None else f" of {figures.expected:,}"
            say(f"saved {figures.saved:,}{of}, drained {figures.drained:,}, indexed {figures.indexed:,}")

    yield show
