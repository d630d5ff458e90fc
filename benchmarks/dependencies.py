"""`python -m benchmarks.dependencies`: jobs that wait for others, and what they cost those that do not."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks import alone, figures, flows, latency
from benchmarks.peers.results import spread
from drain.enqueuer.unblocker import _IDLE_SECONDS

if TYPE_CHECKING:
    from drain.embedded import Services

# Full and short sizes.
SIZES = {
    "children": (1_000_000, 10_000),
    "fan": (100_000, 2000),
    "chain": (1000, 100),
    "flows": (1000, 20),
    "plain": (30_000, 2000),
    "seconds": (20.0, 3.0),
    "rounds": (3, 1),
}
# Parent-child pairs.
_PER_SECOND = (500, 100)
_LEVELS = _WIDTH = 10
_TOGETHER = 100
_PLAIN = ("jobs a second", "bytes of WAL a job", "staged to started, p50 ms")


def section(started: Services, **sizes: Any) -> str:
    """Measure and return the figures as Markdown."""
    figures.say("dependencies")
    rounds = range(sizes["rounds"])
    return "\n\n".join(
        (
            _bulk(started, sizes["children"], sizes["fan"], rounds),
            _small(started, sizes["chain"], sizes["seconds"], rounds),
            _flows(started, sizes["flows"]),
            _nothing(started, sizes["plain"], sizes["seconds"] / 5, rounds),
        )
    )


def _bulk(started: Services, children: int, fan: int, rounds: range) -> str:
    staged = flows.staged(started, children)
    together = [flows.unblocked(started, fan, 1, fan) for _ in rounds]
    in_turn = [flows.unblocked(started, fan, 1, _TOGETHER) for _ in rounds]
    fan_out = [flows.unblocked(started, 1, fan, 1) for _ in rounds]
    table = figures.table(
        ("", "seconds", "to reach"),
        (
            (
                f"{children:,} children of one job staged, {children / staged:,.0f} a second",
                f"{staged:.1f}",
                "30",
            ),
            (f"one job waits for {fan:,}, which finish in one transaction", spread(together, ".2f"), "1"),
            (f"the same, {_TOGETHER} in a transaction", spread(in_turn, ".2f"), "1"),
            (f"{fan:,} jobs wait for one", spread(fan_out, ".2f"), ""),
        ),
    )
    return (
        "## Many edges\n\n"
        f"{table}\n\nStaging is one `INSERT … SELECT` and `drain_after`, in one transaction. The other times are from "
        "the commit of the last finish until no edge waits, while the leader also moves the unblocked jobs."
    )


def _small(started: Services, chain: int, seconds: float, rounds: range) -> str:
    with flows.running(started) as connection:
        took = [flows.done(connection, chain, chain, 1)[0] for _ in rounds]
    figures.say(f"  a chain of {chain}: {spread(took, '.2f')} s")
    rows = []
    for each in _PER_SECOND:
        moves, starts = flows.edge_seconds(started, each, seconds)
        percentiles = [figures.milliseconds(starts, percent) for percent in (50, 99)]
        rows.append(
            (f"{each}", f"{len(starts):,}", figures.milliseconds(moves, 50), *percentiles, "p50 5, p99 25")
        )
        figures.say(f"  edges at {each}: {rows[-1]}")
    table = figures.table(("pairs a second", "pairs", "moved, p50", "p50 ms", "p99 ms", "to reach"), rows)
    return (
        "## From a finish to the next start\n\n"
        f"{table}\n\nAn application commits pairs of a job and one that waits for it, on {latency.THREADS} "
        "connections. Times are from the finish of the first to the move and the claim of the second, by "
        f"PostgreSQL's clock. A chain of {chain:,} jobs took {spread(took, '.2f')} s, "
        f"{1000 * statistics.median(took) / chain:.1f} ms a link."
    )


def _flows(started: Services, number: int) -> str:
    jobs = number * _LEVELS * _WIDTH
    with flows.running(started) as connection:
        plain = jobs / flows.done(connection, jobs, 1, 1)[0]
        nodes = jobs / flows.done(connection, jobs, _LEVELS, _WIDTH)[0]
    figures.say(f"  {nodes:,.0f} nodes and {plain:,.0f} plain jobs a second")
    rows = [
        ("plain jobs", f"{plain:,.0f}"),
        ("nodes", f"{nodes:,.0f}"),
        ("ratio, to reach: 0.3", f"{nodes / plain:.2f}"),
    ]
    return (
        f"## {number:,} flows at once\n\n{figures.table(('', 'jobs a second'), rows)}\n\n"
        f"Each flow has {_LEVELS} levels of {_WIDTH} jobs that do nothing; each job waits for the whole previous "
        f"level. {jobs:,} jobs, from the commit of all flows to the last finish, on two worker processes."
    )


def _nothing(started: Services, jobs: int, seconds: float, rounds: range) -> str:
    """Compare the leader with one that never looks for edges."""
    kinds = ("", flows.WITHOUT_LOOKS)
    found: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in kinds}
    for number in rounds:
        for kind in kinds[:: -1 if number % 2 else 1]:
            found[kind].append(flows.plain(started, jobs, seconds, kind))
            figures.say(f"  plain jobs{', no looks' if kind else ''}: {found[kind][-1]}")
    rows = []
    columns = [list(zip(*found[kind], strict=True)) for kind in kinds]
    for what, form, ours, without in zip(_PLAIN, (",.0f", ",.0f", ".2f"), *columns, strict=True):
        rows.append((what, spread(ours, form), spread(without, form), figures.ratio(ours, without, 2)))
    table = figures.table(("", "leader as it is", "leader that never looks", "ratio"), rows)
    idle, waiting = flows.look_seconds(started)
    return (
        f"## Without jobs that wait\n\n{table}\n\nBursts of {jobs:,} plain jobs, and {latency.PER_SECOND} transactions "
        f"a second for {seconds:g} s. A look takes {idle * 1e6:.0f} us while no edge waits and {waiting * 1e6:.0f} us "
        f"while {flows.LOOKS:,} wait. At {1 / _IDLE_SECONDS:.0f} looks a second, the former is "
        f"{idle / _IDLE_SECONDS:.2%} of the leader's time."
    )


if __name__ == "__main__":
    alone.run("dependencies", section, SIZES)
