"""Chains and fan-ins of jobs that do nothing: `python -m benchmarks.peers.canvas [--quick]`.

A chain's edge is measured from the start of one job to the start of the next, a fan-in from the start of the last
member to the start of the callback. At the end, one member kills its worker; programs that exit are restarted.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from itertools import pairwise
from time import monotonic, sleep
from typing import TYPE_CHECKING

from benchmarks import alone, figures
from benchmarks.peers import delay, environments, killed, peers, work
from benchmarks.peers.bench import bench
from benchmarks.peers.peers import Program

if TYPE_CHECKING:
    from benchmarks.peers.bench import Bench
    from benchmarks.peers.peers import Peer
    from drain.embedded import Services

SIZES = {"chain": (200, 20), "members": (10_000, 200), "patience": (300, 60)}
_BULLMQ_APP = "bullmq_app.mjs"
_PROCESSES = 2
_FEW = 20
_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class System:
    """One system; if `peer` is None, BullMQ on Node.js."""

    name: str
    peer: Peer | None

    def programs(self, place: Bench) -> list[Program]:
        if self.peer:
            return self.peer.programs(place.services.redis_url, _PROCESSES)
        return [Program(environments.node(_BULLMQ_APP, "run"))] * _PROCESSES

    def fill(self, place: Bench, name: str, jobs: int) -> None:
        peer = self.peer or peers.BARE_LOOPS
        place.reset(peer)
        place.forget()
        (place.directory / f"{work.DIED}{work.BEFORE}").unlink(missing_ok=True)
        if self.peer:
            place.fill(peer, name, jobs)
        else:
            command = environments.node(_BULLMQ_APP, "fill", name, str(jobs))
            subprocess.run(command, env=place.environment, check=True)


def _rq(url: str, processes: int) -> list[Program]:
    words = ["worker", "--quiet", "--worker-class", "rq.worker.SimpleWorker", "--url", url, "default"]
    return [Program([environments.script("rq", "rq"), *words])] * processes


def _celery(_url: str, processes: int) -> list[Program]:
    words = ["--app=benchmarks.peers.apps.celery_canvas_app", "worker", "--loglevel=WARNING"]
    return [Program([environments.script("celery", "celery"), *words, f"--concurrency={processes}"])]


SYSTEMS = (
    System(f"{peers.DRAIN}, flow and batch", peers.OURS),
    System("Celery, chain and chord", replace(peers.CELERY, app="celery_canvas_app", programs=_celery)),
    System("RQ, depends_on", replace(peers.RQ_SIMPLE, app="rq_canvas_app", programs=_rq)),
    System("BullMQ, flow", None),
)


def section(services: Services, *, chain: int, members: int, patience: int) -> str:
    """Measure and return the figures as Markdown."""
    environments.make({system.peer.environment if system.peer else environments.NODE for system in SYSTEMS})
    rows = []
    with bench(services) as place:
        for system in SYSTEMS:
            row = [
                system.name,
                _edges(place, system, chain, patience),
                *(_fan_in(place, system, number, patience) for number in (members // 10, members)),
                _killed(place, system, patience),
            ]
            rows.append(row)
            figures.say(f"  {row}")
    sizes = [f"{number:,} members: all, and callback, s" for number in (members // 10, members)]
    header = ["", "edge p50 and p99, ms", *sizes, "a member's worker is killed: callback after"]
    return (
        f"## Chains and fan-ins\n\n{figures.table(header, rows)}\n\nJobs that do nothing, {_PROCESSES} processes; a "
        f"chain of {chain:,} edges. Fan-ins: seconds from the first member's start to the last one's, and from there "
        f"to the callback's. The fan-in of the last column has {_FEW} members; its seconds include the start of "
        f"the programs, and never means not within {patience} s. Celery keeps its default, `acks_late` off: it "
        "acknowledges a job before it runs."
    )


def _edges(place: Bench, system: System, edges: int, patience: float) -> str:
    system.fill(place, "chain", edges)
    with place.running(system.programs(place)):
        starts = _starts(place, edges + 1, patience)
    ordered = [starts[number] for number in range(edges + 1)]
    taken = [after - before for before, after in pairwise(ordered)]
    return " and ".join(figures.milliseconds(taken, percent) for percent in (50, 99))


def _fan_in(place: Bench, system: System, members: int, patience: float) -> str:
    system.fill(place, "fan_in", members)
    with place.running(system.programs(place)):
        try:
            starts = _starts(place, members + 1, patience)
        except TimeoutError as error:
            return f"{error} within {patience} s"
    callback = starts.pop(members)
    last = max(starts.values())
    return f"{last - min(starts.values()):.1f} and {callback - last:.3f}"


def _killed(place: Bench, system: System, patience: float) -> str:
    system.fill(place, "killed", _FEW)
    with killed.kept_running(place, system.programs(place)) as restart:
        began = monotonic()
        for _ in killed.looks(patience, restart):
            if _FEW in delay.starts(place):
                return f"{monotonic() - began:.0f} s"
    return "never"


def _starts(place: Bench, number: int, patience: float) -> dict[int, float]:
    deadline = monotonic() + patience
    while len(found := delay.starts(place)) < number:
        if monotonic() > deadline:
            raise TimeoutError(f"{len(found):,} of {number:,} jobs started")
        sleep(_LOOK_SECONDS)
    return found


if __name__ == "__main__":
    alone.run("peers.canvas", section, SIZES)
