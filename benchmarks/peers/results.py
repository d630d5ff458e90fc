"""All figures as plain data, and the file that keeps them."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.delay import Delay
from benchmarks.peers.disturbances import Disturbed
from benchmarks.peers.rate import Run, Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

PATH = Path(__file__).parents[1] / "peers.json"


@dataclass
class Rates:
    """One peer at one kind of work, a run for each round."""

    peer: str
    work: str
    runs: list[Run] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [run.rate for run in self.runs]


@dataclass
class Delays:
    """One peer at one rate of single commits, a run for each round."""

    peer: str
    per_second: int
    runs: list[Delay] = field(default_factory=list)

    def of(self, figure: str) -> list[float]:
        return [getattr(run, figure) for run in self.runs]


@dataclass
class Results:
    """Everything of one full run, and what the quick form found right after it.

    Attributes:
        machine: Processor, versions of the servers, the day.
        versions: The peers'.
        rates: Two worker processes, three kinds of work.
        at_once: Jobs that wait 10 ms, 16 of them at a time.
        delays: From commit to start.
        stored: Bytes of a queued job, by peer.
        disturbed: Beside other sessions.
        quick: Ratios of the quick form, by name.
    """

    machine: str = ""
    versions: list[str] = field(default_factory=list)
    rates: list[Rates] = field(default_factory=list)
    at_once: list[Rates] = field(default_factory=list)
    delays: list[Delays] = field(default_factory=list)
    stored: dict[str, Stored] = field(default_factory=dict)
    disturbed: list[Disturbed] = field(default_factory=list)
    quick: dict[str, float] = field(default_factory=dict)


def save(results: Results, path: Path = PATH) -> None:
    """Write them, three significant digits more than anybody needs."""
    path.write_text(
        json.dumps(_rounded(asdict(results)), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def load(path: Path = PATH) -> Results:
    """Read what was written; empty if nothing was."""
    if not path.exists():
        return Results()
    found = json.loads(path.read_text(encoding="utf-8"))
    return Results(
        machine=found["machine"],
        versions=found["versions"],
        rates=[_rates(each) for each in found["rates"]],
        at_once=[_rates(each) for each in found["at_once"]],
        delays=[
            Delays(each["peer"], each["per_second"], [Delay(**run) for run in each["runs"]])
            for each in found["delays"]
        ],
        stored={name: Stored(**each) for name, each in found["stored"].items()},
        disturbed=[Disturbed(**each) for each in found["disturbed"]],
        quick=found["quick"],
    )


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """The median with the lowest and the highest."""
    if len(values) == 1:
        return f"{values[0]:{form}}"
    return f"{statistics.median(values):{form}} ({min(values):{form}} – {max(values):{form}})"


def _rates(found: dict[str, Any]) -> Rates:
    return Rates(found["peer"], found["work"], [Run(**run) for run in found["runs"]])


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value
