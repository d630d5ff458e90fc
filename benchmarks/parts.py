"""Parts of `make bench`: each measures on its own servers and writes its sections of RESULTS.md."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import (
    admission,
    alone,
    batches,
    bulk_report,
    check,
    dependencies,
    depths,
    drain_report,
    exactness,
    fenced,
    figures,
    goals,
    machine,
    one_at_a_time,
    plain_rq,
    recovery,
    scraping,
    servers,
    soak,
    staging,
    steps,
    stock_workers,
    ticks,
    unique,
    web_page,
)
from benchmarks.peers import (
    canvas,
    environments,
    killed,
    killed_busy,
    peers,
    plots,
    report,
    results,
    run,
    stalled,
    step_cost,
)
from benchmarks.sizes import Sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from drain.embedded import Services


@dataclass(frozen=True)
class Place:
    """Output directory, kind of servers and sizes of a run.

    Attributes:
        directory: Directory of RESULTS.md, peers.json and the pictures.
        kind: Kind of the servers.
        sizes: How much is measured.
    """

    directory: Path
    kind: str
    sizes: Sizes

    @property
    def results_file(self) -> Path:
        return self.directory / "RESULTS.md"

    @property
    def figures_file(self) -> Path:
        return self.directory / results.PATH.name

    def picture(self, name: str) -> Path:
        return self.directory / f"{self._marked(name)}.png"

    def write(self, name: str, sections: Sequence[str]) -> None:
        """Replace a part of RESULTS.md, and the goals, which depend on all parts."""
        parts = {
            self._marked(name): self._titled(sections),
            self._marked("goals"): self._titled(goals.sections(results.load(self.kind, self.figures_file))),
        }
        order = [f"{mark}{suffix}" for suffix in ("", f"_{servers.DEBIAN}") for mark in _MARKS]
        text = figures.merge(self.results_file, parts, order)
        self.results_file.write_text(text, encoding="utf-8")

    def _marked(self, name: str) -> str:
        return name if self.kind == servers.EMBEDDED else f"{name}_{self.kind}"

    def _titled(self, sections: Sequence[str]) -> list[str]:
        if self.kind == servers.EMBEDDED:
            return list(sections)
        title, *rest = sections[0].split("\n", 1)
        return ["\n".join([f"{title}, on Debian's servers", *rest]), *sections[1:]]


@dataclass(frozen=True)
class Part:
    """One part.

    Attributes:
        measure: Measures, and returns Markdown sections.
        mark: Name of its sections in RESULTS.md if several parts share them; "" for the part's own name.
        kinds: Kinds of servers to measure on.
    """

    measure: Callable[[Services, Place], list[str]]
    mark: str = ""
    kinds: Sequence[str] = field(default=servers.KINDS)


def measure(name: str, place: Place) -> None:
    """Measure one part, and write its sections.

    Raises:
        EmbeddedError: Servers of this kind are not installed.
    """
    part = PARTS[name]
    with servers.running(place.kind) as started:
        sections = part.measure(started, place)
    place.write(part.mark or name, sections)


def _drain(started: Services, place: Place) -> list[str]:
    sizes = place.sizes
    section, ratios = drain_report.rates_section(started, sizes.jobs, sizes.rounds)
    found = results.load(place.kind, place.figures_file)
    found.ratios |= ratios
    results.save(found, place.kind, place.figures_file)
    return [
        "# The drain",
        machine.line(started, place.kind),
        section,
        staging.section(started, sizes.jobs, sizes.rounds),
    ]


def _backlog(started: Services, place: Place) -> list[str]:
    sizes = place.sizes
    return [
        "# Backlogs",
        machine.line(started, place.kind),
        drain_report.backlog_section(started, sizes.jobs, sizes.backlog, sizes.rounds),
        drain_report.memory_section(started, sizes.backlog),
    ]


def _held(started: Services, place: Place) -> list[str]:
    sizes = place.sizes
    return [
        "# Alongside other sessions",
        machine.line(started, place.kind),
        drain_report.held_snapshot_section(started, sizes.held_backlog, (sizes.rounds + 1) // 2),
        drain_report.scheduled_section(started, sizes.jobs, sizes.rounds),
    ]


def _latency(started: Services, place: Place) -> list[str]:
    sizes = place.sizes
    return [
        "# Latency and recovery",
        machine.line(started, place.kind),
        drain_report.latency_section(started, sizes.seconds),
        recovery.section(started, sizes.jobs, sizes.rounds),
        *soak.sections(soak.SUMMARY),
    ]


def _bulk(started: Services, place: Place) -> list[str]:
    rounds = (place.sizes.rounds + 1) // 2
    title, *others = bulk_report.sections(started, rounds, scale=place.sizes.scale)
    packages = ("pyspark", "adbc-driver-postgresql", "pyarrow")
    return [title, machine.line(started, place.kind, packages), *others]


def _growth(started: Services, place: Place) -> list[str]:
    return [bulk_report.growth(started, place.picture("growth"), scale=place.sizes.scale)]


def _peers(
    measure_some: Callable[[Services, results.Results, run.Plan], None], started: Services, place: Place
) -> list[str]:
    """Measure some of the peers' figures, and return the whole section with all known figures."""
    sizes = place.sizes
    plan = run.Plan(sizes.peer_rounds, sizes.peer_seconds, sizes.scheduled, sizes.hold_seconds)
    found = results.load(place.kind, place.figures_file)
    measure_some(started, found, plan)
    found.machine, found.versions = machine.line(started, place.kind), peers.versions()
    results.save(found, place.kind, place.figures_file)
    rates_picture, delays_picture = place.picture("peers"), place.picture("latency")
    plots.draw(found, rates_picture, delays_picture)
    return report.sections(found, rates_picture.name, delays_picture.name)


def _check(started: Services, place: Place) -> list[str]:
    recorded = check.record(started, place.kind, place.sizes.check_rounds, place.figures_file)
    return [check.RECORD_TITLE, machine.line(started, place.kind), check.table(recorded)]


def _stock(_started: Services, place: Place) -> list[str]:
    return [stock_workers.section(place.sizes.peer_rounds, place.sizes.stock_jobs)]


def _plain(started: Services, place: Place) -> list[str]:
    return [plain_rq.section(started, place.sizes.peer_rounds, 2 * place.sizes.stock_jobs)]


def _admission(started: Services, place: Place) -> list[str]:
    return [
        "# Admission at the drain",
        machine.line(started, place.kind),
        *(
            module.section(started, **alone.sizes_of(module.SIZES, quick=place.sizes.scale < 1))
            for module in (admission, depths, unique, exactness, ticks, steps, one_at_a_time)
        ),
    ]


def _dependencies(started: Services, place: Place) -> list[str]:
    sizes = alone.sizes_of(dependencies.SIZES, quick=place.sizes.scale < 1)
    return [
        "# Jobs that wait for others",
        machine.line(started, place.kind),
        dependencies.section(started, **sizes),
    ]


def _batches(started: Services, place: Place) -> list[str]:
    sizes = alone.sizes_of(batches.SIZES, quick=place.sizes.scale < 1)
    return ["# Batches, waits and undo", machine.line(started, place.kind), batches.section(started, **sizes)]


def _steps(started: Services, place: Place) -> list[str]:
    return [
        "# Steps and flows compared with the peers",
        machine.line(started, place.kind),
        f"{', '.join(peers.versions((*peers.ALL, *step_cost.PEERS)))}, bullmq {environments.package('bullmq')}.",
        *(
            module.section(started, **alone.sizes_of(module.SIZES, quick=place.sizes.scale < 1))
            for module in (step_cost, canvas, fenced, stalled)
        ),
    ]


def _sight(started: Services, place: Place) -> list[str]:
    return [
        "# To see",
        machine.line(started, place.kind),
        *(
            module.section(started, **alone.sizes_of(module.SIZES, quick=place.sizes.scale < 1))
            for module in (scraping, web_page)
        ),
    ]


def _beside(measure_some: Callable[[Services, results.Results, run.Plan], None]) -> Part:
    return Part(partial(_peers, measure_some), mark="peers")


PARTS: dict[str, Part] = {
    "drain": Part(_drain),
    "backlog": Part(_backlog),
    "held": Part(_held),
    "latency": Part(_latency),
    "bulk": Part(_bulk),
    "growth": Part(_growth),
    "processes": _beside(run.processes),
    **{f"peers-{work}": _beside(partial(run.rates, work=work)) for work in run.WORKS},
    "peers-at-once": _beside(run.at_once),
    **{f"peers-delay-{each}": _beside(partial(run.delays, per_second=each)) for each in run.PER_SECOND},
    "peers-memory": _beside(run.stored),
    **{
        f"beside-{peer.name.lower()}": _beside(partial(run.disturbed, peer=peer))
        for peer in peers.IN_POSTGRES
    },
    "killed": _beside(killed.measure),
    "killed-busy": _beside(killed_busy.measure),
    "check": Part(_check),
    # On both kinds of servers at once.
    "stock": Part(_stock, kinds=(servers.EMBEDDED,)),
    "plain": Part(_plain),
    "dependencies": Part(_dependencies),
    "batches": Part(_batches),
    "steps": Part(_steps),
    "admission": Part(_admission),
    # Jobs that sleep: servers make little difference.
    "sight": Part(_sight),
}
# Marks of RESULTS.md in order; `minutes` is written by hand.
_MARKS = (
    "goals",
    *dict.fromkeys(part.mark or name for name, part in PARTS.items() if name not in ("admission", "sight")),
    "minutes",
    "admission",
    "sight",
)
