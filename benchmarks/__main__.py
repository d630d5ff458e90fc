"""`make bench`: all figures in one run, written to RESULTS.md."""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psycopg
import redis

from benchmarks import (
    admission,
    alone,
    bulk_report,
    depths,
    exactness,
    figures,
    held_snapshot,
    latency,
    plain_rq,
    rates,
    recovery,
    short_form,
    soak,
    staging,
    stock_workers,
    ticks,
    unique,
)
from benchmarks.peers import plots, quick, report, results, run
from benchmarks.processes import command, peak_megabytes
from drain.database import schema
from drain.embedded import Services, services

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).with_name("RESULTS.md")


def main() -> None:
    """Measure, print each figure, and write RESULTS.md."""
    arguments = _arguments()
    with services() as started:
        schema.install(started.database_url)
        if arguments.quick or arguments.check:
            sys.exit(_quick(started, arguments))
        parts = {part: PARTS[part](started, arguments) for part in arguments.parts}
    text = figures.merge(arguments.output, parts)
    arguments.output.write_text(text, encoding="utf-8")
    print(f"\nwritten to {arguments.output}")


def _drain(started: Services, arguments: argparse.Namespace) -> list[str]:
    return [
        _heading(),
        *[
            _versions(started),
            _rates(started, arguments.jobs, arguments.rounds),
            staging.section(started, arguments.jobs, arguments.rounds),
            _backlog(started, arguments.jobs, arguments.backlog, arguments.rounds),
            _memory(started, arguments.backlog),
            _held_snapshot(started, arguments.held_backlog, (arguments.rounds + 1) // 2),
            _scheduled(started, arguments.jobs, arguments.rounds),
            _latency(started, arguments.seconds),
            recovery.section(started, arguments.jobs, arguments.rounds),
        ],
        *soak.sections(arguments.soak),
    ]


def _bulk(started: Services, arguments: argparse.Namespace) -> list[str]:
    title, *others = bulk_report.sections(started, (arguments.rounds + 1) // 2, scale=arguments.scale)
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("pyspark", "adbc-driver-postgresql", "pyarrow")
    )
    return [title, f"{_versions(started)} {packages}.", *others]


def _peers(started: Services, arguments: argparse.Namespace) -> list[str]:
    plan = run.Plan(
        rounds=arguments.peer_rounds,
        seconds=arguments.peer_seconds,
        delay_seconds=arguments.peer_seconds + 2,
        scheduled=arguments.scheduled,
        hold_seconds=arguments.hold_seconds,
    )
    found = run.run(started, plan)
    found.machine = _versions(started)
    # The check compares ratios of the short form with ratios of the short form, of the same machine and day.
    found.quick = quick.measure(started)
    results.save(found)
    plots.draw(found)
    return report.sections(found)


def _stock(_started: Services, arguments: argparse.Namespace) -> list[str]:
    return [stock_workers.section(arguments.peer_rounds, arguments.stock_jobs)]


def _both(_started: Services, _arguments: argparse.Namespace) -> list[str]:
    return [short_form.section()]


def _plain(_started: Services, arguments: argparse.Namespace) -> list[str]:
    return [plain_rq.section(arguments.peer_rounds, 2 * arguments.stock_jobs)]


def _admission(started: Services, arguments: argparse.Namespace) -> list[str]:
    return [
        "# Admission at the drain",
        _versions(started),
        *(
            module.section(started, **alone.sizes_of(module.SIZES, quick=arguments.scale < 1))
            for module in (admission, depths, unique, exactness, ticks)
        ),
    ]


def _quick(started: Services, arguments: argparse.Namespace) -> int:
    """Run the short form; returns the exit code of the check."""
    recorded = results.load()
    if arguments.check and not recorded.quick:
        print(
            f"{results.PATH} records no ratios yet: run `python -m benchmarks --quick --record`",
            file=sys.stderr,
        )
        return 1
    found = quick.measure(started)
    fallen = quick.fallen(found, recorded.quick) if arguments.check else []
    if fallen:
        # On a shared machine one low figure proves nothing: the better of two rounds counts.
        figures.say("once more, since these are low:\n" + "\n".join(fallen))
        again = quick.measure(started)
        found = {name: max(value, again[name]) for name, value in found.items()}
        fallen = quick.fallen(found, recorded.quick)
    figures.say("")
    for name, value in found.items():
        figures.say(
            f"{name}: {value:.3g}" + (f" ({before:.3g})" if (before := recorded.quick.get(name)) else "")
        )
    for line in fallen:
        print(f"more than a fifth lower than recorded: {line}", file=sys.stderr)
    if arguments.record:
        recorded.quick = found
        results.save(recorded)
    return 1 if fallen else 0


PARTS: dict[str, Callable[[Services, argparse.Namespace], list[str]]] = {
    "drain": _drain,
    "bulk": _bulk,
    "peers": _peers,
    "stock": _stock,
    "both": _both,
    "plain": _plain,
    "admission": _admission,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=list(PARTS),
        default=list(PARTS),
        help="parts to measure; all others keep their figures",
    )
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="scale of bulk work, such as 0.01 to try it; below 1 also the short form of admission",
    )
    parser.add_argument("--jobs", type=int, default=100_000, help="jobs of one round")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of each figure")
    parser.add_argument("--backlog", type=int, default=3_000_000, help="rows of the large backlog")
    parser.add_argument(
        "--held-backlog", type=int, default=2_000_000, help="rows that are drained under a held snapshot"
    )
    parser.add_argument("--seconds", type=float, default=30, help="duration of the latency measurement")
    parser.add_argument("--peer-rounds", type=int, default=5, help="rounds of rates beside the peers")
    parser.add_argument("--peer-seconds", type=float, default=6, help="duration of one run beside the peers")
    parser.add_argument("--stock-jobs", type=int, default=100, help="jobs of one burst on RQ's own workers")
    parser.add_argument(
        "--hold-seconds",
        type=float,
        default=600,
        help="of a held snapshot beside the peers; 0: no other sessions",
    )
    parser.add_argument(
        "--scheduled", type=int, default=5_000_000, help="jobs for tomorrow beside those of the peers"
    )
    parser.add_argument("--quick", action="store_true", help="the short form, which writes nothing")
    parser.add_argument(
        "--record", action="store_true", help="with --quick: write its ratios into peers.json"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="the short form; fails if a ratio is a fifth below the recorded one",
    )
    parser.add_argument(
        "--soak", type=Path, default=soak.SUMMARY, help="summary that `make soak` has written"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="file to write")
    return parser.parse_args()


def _heading() -> str:
    return (
        "# Results\n\n"
        "Written by `make bench`, all in one run on one machine. Each figure is the median of its rounds, with "
        "the lowest and the highest beside it; the rounds of all rows take turns, so that what else the machine "
        "does meets them alike. Ratios are taken round by round."
    )


def _versions(started: Services) -> str:
    with psycopg.connect(started.database_url) as connection:
        postgres = connection.info.parameter_status("server_version")
    with redis.Redis.from_url(started.redis_url) as client:
        redis_version = client.info("server")["redis_version"]
    packages = ", ".join(f"{name} {version(name)}" for name in ("rq", "redis", "hiredis", "psycopg"))
    return (
        f"Machine: {os.cpu_count()} cores, {_processor()}, {platform.system()} {platform.release()}. "
        f"Python {platform.python_version()}, PostgreSQL {postgres} (fsync on), Redis {redis_version}, {packages}. "
        f"{datetime.now(UTC):%Y-%m-%d}."
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _rates(started: Services, jobs: int, rounds: int) -> str:
    figures.say(f"rates, {rounds} rounds of {jobs:,} jobs")
    ways: dict[str, Callable[[], float]] = {
        "drained: moved and pushed, tracked": lambda: rates.moved_and_pushed(started, jobs),
        "moving alone": lambda: rates.moved_alone(started, jobs),
        "pushing alone": lambda: rates.pushed_alone(started, jobs),
        "`Queue.enqueue`, one by one": lambda: rates.enqueued_one_by_one(started, jobs // 10),
        "`Queue.enqueue_many`, in thousands": lambda: rates.enqueued_in_thousands(started, jobs // 5),
    }
    measured: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            rates.refill(started, jobs)
            measured[name].append(measure())
        figures.say("  " + ", ".join(f"{values[-1]:,.0f}" for values in measured.values()))
    drained, moving, pushing, one_by_one, many = measured.values()
    slower = [min(pair) for pair in zip(moving, pushing, strict=True)]
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
            ("… of the slower of moving alone and pushing alone", figures.ratio(drained, slower, 2), "0.6"),
        ],
    )
    rates.refill(started, jobs)
    used = rates.cpu_by_process(started, jobs)
    text = ", ".join(f"{name} {microseconds:.1f}" for name, microseconds in used.items())
    total = sum(used.values())
    cores = os.cpu_count() or 1
    return (
        f"## {jobs:,} jobs from committed rows to Redis\n\n{table}\n\n{ratios}\n\n"
        f"What bounds it: one job costs {total:.1f} microseconds of processor time ({text}), so {cores} cores that "
        f"did nothing else could drain {cores / total * 1e6:,.0f} a second at the very most."
    )


def _backlog(started: Services, jobs: int, backlog: int, rounds: int) -> str:
    figures.say(f"a backlog of {backlog:,} rows")
    small: list[float] = []
    large: list[float] = []
    for _ in range(rounds):
        rates.refill(started, jobs)
        small.append(rates.moved_and_pushed(started, jobs))
        rates.refill(started, backlog)
        large.append(rates.moved_and_pushed(started, jobs))
        figures.say(f"  {small[-1]:,.0f} beside {large[-1]:,.0f}")
    table = figures.table(
        ("rows that wait", "jobs a second, the first of them", "lowest – highest"),
        [
            (f"{rows:,}", f"{statistics.median(v):,.0f}", f"{min(v):,.0f} – {max(v):,.0f}")
            for rows, v in ((jobs, small), (backlog, large))
        ],
    )
    return f"## With a large backlog\n\n{table}\n\nRatio: {figures.ratio(large, small, 2)}; to reach: 0.9."


def _memory(started: Services, backlog: int) -> str:
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
        f"to reach: under 120 MB. The whole backlog took {seconds:.0f} s, {backlog / seconds:,.0f} jobs a second, "
        "start of the process included."
    )


def _held_snapshot(started: Services, backlog: int, rounds: int) -> str:
    figures.say(f"a held snapshot and a backlog of {backlog:,} rows")
    free: list[held_snapshot.Drained] = []
    held: list[held_snapshot.Drained] = []
    for _ in range(rounds):
        free.append(held_snapshot.drained(started, backlog, held=False))
        held.append(held_snapshot.drained(started, backlog, held=True))
        figures.say(
            f"  {held[-1].rate:,.0f} beside {free[-1].rate:,.0f}, {held[-1].megabytes_afterwards:.1f} MB left"
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
        f"## With a held snapshot\n\n{table}\n\nRatio: {figures.ratio(rates_held, rates_free, 2)}; to reach: 0.9.\n\n"
        f"`drain run` drains {backlog:,} rows that were staged at once. Before that it drained {before} rows; the "
        "repeatable-read snapshot was taken before the first of them was staged, and is held until the end. "
        "`staged_jobs` and its indexes took "
        f"{max(run.megabytes for run in held):,.0f} MB at the most while the backlog waited, and at the most "
        f"{max(run.megabytes_afterwards for run in held):.1f} MB once its partitions had had their turns, the "
        "snapshot still held."
    )


def _scheduled(started: Services, jobs: int, rounds: int) -> str:
    scheduled = held_snapshot.SCHEDULED
    figures.say(f"beside {scheduled:,} jobs for tomorrow")
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(rounds):
        alone.append(held_snapshot.beside_scheduled(started, jobs, 0))
        beside.append(held_snapshot.beside_scheduled(started, jobs, scheduled))
        figures.say(f"  {beside[-1]:,.0f} beside {alone[-1]:,.0f}")
    table = figures.table(
        ("scheduled for tomorrow", "jobs a second", "lowest – highest"),
        [
            (f"{rows:,}", f"{statistics.median(v):,.0f}", f"{min(v):,.0f} – {max(v):,.0f}")
            for rows, v in ((0, alone), (scheduled, beside))
        ],
    )
    return f"## Beside jobs that are scheduled\n\n{table}\n\nRatio: {figures.ratio(beside, alone, 2)}."


def _latency(started: Services, seconds: float) -> str:
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
        f"Each transaction stages one job, on {latency.THREADS} connections. The clock starts when COMMIT has "
        f"returned to the application. One job in {latency.WORKED_ONE_IN} goes to a queue with one `drain work`, "
        "and its start is its claim; the arrival of the others is read off the Redis list. Application, enqueuer, "
        "worker, PostgreSQL and Redis share the machine's cores."
    )


if __name__ == "__main__":
    main()
