"""Report on bulk work: figures, and how they grow with the number of rows."""

from __future__ import annotations

import json
import statistics
import threading
from typing import TYPE_CHECKING

from benchmarks import bulk, figures, latency, rates

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from drain.embedded import Services

MILLION = 1_000_000
_DOCUMENTS = "SELECT id, concat('user', id) AS author FROM range({rows})"
_KEYS = "SELECT id, id % 97 AS version FROM range({rows})"
# One key in a hundred: a third missing, a third changed, a third gone from the source.
_TARGET = (
    "SELECT id, id % 97 + int(id % 300 = 1) AS version FROM range({rows}) WHERE id % 300 <> 0 "
    "UNION ALL SELECT id + {rows}, 0 FROM range({rows} div 300)"
)
_ARCHIVED = (
    "SELECT id, concat('shop.jobs.', id % 20) AS job_name, '[1]' AS job_args, '{{}}' AS job_kwargs, 0 AS priority, "
    "at AS scheduled_at, string(null) AS tag, string(null) AS context, at AS staged_at, bigint(1) AS fencing_token, "
    "string(null) AS history, at AS moved_at, at + make_dt_interval(0, 0, 0, rand(1)) AS claimed_at, "
    "at + make_dt_interval(0, 0, 0, 1 + rand(2)) AS finished_at, 'worker' AS finished_by, "
    "1 + int(id % 50 = 0) AS attempts, string(null) AS last_error, id AS finished_xid, "
    "date_format(at, 'yyyy-MM-dd') AS finished_date, concat('queue', id % 5) AS queue "
    "FROM (SELECT id, timestamp '2026-01-01 00:00:00' + make_dt_interval(0, 0, 0, id % 2500000) AS at "
    "FROM range({rows}))"
)


def sections(started: Services, rounds: int, *, scale: float = 1.0) -> list[str]:
    """Measure all parts; returns a Markdown section for each.

    Args:
        started: Servers to use.
        rounds: Rounds of each comparison.
        scale: Factor of all sizes; 1 for published figures.
    """
    with bulk.place() as directory:
        return [
            "# Bulk work on Spark",
            _backfill(started, directory, int(2 * MILLION * scale), rounds),
            _reading(started, int(2 * MILLION * scale), rounds),
            _reconcile(started, directory, int(5 * MILLION * scale)),
            _stats(started, directory, int(10 * MILLION * scale)),
            _latency(started, directory, int(2 * MILLION * scale), 60 * scale),
        ]


def growth(started: Services, plot: Path, *, scale: float = 1.0) -> str:
    """Measure each command at three sizes, draw the picture at `plot`, and return the section."""
    with bulk.place() as directory:
        return _growth(started, directory, [int(n * MILLION * scale) for n in (1, 3, 10)], plot)


def _backfill(started: Services, directory: Path, rows: int, rounds: int) -> str:
    figures.say(f"backfill of {rows:,} rows")
    documents, csv = directory / f"documents{rows}.parquet", directory / "documents.csv"
    bulk.make(started, directory, [f"{documents.name}: {_DOCUMENTS.format(rows=rows)}"])
    with csv.open("w") as file:
        file.writelines(f'shop.jobs.index,"[{n}, ""user{n}""]",bulk,100\n' for n in range(rows))
    measured: dict[str, list[float]] = {
        name: [] for name in ("COPY", "INSERT", "commits", "backfill", "start", "work")
    }
    memory = 0.0
    for _ in range(rounds):
        bulk.empty(started)
        measured["COPY"].append(rows / bulk.copied(started, csv))
        bulk.empty(started)
        measured["INSERT"].append(bulk.inserted(started, rows // 50, autocommit=False))
        measured["commits"].append(bulk.inserted(started, rows // 200, autocommit=True))
        bulk.empty(started)
        run = backfill(started, documents)
        memory = max(memory, run.megabytes)
        measured["backfill"].append(rows / run.seconds)
        measured["start"].append(backfill(started, documents, "--where", "id < 0").seconds)
        measured["work"].append(rows / (run.seconds - measured["start"][-1]))
        figures.say("  " + ", ".join(f"{values[-1]:,.1f}" for values in measured.values()))
    names = {
        "COPY": "`COPY` of the same rows by psql",
        "commits": "a loop of `INSERT`s, each committed",
        "INSERT": "a loop of `INSERT`s in one transaction",
        "backfill": "`drain backfill` from Parquet, the whole command",
        "work": "… without the start of Spark",
    }
    table = _rates_table({names[key]: measured[key] for key in names})
    ratios = figures.table(
        ("the backfill's rate is", "measured", "to reach"),
        [
            ("… of `COPY`", figures.ratio(measured["backfill"], measured["COPY"], 2), "0.4"),
            (
                "… of `COPY`, without the start of Spark",
                figures.ratio(measured["work"], measured["COPY"], 2),
                "",
            ),
            (
                "… times the loop that commits each",
                figures.ratio(measured["backfill"], measured["commits"]),
                "20",
            ),
            (
                "… times the loop in one transaction",
                figures.ratio(measured["backfill"], measured["INSERT"]),
                "",
            ),
        ],
    )
    return (
        f"## Backfill of {rows:,} rows\n\n{table}\n\n{ratios}\n\nThe start of the JVM and its Spark "
        f"session takes {statistics.median(measured['start']):.1f} s, measured by an empty backfill. The rest is "
        "one `COPY`, in its own transaction on one core, while Spark encodes the next rows. "
        f"All processes of the command together used at most {memory:,.0f} MB."
    )


def backfill(started: Services, source: Path, *options: str) -> bulk.Run:
    """Stage a job for each document."""
    words = ("--job", "shop.jobs.index", "--args", "id,author", "--queue", "bulk")
    return bulk.drain(started, "backfill", str(source), *words, *options)


def _reading(started: Services, rows: int, rounds: int) -> str:
    figures.say(f"reading {rows:,} finished jobs")
    bulk.empty(started)
    bulk.finish(started, rows)
    cursor: list[float] = []
    spark: list[float] = []
    for _ in range(rounds):
        script = bulk.CURSOR.format(columns=bulk.READ_COLUMNS, rows=rows)
        cursor.append(rows / bulk.program(started, "-c", script).seconds)
        script = bulk.READ.format(columns=bulk.READ_COLUMNS)
        spark.append(rows / float(bulk.program(started, "-c", script).output))
        figures.say(f"  {cursor[-1]:,.0f}, {spark[-1]:,.0f}")
    table = _rates_table({"a psycopg server cursor": cursor, "the Spark data source": spark})
    return (
        f"## Reading {rows:,} finished jobs\n\n{table}\n\nRatio: {figures.ratio(spark, cursor)}; goal: 3. "
        "Ten columns of each row; the second read of a session, with one connection per core. The rest is "
        "processor time: on such a machine, psql takes 0.8 s to copy these rows out in binary, and ADBC takes 1.2 s "
        "on one connection."
    )


def _reconcile(started: Services, directory: Path, rows: int) -> str:
    figures.say(f"reconcile of {rows:,} keys")
    run = reconcile(started, directory, rows)
    counts = json.loads(run.output)
    figures.say(f"  {run.seconds:.1f} s, {run.megabytes:,.0f} MB")
    return (
        f"## Reconcile of {rows:,} keys against {rows:,}\n\n1 % of the keys differ. **{run.seconds:.0f} s** (goal: "
        f"under 120), at most **{run.megabytes:,.0f} MB** for all processes together (goal: under 3,000). Result: "
        f"`{json.dumps(counts)}`"
    )


def reconcile(started: Services, directory: Path, rows: int) -> bulk.Run:
    """Reconcile this many keys on either side, with one difference per hundred keys."""
    source, target = f"source{rows}.parquet", f"target{rows}.parquet"
    statements = [f"{source}: {_KEYS.format(rows=rows)}", f"{target}: {_TARGET.format(rows=rows)}"]
    bulk.make(started, directory, statements)
    bulk.empty(started)
    words = (
        "--key",
        "id",
        "--version",
        "version",
        "--job",
        "shop.jobs.index",
        "--delete-job",
        "shop.jobs.index",
    )
    sides = ("--source", str(directory / source), "--target", str(directory / target))
    return bulk.drain(started, "reconcile", *sides, *words, "--json")


def _stats(started: Services, directory: Path, rows: int) -> str:
    figures.say(f"stats of {rows:,} archived jobs")
    run = stats(started, directory, rows)
    figures.say(f"  {run.seconds:.1f} s, {run.megabytes:,.0f} MB")
    return (
        f"## Statistics of {rows:,} archived jobs\n\n**{run.seconds:.0f} s** (goal: under 60), at most "
        f"{run.megabytes:,.0f} MB for all processes together. 20 job names, 5 queues, one month."
    )


def stats(started: Services, directory: Path, rows: int) -> bulk.Run:
    """Measure `drain stats` over this number of archived jobs."""
    archive = directory / f"archive{rows}"
    script = (
        "from drain.pipeline.session import session\n"
        "with session('local[*]') as spark:\n"
        "    spark.conf.set('spark.sql.parquet.outputTimestampType', 'TIMESTAMP_MICROS')\n"
        f"    rows = spark.sql({_ARCHIVED.format(rows=rows)!r})\n"
        f"    rows.write.partitionBy('finished_date').parquet({str(archive)!r})\n"
    )
    if not archive.exists():
        bulk.program(started, "-c", script)
    bulk.empty(started)
    return bulk.drain(started, "stats", "--archive", str(archive), "--json")


def _latency(started: Services, directory: Path, rows: int, seconds: float) -> str:
    figures.say(f"latency alongside a backfill of {rows:,} rows")
    documents = directory / f"documents{rows}.parquet"
    rates.refill(started, 0)
    alone = latency.measure(started, seconds)
    rates.refill(started, 0)
    bulk.empty(started)
    writer = threading.Thread(target=backfill, args=(started, documents))
    writer.start()
    alongside = latency.measure(started, seconds)
    writer.join()
    rows_ = [
        (f"{what}, {when}", *(figures.milliseconds(values, percent) for percent in (50, 99)))
        for when, measured in (("alone", alone), ("alongside the backfill", alongside))
        for what, values in zip(("to Redis", "to its start"), measured, strict=True)
    ]
    table = figures.table(("from commit", "p50 ms", "p99 ms"), rows_)
    figures.say(table)
    return (
        f"## Single jobs alongside a backfill of {rows:,} rows\n\n{table}\n\nGoal: p99 does not double. "
        f"{latency.PER_SECOND} transactions a second for {seconds:.0f} s, each with one job, while the command starts, "
        "copies and commits, and its jobs are drained to a separate queue. Spark and PostgreSQL then share two "
        "cores. Spark yields; PostgreSQL, which copies and inserts for it, does not. The start is that of RQ's worker."
    )


def _growth(started: Services, directory: Path, sizes: list[int], plot: Path) -> str:
    def backfilled(rows: int) -> float:
        documents = f"documents{rows}.parquet"
        if not (directory / documents).exists():
            bulk.make(started, directory, [f"{documents}: {_DOCUMENTS.format(rows=rows)}"])
        bulk.empty(started)
        return backfill(started, directory / documents).seconds

    def read(rows: int) -> float:
        bulk.empty(started)
        bulk.finish(started, rows)
        return float(bulk.program(started, "-c", bulk.READ.format(columns=bulk.READ_COLUMNS)).output)

    ways: dict[str, Callable[[int], float]] = {
        "backfill": backfilled,
        "reading finished jobs": read,
        "reconcile": lambda rows: reconcile(started, directory, rows).seconds,
        "stats": lambda rows: stats(started, directory, rows).seconds,
    }
    measured: dict[str, list[float]] = {}
    for name, measure in ways.items():
        figures.say(f"growth: {name}")
        measured[name] = [measure(rows) for rows in sizes]
        figures.say("  " + ", ".join(f"{seconds:.1f} s" for seconds in measured[name]))
    figures.plot_growth(plot, sizes, measured)
    table = figures.table(
        ("rows", *(f"{rows:,}" for rows in sizes)),
        [(name, *(f"{seconds:.1f} s" for seconds in values)) for name, values in measured.items()],
    )
    picture = f"![Seconds by rows, from one to ten million]({plot.name})"
    return f"# How bulk work grows\n\n{table}\n\nOne run each.\n\n{picture}"


def _rates_table(measured: dict[str, list[float]]) -> str:
    return figures.table(
        ("way", "rows a second", "lowest – highest"),
        [
            (name, f"{statistics.median(v):,.0f}", f"{min(v):,.0f} – {max(v):,.0f}")
            for name, v in measured.items()
        ],
    )
