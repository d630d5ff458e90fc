"""What a reader sees: a line now and then, tables at the end, and a summary for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.interleavings.history import LETTERS
from tests.soak.flat import Growth, Series, leaks
from tests.soak.plan import Kind
from tests.soak.verdict import Verdict

_IDS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Result:
    """All that there is to report.

    Attributes:
        seed: Of the plan and of the applications.
        load: Of the applications; 1 is all that they can stage.
        seconds: How long the faults went on.
        windows: After each of these, all jobs were judged.
        drained_seconds: How long it took after all windows until nothing was left.
        jobs: How many were asked for, and where they are.
        faults: How many were done, by whom and what.
        survived: What they have led to.
        coverage: By fault, how many transitions of jobs it met.
        verdict: Whether all of it was survived.
        series: What was sampled, by kind and name.
        growth: Of each series.
    """

    seed: int
    load: float
    seconds: float
    windows: int
    drained_seconds: float
    jobs: Mapping[str, int]
    faults: Counter[tuple[str, Kind]]
    survived: Mapping[str, int]
    coverage: Mapping[str, Counter[str]]
    verdict: Verdict
    series: Series
    growth: Sequence[Growth]

    @property
    def whole_seconds(self) -> float:
        """From the beginning to the end."""
        return self.seconds + self.drained_seconds

    @property
    def leaks(self) -> list[Growth]:
        """What was not flat."""
        return leaks(self.growth, self.whole_seconds)

    @property
    def holds(self) -> bool:
        """Whether everything was survived, and nothing grew."""
        return self.verdict.holds and not self.leaks

    @property
    def jobs_per_second(self) -> float:
        """Finished ones, from the beginning to the end."""
        return self.jobs["finished"] / self.whole_seconds

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        verdict = self.verdict
        return {
            "ok": self.holds,
            "seed": self.seed,
            "load": self.load,
            "seconds": round(self.seconds, 1),
            "windows": self.windows,
            "drained_seconds": round(self.drained_seconds, 1),
            "jobs": dict(self.jobs),
            "jobs_per_second": round(self.jobs_per_second, 1),
            "faults": {f"{target} {kind}": number for (target, kind), number in sorted(self.faults.items())},
            "survived": dict(self.survived),
            "coverage": {
                name: {letter: counts[letter] for letter in LETTERS} for name, counts in self.coverage.items()
            },
            "found": {name: list(ids) for name, ids in verdict.faults.items()},
            "breaches": list(verdict.breaches),
            "ended": dict(verdict.ended),
            "leaks": [f"{each.kind}: {each.name}" for each in self.leaks],
            "growth": [_rounded(each) for each in self.growth],
        }


def _rounded(growth: Growth) -> dict[str, str | int]:
    return {
        name: value if isinstance(value, str) else round(value) for name, value in growth._asdict().items()
    }


def conclude(console: Console, result: Result) -> None:
    """Show the result."""
    faults = {f"{target}: {kind}": number for (target, kind), number in sorted(result.faults.items())}
    for title, counts in (("what was done", faults), ("what it led to", result.survived)):
        console.print(_table(title, counts))
    console.print(_grid(result.coverage))
    console.print(_table("what must not be", {name: len(ids) for name, ids in result.verdict.faults.items()}))
    console.print(_growth(result.growth))
    for line in [*_findings(result.verdict), *map(_leak, result.leaks)]:
        console.print(line, style="bold red", markup=False)
    console.print(_sentence(result))


def _table(title: str, counts: Mapping[str, int]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title)
    table.add_column("", justify="right")
    for name, number in counts.items():
        table.add_row(Text(name), f"{number:,}")
    return table


def _grid(coverage: Mapping[str, Counter[str]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("transitions of jobs during it", no_wrap=True)
    for letter in LETTERS:
        table.add_column(letter, justify="right")
    for name, counts in coverage.items():
        table.add_row(Text(name), *(f"{counts[letter]:,}" for letter in LETTERS))
    return table


def _growth(growth: Sequence[Growth]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("medians")
    for title in ("second third", "last third", "allowed", "a day"):
        table.add_column(title, justify="right")
    for kind, name, *numbers in growth:
        table.add_row(Text(f"{kind}: {name}"), *(f"{number:,.0f}" for number in numbers))
    return table


def _leak(growth: Growth) -> str:
    return (
        f"grew, {growth.kind}: {growth.name} from {growth.middle:,.0f} to {growth.last:,.0f}; "
        f"{growth.allowed:,.0f} are allowed"
    )


def _findings(verdict: Verdict) -> list[str]:
    found = [
        f"{name}: jobs {', '.join(map(str, ids[:_IDS_SHOWN]))}" for name, ids in verdict.faults.items() if ids
    ]
    ended = [f"{name} {number} times" for name, number in verdict.ended.items() if number]
    return [*found, *(f"audit: {breach}" for breach in verdict.breaches), *ended]


def _sentence(result: Result) -> Text:
    jobs, faults = result.jobs, sum(result.faults.values())
    what = (
        f"{jobs['wanted']:,} jobs, {jobs['finished']:,} finished and {jobs['dead']:,} dead on purpose, "
        f"{result.jobs_per_second:.0f} a second, under {faults} faults; load {result.load:g}, seed {result.seed}"
    )
    if result.holds:
        return Text(
            f"\nNothing was lost, nothing ran without a commit, nothing took effect twice: {what}",
            "bold green",
        )
    return Text(f"\nSomething went wrong: {what}", "bold red")
