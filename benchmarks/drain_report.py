"""Sections of RESULTS.md on the drain: rates, backlogs, memory, and the delay to Redis."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psycopg

from benchmarks import figures, held_snapshot, latency, rates
from benchmarks.processes import command, peak_megabytes

if TYPE_CHECKING:
    from drain.embedded import Services


# Ratios with goals.
THIN = "drained without hashes, of the slower of moving and pushing"
WHOLE = "drained with hashes, of the slower of moving and pushing"
TIMES = "drained with hashes, compared with `Queue.enqueue_many`"
GOALS = ((THIN, 0.75, " of it"), (WHOLE, 0.75, " of it"), (TIMES, 10, " times"))


def rates_section(started: Services, jobs: int, rounds: int) -> tuple[str, dict[str, list[float]]]:
    """Measure the drain, its halves, and RQ; returns the section, and the ratios of all rounds by name."""
    figures.say(f"rates, {rounds} rounds of {jobs:,} jobs")
    ways: dict[str, Callable[[], float]] = {
        "drained: moved and pushed, tracked": lambda: rates.moved_and_pushed(started, jobs),
        "the same without hashes, for `drain work` alone": lambda: rates.moved_and_pushed(
            started, jobs, thin=True
        ),
        "moving alone": lambda: rates.moved_alone(started, jobs),
        "pushing alone": lambda: rates.pushed_alone(started, jobs),
        "pushing alone, without hashes": lambda: rates.pushed_thin_alone(started, jobs),
        "`Queue.enqueue`, one by one": lambda: rates.enqueued_one_by_one(started, jobs // 10),
        "`Queue.enqueue_many`, in thousands": lambda: rates.enqueued_in_thousands(started, jobs // 5),
    }
    measured: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            rates.refill(started, jobs)
            measured[name].append(measure())
        figures.say("  " + ", ".join(f"{values[-1]:,.0f}" for values in measured.values()))
    drained, thin, moving, pushing, pushing_thin, one_by_one, many = measured.values()
    slower = [min(pair) for pair in zip(moving, pushing, strict=True)]
    slower_thin = [min(pair) for pair in zip(moving, pushing_thin, strict=True)]
    table = figures.table(
        ("way", "jobs a second", "lowest – highest"),
        [
            (name, f"{statistics.median(v):,.0f}", f"{min(v):,.0f} – {max(v):,.0f}")
            for name, v in measured.items()
        ],
    )
    ratios = figures.table(
        ("the drain's rate is", "measured", "to reach"),
        [
            ("… times `Queue.enqueue`", figures.ratio(drained, one_by_one), "20"),
            ("… times `Queue.enqueue_many`", figures.ratio(drained, many), "10"),
            ("… of the slower of moving alone and pushing alone", figures.ratio(drained, slower, 2), "0.75"),
            ("… the same, without hashes", figures.ratio(thin, slower_thin, 2), "0.75"),
        ],
    )
    costs = [_cost(started, jobs, thin=thin) for thin in (False, True)]
    section = (
        f"## {jobs:,} jobs from committed rows to Redis\n\n{table}\n\n{ratios}\n\n"
        f"The bound: one job costs {costs[0]}. Without hashes, it costs {costs[1]}."
    )
    pairs = {THIN: (thin, slower_thin), WHOLE: (drained, slower), TIMES: (drained, many)}
    return section, {
        name: [one / other for one, other in zip(*pair, strict=True)] for name, pair in pairs.items()
    }


def _cost(started: Services, jobs: int, *, thin: bool) -> str:
    rates.refill(started, jobs)
    used = rates.cpu_by_process(started, jobs, thin=thin)
    text = ", ".join(f"{name} {microseconds:.1f}" for name, microseconds in used.items())
    total = sum(used.values())
    cores = os.cpu_count() or 1
    return (
        f"{total:.1f} microseconds of processor time ({text}), so {cores} dedicated cores could drain at most "
        f"{cores / total * 1e6:,.0f} a second"
    )


def backlog_section(started: Services, jobs: int, backlog: int, rounds: int) -> str:
    figures.say(f"a backlog of {backlog:,} rows")
    small: list[float] = []
    large: list[float] = []
    for _ in range(rounds):
        rates.refill(started, jobs)
        small.append(rates.moved_and_pushed(started, jobs))
        rates.refill(started, backlog)
        large.append(rates.moved_and_pushed(started, jobs))
        figures.say(f"  {small[-1]:,.0f} alongside {large[-1]:,.0f}")
    table = figures.table(
        ("rows that wait", "jobs a second, the first of them", "lowest – highest"),
        [
            (f"{rows:,}", f"{statistics.median(v):,.0f}", f"{min(v):,.0f} – {max(v):,.0f}")
            for rows, v in ((jobs, small), (backlog, large))
        ],
    )
    return f"## With a large backlog\n\n{table}\n\nRatio: {figures.ratio(large, small, 2)}; goal: 0.9."


def memory_section(started: Services, backlog: int) -> str:
    figures.say("memory of the enqueuer")
    rates.refill(started, backlog)
    with command(started, "run", "--metrics-port", "0", "--depth", "0") as process:
        began = monotonic()
        with psycopg.connect(started.database_url, autocommit=True) as connection:
            while connection.execute("SELECT FROM staged_jobs LIMIT 1").rowcount:
                sleep(0.2)
        seconds = monotonic() - began
        peak = peak_megabytes(process)
    figures.say(f"  {peak:.0f} MB, {backlog / seconds:,.0f} jobs a second")
    return (
        f"## Memory\n\nPeak of the `drain run` process while it drained {backlog:,} rows: **{peak:.0f} MB**; "
        f"goal: under 120 MB. The whole backlog took {seconds:.0f} s, {backlog / seconds:,.0f} jobs a second, "
        "including start-up."
    )


def held_snapshot_section(started: Services, backlog: int, rounds: int) -> str:
    figures.say(f"a held snapshot and a backlog of {backlog:,} rows")
    free: list[held_snapshot.Drained] = []
    held: list[held_snapshot.Drained] = []
    for _ in range(rounds):
        free.append(held_snapshot.drained(started, backlog, held=False))
        held.append(held_snapshot.drained(started, backlog, held=True))
        figures.say(
            f"  {held[-1].rate:,.0f} alongside {free[-1].rate:,.0f}, {held[-1].megabytes_afterwards:.1f} MB left"
        )
    rates_free, rates_held = [run.rate for run in free], [run.rate for run in held]
    table = figures.table(
        ("another session", "jobs a second", "lowest – highest"),
        [
            (who, f"{statistics.median(v):,.0f}", f"{min(v):,.0f} – {max(v):,.0f}")
            for who, v in (
                ("holds nothing", rates_free),
                ("holds a snapshot and a transaction id", rates_held),
            )
        ],
    )
    before = ", ".join(f"{jobs:,}" for jobs in held_snapshot.BEFORE)
    return (
        f"## With a held snapshot\n\n{table}\n\nRatio: {figures.ratio(rates_held, rates_free, 2)}; goal: 0.9.\n\n"
        f"`drain run` drains {backlog:,} rows staged in one transaction, after draining {before} rows. "
        "The repeatable-read snapshot was taken before the first of those was staged, and is held until the end. "
        "`staged_jobs` and its indexes took at most "
        f"{max(run.megabytes for run in held):,.0f} MB while the backlog waited, and at most "
        f"{max(run.megabytes_afterwards for run in held):.1f} MB after the turn of each partition, with the "
        "snapshot still held."
    )


def scheduled_section(started: Services, jobs: int, rounds: int) -> str:
    scheduled = held_snapshot.SCHEDULED
    figures.say(f"alongside {scheduled:,} jobs for tomorrow")
    alone: list[float] = []
    alongside: list[float] = []
    for _ in range(rounds):
        alone.append(held_snapshot.beside_scheduled(started, jobs, 0))
        alongside.append(held_snapshot.beside_scheduled(started, jobs, scheduled))
        figures.say(f"  {alongside[-1]:,.0f} alongside {alone[-1]:,.0f}")
    table = figures.table(
        ("scheduled for tomorrow", "jobs a second", "lowest – highest"),
        [
            (f"{rows:,}", f"{statistics.median(v):,.0f}", f"{min(v):,.0f} – {max(v):,.0f}")
            for rows, v in ((0, alone), (scheduled, alongside))
        ],
    )
    return f"## Alongside scheduled jobs\n\n{table}\n\nRatio: {figures.ratio(alongside, alone, 2)}."


def latency_section(started: Services, seconds: float) -> str:
    figures.say(f"latency, {seconds:.0f} s at {latency.PER_SECOND} transactions a second")
    rates.refill(started, 0)
    to_redis, to_start = latency.measure(started, seconds)
    rows = [
        (
            name,
            f"{len(values):,}",
            *(figures.milliseconds(values, percent) for percent in (50, 99, 99.9)),
            goal,
        )
        for name, values, goal in (
            ("commit to Redis", to_redis, "p50 under 5, p99 under 25"),
            ("commit to start of the job", to_start, ""),
        )
    ]
    table = figures.table(("from … to", "jobs", "p50 ms", "p99 ms", "p99.9 ms", "to reach"), rows)
    figures.say(table)
    return (
        f"## Latency at {latency.PER_SECOND} transactions a second\n\n{table}\n\n"
        f"Each transaction stages one job, on {latency.THREADS} connections. The clock starts when COMMIT returns to "
        f"the application. One job in {latency.WORKED_ONE_IN} goes to a queue with one `drain work` and counts as "
        "started when claimed; the arrival of the others is read from the Redis list. Application, enqueuer, "
        "worker, PostgreSQL and Redis share the machine's cores."
    )
