"""Goals of the figures, the measured values, and the reasons for missed goals."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks import drain_report, figures
from benchmarks.peers import disturbances, peers, report, run
from benchmarks.peers.results import Results, spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.peers.results import Delays


@dataclass(frozen=True)
class Goal:
    """One goal.

    Attributes:
        what: Name of the figure.
        bound: Bound of the median.
        measured: Figure of each round.
        unit: Unit, printed after the number.
        at_most: Whether the bound is an upper one.
    """

    what: str
    bound: float
    measured: Sequence[float]
    unit: str = " times"
    at_most: bool = False

    @property
    def is_reached(self) -> bool:
        median = statistics.median(self.measured)
        return median <= self.bound if self.at_most else median >= self.bound

    def row(self) -> tuple[str, str, str, str]:
        return (
            self.what,
            f"{self.bound:g}{self.unit}{' at most' if self.at_most else ''}",
            spread(self.measured, ".1f" if statistics.median(self.measured) >= 10 else ".2f"),
            "reached" if self.is_reached else "not reached",
        )


def sections(results: Results) -> list[str]:
    """Render the head of RESULTS.md, and the table of all goals with known figures, as Markdown."""
    rows = [goal.row() for goal in goals(results)]
    table = figures.table(("", "to reach", "measured", ""), rows)
    reasons = [_REASONS] if any("not reached" in row for row in rows) else []
    return [_HEADING, f"## What was to be reached\n\n{table}\n\n{_HOW}", *reasons]


def goals(results: Results) -> Iterator[Goal]:
    """Yield all goals with known figures."""
    yield from _of_rates(results)
    yield from _of_delays(results)
    at_once = {each.peer: each.rates for each in results.at_once}
    for name in (peers.DRAIN, peers.DRAIN_THREADS, peers.DRAIN_PROCESSES):
        if name in at_once:
            of_ideal = [rate / report.IDEAL_AT_ONCE for rate in at_once[name]]
            yield Goal(f"10 ms jobs, 16 at once, {name}", 0.95, of_ideal, " of the ideal")
    for what, bound, unit in drain_report.GOALS:
        if drained := results.ratios.get(what):
            yield Goal(what, bound, drained, unit)
    yield from _of_disturbances(results)


def _of_rates(results: Results) -> Iterator[Goal]:
    for work, what, ours, theirs, bound in (
        (run.UPDATE, "one UPDATE, `transaction()`", peers.OURS, peers.PGQUEUER, 1.0),
        (run.UPDATE, "one UPDATE, `transaction()`", peers.OURS, peers.DRAMATIQ, 1.0),
        (run.UPDATE, "one UPDATE, `psycopg_transaction()`", peers.OURS_ON_PSYCOPG, peers.PGQUEUER, 1.25),
        (run.UPDATE, "one UPDATE, `psycopg_transaction()`", peers.OURS_ON_PSYCOPG, peers.DRAMATIQ, 1.25),
        (run.UPDATE, 'one UPDATE, `commit="shared"`', peers.OURS_SHARED, peers.PGQUEUER, 1.2),
        (
            run.UPDATE,
            'one UPDATE, `commit="shared"`, psycopg',
            peers.OURS_SHARED_ON_PSYCOPG,
            peers.PGQUEUER,
            1.5,
        ),
        (run.CPU, "1 ms of computing", peers.OURS, peers.PGQUEUER, 1.0),
        (run.CPU, "1 ms of computing", peers.OURS, peers.BARE_LOOPS, 0.95),
        (run.NOOP, "jobs that do nothing", peers.OURS, peers.PGQUEUER, 2.0),
        (run.NOOP, "jobs that do nothing", peers.OURS, peers.DRAMATIQ, 10.0),
        (run.NOOP, "jobs that do nothing", peers.OURS, peers.RQ_SIMPLE, 60.0),
        (run.NOOP, "jobs that do nothing", peers.OURS, peers.GRAPHILE_BATCHED, 1.0),
    ):
        found = results.rates_of(work)
        if ours.name in found and theirs.name in found:
            ratios = _by_round(found[ours.name].rates, found[theirs.name].rates)
            yield Goal(f"{what}, compared with {theirs.name}", bound, ratios)
    for each in [empty[peers.DRAIN]] if peers.DRAIN in (empty := results.rates_of(run.NOOP)) else []:
        used = [10 * found.cpu_by_part["PostgreSQL"] for found in each.runs]
        yield Goal("processor time of PostgreSQL, a job that does nothing", 14, used, " us", at_most=True)
        if all(found.wal_bytes for found in each.runs):
            written = [found.wal_bytes for found in each.runs]
            yield Goal("WAL of such a job from stage to finish", 1229, written, " bytes", at_most=True)


def _of_delays(results: Results) -> Iterator[Goal]:
    slow, fast = run.PER_SECOND
    for name, times, milliseconds in (("p50", 2, 3), ("p99", 1.5, 10)):
        found = _delays(results, slow)
        if peers.DRAIN in found and peers.PGQUEUER.name in found:
            ours, theirs = found[peers.DRAIN].of(name), found[peers.PGQUEUER.name].of(name)
            what = f"commit to start at {slow} a second, {name}"
            ratios = _by_round(ours, theirs)
            yield Goal(f"{what}, compared with PgQueuer", times, ratios, at_most=True)
            yield Goal(what, milliseconds, ours, " ms", at_most=True)
    found = _delays(results, fast)
    ours_fast = found.pop(peers.DRAIN, None)
    if ours_fast:
        yield Goal(f"commit to start at {fast:,} a second, p50", 5, ours_fast.of("p50"), " ms", at_most=True)
    for each in found.values():
        if ours_fast and report.keeps_up(each):
            ratios = _by_round(ours_fast.of("p99"), each.of("p99"))
            what = f"commit to start at {fast:,} a second, p99, compared with {each.peer}, which keeps up"
            yield Goal(what, 1.0, ratios, at_most=True)


def _of_disturbances(results: Results) -> Iterator[Goal]:
    for each in results.disturbed:
        if each.peer == peers.DRAIN:
            alone = statistics.median(each.alone)
            is_counted_out = str(disturbances.READERS) == each.what.split(" ", maxsplit=1)[0]
            rates = each.counted_out if is_counted_out else each.disturbed
            also = ", their processor time counted out" if is_counted_out else ""
            yield Goal(
                f"while {each.what}{also}", 0.95, [rate / alone for rate in rates], " of the undisturbed rate"
            )


def _delays(results: Results, per_second: int) -> dict[str, Delays]:
    return {each.peer: each for each in results.delays if each.per_second == per_second}


def _by_round(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    # Figures from different runs may have different numbers of rounds.
    return [one / max(other, 1e-3) for one, other in zip(ours, theirs, strict=False)]


_HEADING = (
    "# Results\n\n"
    "Written by `make bench`, part by part, on one machine. Each figure is the median of its rounds, with the "
    "lowest and the highest next to it. The rounds of all rows take turns, so that other load on the machine affects "
    "all alike. Ratios are taken round by round. Systems without a goal take part in two rounds."
)
_HOW = "The goals of bulk commands, recovery and admission are next to their figures."
# What the processor time of each process and a sampling profiler have shown; to be read with the table above.
_REASONS = """\
Where the time goes, by the processor time of each process and a sampling profiler.

- **Jobs that do nothing.** Both cores are busy for nine tenths of the time. A job costs 52 us: 28 in the
  worker and the enqueuer, 22 in PostgreSQL for the move, the claim and the finish, 2 in Redis. PgQueuer's
  costs 81, Dramatiq's 202. Twice PgQueuer's rate would be 40 us.
- **One UPDATE in the job's own transaction.** The job's statement and its finish are two exchanges, and
  each job has its own commit. PgQueuer and Dramatiq commit the UPDATE alone. PgQueuer records finishes in
  batches, Dramatiq in Redis.
- **One UPDATE, shared.** Of 263 us, PostgreSQL takes 96 and the worker about 130. Within the worker, the
  exchange of the statement takes 60 to 100. SQLAlchemy's session adds 135 to 150.
- **1 ms of computing.** On the embedded servers, a job costs 1,305 us: 1,093 in bare loops, 59 in PostgreSQL,
  the rest in the worker and the enqueuer. Batches are small: a list holds the jobs of a tenth of a second.
- **From commit to start.** A job wakes the leader, which searches and moves (two exchanges, and a wait for
  the disk) and pushes; the push wakes the worker, which pops and claims (an exchange, and a wait for the
  disk). PgQueuer's worker is woken by the application's commit, and claims: one exchange, and one wait.
- **10 ms jobs, 16 at once.** Sixteen coroutines that only sleep reach 0.95 of the ideal in a bare event loop.
- **Drained with hashes.** A job costs 14.5 us: 5.7 in PostgreSQL, 4.8 in Redis, 4.0 in the enqueuer. The
  move alone is hardly ten times as fast as `enqueue_many`."""
