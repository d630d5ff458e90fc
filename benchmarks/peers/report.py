"""The third part of RESULTS.md."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from benchmarks import figures
from benchmarks.peers import peers
from benchmarks.peers.results import spread

if TYPE_CHECKING:
    from benchmarks.peers.results import Rates, Results

_WORKS = {
    "noop": "A job that does nothing",
    "cpu": "A job of 1 ms of processor time",
    "update": "A job of one UPDATE",
    "wait": "Jobs that wait 10 ms, 16 at once",
}
_IDEAL_AT_ONCE = 1600
# What a sampling profiler and the processor time of each process showed; to be read with the table above it.
_REASONS = """\
Where the time goes, by a sampling profiler and by the processor time of each process. Both cores are busy all the time
while jobs that do nothing are executed: of the 40 us that each of them costs all processes together, the worker takes
14, PostgreSQL 13 for the claim and the finish, and the enqueuer with its backend and Redis the rest. Nothing waits for
anything but a core, so no overlapping helps any more. PgQueuer takes a thousand jobs in one statement as well, and
spends 70 us on each; with the 25 of its documentation's example it does a third as many. The drain alone takes 12.5 us
a job, in three processes that take turns on two cores; neither store is busy all the time, the cores are.

One `UPDATE` in `transaction()` costs 600 to 800 us of processor time in all processes together, by the hour; a quarter
of that is SQLAlchemy's session, which `psycopg_transaction()` does without. It is three exchanges with the server
(BEGIN, UPDATE, finish with COMMIT), and each of the two processes waits for its own COMMIT. PgQueuer and Dramatiq make
one exchange, which commits by itself, and have 20 and 16 of them under way, which share their writes to the disk. What
they lack for that: the update and the finish are two commits there, so a worker that dies in between has the update
made twice; here both are one commit, exactly once, whoever dies.

At 2,000 commits a second both cores are taken to nine tenths, half of it by the application that commits: each hop of
a job waits for a core. Jobs of ten milliseconds in sixteen processes are finished nearly one by one, since what has
ended waits a hundredth of a second at most to be written down: a longer wait would be cheaper, and would let more be
repeated when a machine dies."""


def sections(results: Results) -> list[str]:
    """All of them, each as Markdown."""
    return [
        _heading(results),
        *[_rates(results, work) for work in ("noop", "cpu", "update")],
        _at_once(results),
        "![Jobs executed a second, by peer and kind of work](peers.png)",
        _delays(results),
        "![Milliseconds from commit to start, by peer](latency.png)",
        _memory(results),
        *([_disturbed(results)] if results.disturbed else []),
        _goals(results),
        _set_up(),
    ]


def _heading(results: Results) -> str:
    return (
        "# Beside the peers\n\n"
        f"{results.machine} Peers: {', '.join(results.versions)}.\n\n"
        "The same functions run by all, in two worker processes each, against one PostgreSQL and one Redis on the "
        "same two cores; a fresh database and an empty Redis for every run. The queue is filled first, then the "
        "workers start; each job counts itself in shared memory, and the rate is from the first one done to the "
        "last. Median of the rounds, with the lowest and the highest; the peers take turns. `make bench` repeats "
        "all of it, `python -m benchmarks --parts peers` this part alone, `make bench-quick` a short form in three "
        "minutes. All figures: [`peers.json`](peers.json)."
    )


def _rates(results: Results, work: str) -> str:
    measured = sorted((each for each in results.rates if each.work == work), key=_median, reverse=True)
    ours = next(each for each in measured if each.peer == peers.DRAIN)
    rows = [
        (
            each.peer,
            spread(each.rates),
            _finished(each),
            "" if each.peer.startswith(peers.DRAIN) else _times(_median(ours) / _median(each)),
            f"{statistics.median(run.cpu_seconds for run in each.runs):,.1f}",
        )
        for each in measured
    ]
    header = (
        "",
        "jobs a second",
        "noted as finished",
        "ours is … times that",
        "processor seconds of 100,000 jobs",
    )
    return f"## {_WORKS[work]}\n\n{figures.table(header, rows)}"


def _finished(measured: Rates) -> str:
    """Its rate up to the last commit that says so; nothing where Postgres does not know."""
    finished = statistics.median(run.finished_rate for run in measured.runs)
    known = any(
        measured.peer == peer.name and peer.unfinished for peer in (*peers.ALL, peers.OURS_ON_PSYCOPG)
    )
    return f"{finished:,.0f}" if known else ""


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2f}"


def _at_once(results: Results) -> str:
    rows = [
        (each.peer, spread(each.rates), f"{_median(each) / _IDEAL_AT_ONCE:.2f}")
        for each in sorted(results.at_once, key=_median, reverse=True)
    ]
    table = figures.table(("", "jobs a second", f"of the ideal {_IDEAL_AT_ONCE:,}"), rows)
    return (
        f"## {_WORKS['wait']}\n\n{table}\n\nSixteen in hand: as coroutines of one process (job-drain, PgQueuer, "
        "Procrastinate), as threads of one (Dramatiq), or as sixteen processes."
    )


def _delays(results: Results) -> str:
    rows = [
        (
            f"{each.per_second:,}",
            each.peer,
            *(spread(each.of(name), ".1f") for name in ("p50", "p99", "p999")),
            f"{statistics.median(each.of('committed_per_second')):,.0f}",
            f"{statistics.median(each.of('started_per_second')):,.0f}",
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
    )
    return (
        f"## From commit to start\n\n{figures.table(header, rows)}\n\nIdle workers, and single jobs, a transaction "
        "(or a push to Redis) each, on eight connections. The clock starts when the call that commits has returned. "
        "Whoever starts fewer than were committed has a queue that grows, and a delay that only tells for how long. "
        "PgQueuer and Procrastinate notify in every transaction, and PostgreSQL lets only one of those commit at a "
        "time, so that their applications may commit fewer than were asked for."
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
        f"## Memory\n\n{figures.table(header, rows)}\n\nMemory is that of all processes together, what they share "
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
        )
        for each in sorted(results.disturbed, key=lambda each: each.what)
    ]
    header = ("while", "", "jobs a second alone", "beside it", "ratio")
    return f"## Beside other sessions\n\n{figures.table(header, rows)}"


def _goals(results: Results) -> str:
    """What the figures were to reach, whether they did, and why not."""
    noop = {each.peer: _median(each) for each in results.rates if each.work == "noop"}
    update = {each.peer: _median(each) for each in results.rates if each.work == "update"}
    best = max((each for each in update if not each.startswith(peers.DRAIN)), key=update.__getitem__)
    ours = {each.per_second: each for each in results.delays if each.peer == peers.DRAIN}
    at_once = {each.peer: _median(each) / _IDEAL_AT_ONCE for each in results.at_once}
    rows = [
        *(
            _goal(f"jobs that do nothing, beside {name}", noop[peers.DRAIN] / noop[name], goal, " times")
            for name, goal in (("PgQueuer", 4), ("Dramatiq", 15), ("RQ, SimpleWorker", 100))
        ),
        *(
            _goal(f"one UPDATE, {name}, beside {best}", update[name] / update[best], 1, " times")
            for name in (peers.DRAIN, peers.DRAIN_PSYCOPG)
        ),
        *(
            _goal(
                f"p{name[1:]} at {per_second:,} commits a second",
                statistics.median(ours[per_second].of(name)),
                goal,
                " ms",
            )
            for per_second in sorted(ours)
            for name, goal in (("p50", 5), ("p99", 20))
        ),
        *(
            _goal(f"10 ms jobs, {name}", at_once[name], 0.9, " of the ideal")
            for name in (peers.DRAIN, peers.DRAIN_PROCESSES)
        ),
        *(
            _goal(name, results.quick[name], goal, " times" if goal > 1 else " of it")
            for name, goal in (
                ("drained to Queue.enqueue", 30),
                ("drained to Queue.enqueue_many", 12),
                ("drained to the slower of moving and pushing", 0.75),
            )
            if name in results.quick
        ),
        *(
            _goal(
                f"while {each.what}",
                statistics.median(each.disturbed) / statistics.median(each.alone),
                0.9,
                " of the rate",
            )
            for each in results.disturbed
            if each.peer == peers.DRAIN
        ),
    ]
    return (
        f"## What was to be reached\n\n{figures.table(('', 'to reach', 'measured', ''), rows)}\n\n{_REASONS}"
    )


def _goal(what: str, measured: float, goal: float, unit: str) -> tuple[str, str, str, str]:
    lower = unit == " ms"
    failpoint = measured <= goal if lower else measured >= goal
    shown = f"{measured:.1f}" if lower or measured >= 10 else f"{measured:.2f}"
    return (
        what,
        f"{goal}{unit}{' at most' if lower else ''}",
        shown,
        "reached" if failpoint else "not reached",
    )


def _set_up() -> str:
    lines = [f"- **{peer.name}**: {peer.why}" for peer in (*peers.ALL, peers.OURS_ON_PSYCOPG)]
    return (
        "## How each is set up\n\n"
        + "\n".join(lines)
        + "\n\nVersions are pinned in [`peers/requirements`](peers/requirements), the jobs are in "
        "[`peers/apps`](peers/apps)."
    )


def _median(measured: Rates) -> float:
    return statistics.median(measured.rates)
