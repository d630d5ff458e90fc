"""All figures as plain data, and their JSON file."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.peers.delay import Delay
from benchmarks.peers.disturbances import Disturbed
from benchmarks.peers.killed import Killed
from benchmarks.peers.killed_busy import KilledBusy
from benchmarks.peers.rate import Run, Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

PATH = Path(__file__).parents[1] / "peers.json"


@dataclass
class Rates:
    """Rates of one peer at one kind of work, one run per round."""

    peer: str
    work: str
    runs: list[Run] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [run.rate for run in self.runs]


@dataclass
class Delays:
    """Delays of one peer at one rate of single commits, one run per round."""

    peer: str
    per_second: int
    runs: list[Delay] = field(default_factory=list)

    def of(self, figure: str) -> list[float]:
        return [getattr(run, figure) for run in self.runs]


@dataclass
class Results:
    """All figures of one kind of servers.

    Attributes:
        machine: Processor, versions of the servers, and date of the last part.
        versions: Versions of the peers.
        processes: Best number of processes, by kind of work and peer.
        rates: Jobs a second at each kind of work.
        at_once: Jobs a second that wait 10 ms, 16 at a time.
        delays: Delays from commit to start.
        stored: Bytes per queued job, by peer.
        disturbed: Rates alongside other sessions.
        killed: Outcome of jobs whose worker was killed around their commit.
        killed_busy: Outcome of the jobs held by a killed worker.
        ratios: Ratios of the drain by name, one per round.
        check: Ratios that `make bench-check` compares with, by name, one per round.
    """

    machine: str = ""
    versions: list[str] = field(default_factory=list)
    processes: dict[str, dict[str, int]] = field(default_factory=dict)
    rates: list[Rates] = field(default_factory=list)
    at_once: list[Rates] = field(default_factory=list)
    delays: list[Delays] = field(default_factory=list)
    stored: dict[str, Stored] = field(default_factory=dict)
    disturbed: list[Disturbed] = field(default_factory=list)
    killed: list[Killed] = field(default_factory=list)
    killed_busy: list[KilledBusy] = field(default_factory=list)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    check: dict[str, list[float]] = field(default_factory=dict)

    def rates_of(self, work: str) -> dict[str, Rates]:
        """Rates at one kind of work, by peer."""
        return {each.peer: each for each in self.rates if each.work == work}


def save(results: Results, kind: str, path: Path = PATH) -> None:
    """Replace the figures of one kind of servers, rounded to more digits than any report needs."""
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    text = json.dumps(kept | {kind: _rounded(asdict(results))}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def load(kind: str, path: Path = PATH) -> Results:
    """Read the figures of one kind of servers; empty if there are none."""
    found = json.loads(path.read_text(encoding="utf-8")).get(kind) if path.exists() else None
    if not found:
        return Results()
    return Results(
        **found
        | {
            "rates": [_rates(each) for each in found["rates"]],
            "at_once": [_rates(each) for each in found["at_once"]],
            "delays": [
                Delays(each["peer"], each["per_second"], [Delay(**run) for run in each["runs"]])
                for each in found["delays"]
            ],
            "stored": {name: Stored(**each) for name, each in found["stored"].items()},
            "disturbed": [Disturbed(**each) for each in found["disturbed"]],
            "killed": [Killed(**each) for each in found["killed"]],
            "killed_busy": [KilledBusy(**each) for each in found.get("killed_busy", [])],
        }
    )


def spread(values: Sequence[float], form: str = ",.0f") -> str:
    """Format the median with the lowest and the highest."""
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
