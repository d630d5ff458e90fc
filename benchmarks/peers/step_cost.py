"""Cost of a step on each system, alternating with bare commits: `python -m benchmarks.peers.step_cost [--quick]`."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from benchmarks import alone, figures
from benchmarks.peers import environments, peers, stalled
from benchmarks.peers.bench import bench

if TYPE_CHECKING:
    from drain.embedded import Services

SIZES = {"steps": (2000, 100), "rounds": (5, 1)}
PEERS = (peers.BARE_LOOPS, peers.OURS, stalled.DBOS, stalled.ABSURD, peers.PROCRASTINATE)


def section(services: Services, *, steps: int, rounds: int) -> str:
    """Measure and return the figures as Markdown."""
    environments.make({peer.environment for peer in PEERS})
    found: dict[str, list[list[float]]] = {}
    with bench(services) as place:
        for number in range(rounds):
            for peer in PEERS:
                place.reset(peer)
                for line in place.cost(peer, steps).splitlines():
                    title, *values = line.split("\t")
                    found.setdefault(title, []).append([float(value) for value in values])
                    figures.say(f"  round {number + 1}: {line}")
    rows = []
    for title, turns in found.items():
        p50, p99, rate, of_a_core = (median(values) for values in zip(*turns, strict=True))
        rows.append([title, f"{p50:.2f}", f"{p99:.2f}", f"{rate:,.0f}", f"{of_a_core:,.0f}"])
    header = ("", "p50, ms", "p99, ms", "steps/s", "steps per second of a core")
    return (
        f"## What a step costs\n\n{figures.table(header, rows)}\n\n"
        f"One job in one process, {steps:,} steps one after another; medians of {rounds} turns. A step without an "
        "UPDATE returns 1. Processor time is that of the process and all of PostgreSQL. Procrastinate has no steps: "
        "its task looks into its own table, writes, and inserts a row, in one transaction."
    )


if __name__ == "__main__":
    alone.run("peers.step_cost", section, SIZES)
