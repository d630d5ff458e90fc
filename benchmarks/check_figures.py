"""Ratios of `make bench-check`: few and quick, each from a single round; higher is better.

Our rate is divided by the rate of a yardstick that runs right before or after it, and the yardstick's processor time by
ours. The yardstick shows how fast the machine is at that moment, so it need not be the fastest peer. It is PgQueuer
(which works in the same two stores), loops without a queue, RQ itself, or the halves of the drain.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import figures, rates, stock_workers
from benchmarks.peers import delay, peers, rate, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.peers.bench import Bench
    from benchmarks.peers.peers import Peer
    from benchmarks.peers.rate import Run

    # Measures the round with this number; returns the ratios by name.
    Round = Callable[[Bench, int], dict[str, float]]

# The same number on all machines, so that start-up is the same share of a job's processor time.
_JOBS = {run.NOOP: 25_000, run.UPDATE: 4000, run.CPU: 1500}
_PATIENCE_SECONDS = 10
_DELAY_SECONDS = 2.0
_DELAY_PER_SECOND = 500
_DRAIN_JOBS = 30_000
_STOCK_JOBS = 25
_STOCK_WORKER = "`rq worker --worker-class rq.SimpleWorker`"


@dataclass(frozen=True)
class Group:
    """Figures measured together.

    Attributes:
        name: Name on the command line.
        measure: Measures one round.
    """

    name: str
    measure: Round


def groups() -> list[Group]:
    """Return all groups, those with the most figures first."""
    updates = (peers.OURS_ON_PSYCOPG, peers.OURS)
    return [
        Group("noop", _beside(run.NOOP, "does nothing", peers.PGQUEUER, (peers.OURS,), "Redis")),
        Group("update", _beside(run.UPDATE, "one UPDATE", peers.PGQUEUER, updates)),
        Group("cpu", _beside(run.CPU, "1 ms of computing", peers.BARE_LOOPS, (peers.OURS,))),
        Group("delay", _delay),
        Group("drain", _drain),
        Group("stock", _stock),
    ]


def _beside(work: str, title: str, yardstick: Peer, ours: Sequence[Peer], *more_parts: str) -> Round:
    def measure(place: Bench, number: int) -> dict[str, float]:
        order = [yardstick, *ours]
        found = {peer.name: _run(place, peer, work) for peer in (order if number % 2 else reversed(order))}
        ratios: dict[str, float] = {}
        for peer in ours:
            label = f"{title}: {peer.name}"
            parts = ("programs", "PostgreSQL", *more_parts) if yardstick is peers.PGQUEUER else ()
            ratios |= _ratios(label, found[peer.name], found[yardstick.name], parts)
        return ratios

    return measure


def _run(place: Bench, peer: Peer, work: str) -> Run:
    place.reset(peer)
    job = peer.update if work == run.UPDATE else work
    programs = peer.programs(place.services.redis_url, peers.PROCESSES)
    found = rate.measure(place, peer, job, _JOBS[work], _PATIENCE_SECONDS, programs)
    figures.say(f"  {peer.name}: {found.rate:,.0f} a second, {found.cpu_seconds:.1f} s a 100,000")
    return found


def _ratios(label: str, ours: Run, yardstick: Run, parts: Sequence[str]) -> dict[str, float]:
    """Compute the ratios of rate, of processor time, and of processor time to single parts of ours."""
    return {
        f"{label}, jobs a second": ours.rate / yardstick.rate,
        f"{label}, processor time": yardstick.cpu_seconds / ours.cpu_seconds,
        **{
            f"{label}, processor time, {part}": yardstick.cpu_seconds / max(ours.cpu_by_part[part], 1e-9)
            for part in parts
        },
    }


def _delay(place: Bench, number: int) -> dict[str, float]:
    pair = (peers.OURS, peers.PGQUEUER)
    measure = partial(delay.measure, place, per_second=_DELAY_PER_SECOND, seconds=_DELAY_SECONDS)
    found = {peer.name: measure(peer) for peer in (pair if number % 2 else reversed(pair))}
    ours, theirs = (found[peer.name] for peer in pair)
    return {f"commit to start, p50 at {_DELAY_PER_SECOND} a second": theirs.p50 / ours.p50}


def _drain(place: Bench, _number: int) -> dict[str, float]:
    services = place.services
    ways: dict[str, Callable[[], float]] = {
        "moving": lambda: rates.moved_alone(services, _DRAIN_JOBS),
        "drained": lambda: rates.moved_and_pushed(services, _DRAIN_JOBS),
        "pushing": lambda: rates.pushed_alone(services, _DRAIN_JOBS),
        "enqueue_many": lambda: rates.enqueued_in_thousands(services, _DRAIN_JOBS // 5),
    }
    found = {}
    for name, way in ways.items():
        rates.refill(services, _DRAIN_JOBS)
        found[name] = way()
    return {
        "drained, of the slower of moving and pushing": found["drained"]
        / min(found["moving"], found["pushing"]),
        "drained, to Queue.enqueue_many": found["drained"] / found["enqueue_many"],
    }


def _stock(place: Bench, _number: int) -> dict[str, float]:
    kinds = {_STOCK_WORKER: stock_workers.KINDS[_STOCK_WORKER]}
    (costs,) = stock_workers.measure(place.services, 1, _STOCK_JOBS, kinds).values()
    return {"RQ's own job to ours, SimpleWorker": costs.plain[0] / costs.ours[0]}
