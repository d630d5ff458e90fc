"""The short form: what matters most in three minutes, and whether it is what it was."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks import figures, rates, stock_workers
from benchmarks.peers import delay, environments, peers, run
from benchmarks.peers.bench import bench

if TYPE_CHECKING:
    from collections.abc import Callable

    from drain.embedded import Services

# What is left of a recorded ratio must be this at the least.
ALLOWED = 0.8
_SECONDS = 2
_DELAY_SECONDS = 3
_DELAY_PER_SECOND = 500
_DRAIN_JOBS = 50_000
_DRAIN_ROUNDS = 3
_STOCK_JOBS = 30


def measure(services: Services) -> dict[str, float]:
    """Its ratios by name, each the better the higher; what it finds besides is only shown."""
    environments.make({peer.environment for peer in peers.ALL})
    with bench(services) as place:
        found = run.rates(place, peers.ALL, ["noop"], 1, _SECONDS)
        run.rates(place, peers.ALL, ["update"], 1, _SECONDS)
        for peer in (peers.OURS, peers.PGQUEUER):
            one = delay.measure(place, peer, _DELAY_PER_SECOND, _DELAY_SECONDS)
            figures.say(
                f"{peer.name}, from commit to start: p50 {one.p50:.1f} ms, p99 {one.p99:.1f} ms, "
                f"p99.9 {one.p999:.1f} ms at {one.committed_per_second:,.0f} commits a second"
            )
    ours = found[0].rates[0]
    ratios = {f"job-drain to {other.peer}": ours / other.rates[0] for other in found[1:]}
    return ratios | _drain(services) | stock_workers.ratios(services, _STOCK_JOBS)


def fallen(found: dict[str, float], recorded: dict[str, float]) -> list[str]:
    """A line for each ratio that is more than a fifth below what is recorded."""
    return [
        f"{name}: {found[name]:.3g}, and {before:.3g} is recorded"
        for name, before in recorded.items()
        if name in found and found[name] < ALLOWED * before
    ]


def _drain(services: Services) -> dict[str, float]:
    """Of rounds that take turns, as in the long form."""
    ways: dict[str, Callable[[], float]] = {
        "drained": lambda: rates.moved_and_pushed(services, _DRAIN_JOBS),
        "moving": lambda: rates.moved_alone(services, _DRAIN_JOBS),
        "pushing": lambda: rates.pushed_alone(services, _DRAIN_JOBS),
        "enqueue": lambda: rates.enqueued_one_by_one(services, _DRAIN_JOBS // 25),
        "enqueue_many": lambda: rates.enqueued_in_thousands(services, _DRAIN_JOBS // 5),
    }
    measured: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(_DRAIN_ROUNDS):
        for name, way in ways.items():
            rates.refill(services, _DRAIN_JOBS)
            measured[name].append(way())
    median = {name: statistics.median(values) for name, values in measured.items()}
    figures.say(", ".join(f"{name} {value:,.0f}" for name, value in median.items()))
    return {
        "drained to Queue.enqueue": median["drained"] / median["enqueue"],
        "drained to Queue.enqueue_many": median["drained"] / median["enqueue_many"],
        "drained to the slower of moving and pushing": median["drained"]
        / min(median["moving"], median["pushing"]),
    }
