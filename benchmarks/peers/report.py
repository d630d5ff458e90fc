"""Section of RESULTS.md on the peers."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks import figures
from benchmarks.peers import killed, killed_busy, peers, run
from benchmarks.peers.results import spread

if TYPE_CHECKING:
    from benchmarks.peers.peers import Peer
    from benchmarks.peers.results import Delays, Rates, Results

_WORKS = {
    run.NOOP: "A job that does nothing",
    run.CPU: "A job of 1 ms of processor time",
    run.UPDATE: "A job of one UPDATE",
    run.WAIT: "Jobs that wait 10 ms, 16 at once",
}
IDEAL_AT_ONCE = 1600
# To keep up, fraction of the requested commits to make, and of the commits made to start.
_KEEPS_UP = 0.97


def sections(results: Results, rates_picture: str, delays_picture: str) -> list[str]:
    """Render all measured figures; returns Markdown sections.

    Args:
        results: Figures of one kind of servers.
        rates_picture: File name of the picture of rates, in the directory of RESULTS.md.
        delays_picture: File name of the picture of delays.
    """
    return [
        _heading(results),
        *[_rates(results, work) for work in run.WORKS if results.rates_of(work)],
        *([_at_once(results)] if results.at_once else []),
        f"![Jobs executed a second, by peer and kind of work]({rates_picture})",
        *(
            [_delays(results), f"![Milliseconds from commit to start, by peer]({delays_picture})"]
            if results.delays
            else []
        ),
        *([_memory(results)] if results.stored else []),
        *([_disturbed(results)] if results.disturbed else []),
        *([killed.table(results)] if results.killed else []),
        *([killed_busy.table(results)] if results.killed_busy else []),
        _set_up(results),
    ]


def keeps_up(delays: Delays) -> bool:
    """Check that the application commits at the requested rate, and that the workers start the jobs."""
    committed, started, part = (
        statistics.median(delays.of(name))
        for name in ("committed_per_second", "started_per_second", "started_of_committed")
    )
    return committed >= _KEEPS_UP * delays.per_second and started >= _KEEPS_UP * committed and part > 0.999


def _heading(results: Results) -> str:
    return (
        "# Compared with the peers\n\n"
        f"{results.machine} Peers: {', '.join(results.versions)}.\n\n"
        "All run the same functions against one PostgreSQL and one Redis on the same cores, with a fresh database and "
        "an empty Redis for every run. The queue is filled before the workers start. Each job counts itself in "
        "shared memory, and the rate is from the first job done to the last. Median of the rounds, with the lowest "
        "and the highest; the peers take turns. `python -m benchmarks --parts peers-update` repeats one table, "
        "`--help` lists the others. All figures: [`peers.json`](peers.json)."
    )


def _rates(results: Results, work: str) -> str:
    measured = sorted(results.rates_of(work).values(), key=_median, reverse=True)
    ours = next(each for each in measured if each.peer == peers.DRAIN)
    rows = [
        (
            each.peer,
            str(results.processes.get(work, {}).get(each.peer, peers.PROCESSES)),
            spread(each.rates),
            _finished(each),
            "" if each.peer.startswith(peers.DRAIN) else _times(_median(ours) / _median(each)),
            f"{statistics.median(run.cpu_seconds for run in each.runs):,.1f}",
            *_of_postgres(each),
        )
        for each in measured
    ]
    header = (
        "",
        "processes",
        "jobs a second",
        "noted as finished",
        "ours is … times that",
        "processor seconds of 100,000 jobs",
        "PostgreSQL's",
        "WAL of a job",
        "transaction ids of a job",
    )
    return f"## {_WORKS[work]}\n\n{figures.table(header, rows)}"


def _finished(measured: Rates) -> str:
    """Format the rate up to the last commit that records a finish; "" if Postgres does not know."""
    finished = statistics.median(run.finished_rate for run in measured.runs)
    known = any(measured.peer == peer.name and peer.unfinished for peer in run.WORKS[measured.work])
    return f"{finished:,.0f}" if known else ""


def _of_postgres(measured: Rates) -> tuple[str, str, str]:
    """Format PostgreSQL's processor seconds of 100,000 jobs, WAL and transactions; "" where not measured."""
    cpu, wal, transactions = (
        statistics.median(values)
        for values in zip(
            *(
                (run.cpu_by_part.get("PostgreSQL", 0.0), run.wal_bytes, run.transactions)
                for run in measured.runs
            ),
            strict=True,
        )
    )
    return f"{cpu:.1f}", f"{wal:,.0f} B" if wal else "", f"{transactions:.3f}" if wal else ""


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2f}"


def _at_once(results: Results) -> str:
    rows = [
        (each.peer, spread(each.rates), f"{_median(each) / IDEAL_AT_ONCE:.2f}")
        for each in sorted(results.at_once, key=_median, reverse=True)
    ]
    table = figures.table(("", "jobs a second", f"of the ideal {IDEAL_AT_ONCE:,}"), rows)
    return (
        f"## {_WORKS['wait']}\n\n{table}\n\nSixteen jobs at a time: as coroutines of one process (job-drain, PgQueuer, "
        "Procrastinate, Graphile Worker, pg-boss), as threads of one (Dramatiq), or as sixteen processes."
    )


def _delays(results: Results) -> str:
    rows = [
        (
            f"{each.per_second:,}",
            each.peer,
            *(spread(each.of(name), ".1f") for name in ("p50", "p99", "p999")),
            f"{statistics.median(each.of('committed_per_second')):,.0f}",
            f"{statistics.median(each.of('started_per_second')):,.0f}",
            "yes" if keeps_up(each) else "no",
        )
        for each in results.delays
    ]
    header = (
        "commits a second",
        "",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "committed a second",
        "started a second",
        "keeps up",
    )
    return (
        f"## From commit to start\n\n{figures.table(header, rows)}\n\nTwo idle worker processes, and an application "
        "with eight connections. Each transaction writes a row and stages a job. Where the job cannot be part of the "
        "transaction (Redis, and Procrastinate, whose `defer` uses its own connection), it is pushed after the commit. "
        "The clock starts when that commit returns. A system keeps up if the application commits at the requested rate "
        "and the workers start the jobs; the delays of the others only show how long their queue has grown. "
        "PgQueuer and Procrastinate notify in every transaction, and PostgreSQL commits such transactions one at a "
        "time."
    )


def _memory(results: Results) -> str:
    rows = []
    for each in results.rates:
        if each.work == "noop":
            bytes_ = results.stored.get(each.peer)
            others = statistics.median(run.enqueuer_megabytes for run in each.runs)
            rows.append(
                (
                    each.peer,
                    f"{statistics.median(run.worker_megabytes for run in each.runs):.0f}",
                    f"{others:.0f}" if others else "",
                    f"{bytes_.redis:,.0f}" if bytes_ and bytes_.redis > 1 else "",
                    f"{bytes_.postgres:,.0f}" if bytes_ and bytes_.postgres > 1 else "",
                )
            )
    header = ("", "workers MB", "enqueuer MB", "Redis bytes a queued job", "Postgres bytes a queued job")
    return (
        f"## Memory\n\n{figures.table(header, rows)}\n\nMemory is the total of all processes, with shared memory "
        "counted once. The bytes in Postgres are those of a staged row with its indexes."
    )


def _disturbed(results: Results) -> str:
    rows = [
        (
            each.what,
            each.peer,
            spread(each.alone),
            spread(each.disturbed),
            f"{statistics.median(each.disturbed) / statistics.median(each.alone):.2f}",
            f"{statistics.median(each.counted_out) / statistics.median(each.alone):.2f}",
        )
        for each in sorted(results.disturbed, key=lambda each: each.what)
    ]
    header = ("while", "", "jobs a second alone", "alongside it", "ratio", "their processor time counted out")
    return (
        f"## Alongside other sessions\n\n{figures.table(header, rows)}\n\n"
        "The last column divides by the fraction of processor time that the other sessions left."
    )


def _set_up(results: Results) -> str:
    measured = [
        *peers.ALL,
        *peers.ALSO_UPDATING,
        peers.OURS_IN_PROCESSES,
        peers.OURS_IN_THREADS,
        peers.BARE_LOOPS,
        peers.PGBOSS_TRANSACTIONAL,
    ]
    lines = [f"- **{peer.name}**: {peer.why}{_tried(results, peer)}" for peer in measured]
    return (
        "## How each is set up\n\n"
        + "\n".join(lines)
        + f"\n\nTwo processes unless stated otherwise; a stated number was the fastest of {run.PROCESSES[0]} to "
        f"{run.PROCESSES[-1]}. Versions are pinned in [`peers/requirements`](peers/requirements), the jobs "
        "are in [`peers/apps`](peers/apps)."
    )


def _tried(results: Results, peer: Peer) -> str:
    """Name the numbers of processes that were fastest."""
    best = [
        f"{number} for {_WORKS[work].lower()}"
        for work, by_peer in results.processes.items()
        if (number := by_peer.get(peer.name))
    ]
    return f" Processes: {', '.join(best)}." if best else ""


def _median(measured: Rates) -> float:
    return statistics.median(measured.rates)
