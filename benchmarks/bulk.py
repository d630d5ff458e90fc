"""Bulk work on Spark, each compared with a solution without Spark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from drain.embedded.binaries import find_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from drain.embedded import Services

ROOT = Path(__file__).parents[1]
COLUMNS = "job_name, job_args, queue, priority"
FINISH = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, finished_by, attempts, fencing_token)
SELECT n, 'shop.jobs.send_receipt', jsonb_build_array(n, 'user' || n), '{}', 'mail', 0, now(), now(), now(), now(),
    now(), 'worker:1', 1, 1
FROM generate_series(1, %s) AS n
"""
# Baseline: a script that reads the rows through a server-side cursor.
CURSOR = """
import os, psycopg
with psycopg.connect(os.environ["DRAIN_DATABASE_URL"]) as connection:
    with connection.cursor("rows") as cursor:
        cursor.itersize = 10_000
        cursor.execute("SELECT {columns} FROM finished_jobs")
        rows = sum(1 for _ in cursor)
assert rows == {rows}, rows
"""
# Times the second read of a session, because Spark takes seconds to start and compiles hot code.
READ = """
import os, sys
from time import perf_counter
from drain.pipeline import datasources
from drain.pipeline.session import session
with session("local[*]") as spark:
    datasources.register(spark)
    reader = spark.read.format("finished_jobs").option("columns", "{columns}")
    reader = reader.option("max_connections", str(os.cpu_count()))
    def read():
        began = perf_counter()
        reader.load().write.format("noop").mode("overwrite").save()
        return perf_counter() - began
    read()
    print(read())
"""
READ_COLUMNS = "id, job_name, queue, priority, tag, staged_at, claimed_at, finished_at, finished_by, attempts"


class Run(NamedTuple):
    """Result of one command.

    Attributes:
        seconds: Duration.
        megabytes: Combined peak memory of the command and its descendants.
        output: Standard output.
    """

    seconds: float
    megabytes: float
    output: str


def drain(services: Services, *words: str) -> Run:
    """Run a `drain` command to completion."""
    return program(services, "-c", "from drain.__main__ import main; main()", *words)


def program(services: Services, *words: str) -> Run:
    """Run Python to completion."""
    environment = os.environ | {"DRAIN_DATABASE_URL": services.database_url, "PYTHONPATH": str(ROOT)}
    began = perf_counter()
    process = subprocess.Popen(
        [sys.executable, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with _peak(process.pid) as peak:
        output, errors = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(words[-3:])} failed: {errors.strip().splitlines()[-1:]}")
    return Run(perf_counter() - began, peak[0], output)


def make(services: Services, directory: Path, statements: Sequence[str]) -> None:
    """Write a Parquet file from each Spark SQL statement, with `{directory}` in it replaced."""
    lines = "".join(
        f"    spark.sql({statement.format(directory=directory)!r}).write.parquet({str(directory / name)!r})\n"
        for name, statement in (each.split(": ", 1) for each in statements)
    )
    program(
        services,
        "-c",
        f"from drain.pipeline.session import session\nwith session('local[*]') as spark:\n{lines}",
    )


def copied(services: Services, rows: Path) -> float:
    """Measure the seconds that psql's COPY takes for the same rows from a file."""
    psql = str(find_postgres(None) / "psql")
    command = f"\\copy staged_jobs ({COLUMNS}) FROM '{rows}' CSV"
    began = perf_counter()
    subprocess.run([psql, "-qX", services.database_url, "-c", command], check=True)
    return perf_counter() - began


def inserted(services: Services, rows: int, *, autocommit: bool) -> float:
    """Measure the rows a second of a loop of single inserts, committed one by one or in one transaction."""
    statement = f"INSERT INTO staged_jobs ({COLUMNS}) VALUES ('shop.jobs.index', %s::jsonb, 'bulk', 100)"
    with psycopg.connect(services.database_url, autocommit=autocommit) as connection:
        began = perf_counter()
        for number in range(rows):
            connection.execute(statement, (f'[{number}, "user{number}"]',))
        connection.commit()
        return rows / (perf_counter() - began)


def empty(services: Services) -> None:
    """Delete all jobs and runs, and let the server finish its background work."""
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        connection.execute("TRUNCATE staged_jobs, inflight_jobs, finished_jobs, dead_jobs, bulk_runs")
        connection.execute("CHECKPOINT")


def finish(services: Services, rows: int) -> None:
    """Insert this many finished jobs."""
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        connection.execute(FINISH, (rows,))
        connection.execute("VACUUM ANALYZE finished_jobs")
        connection.execute("CHECKPOINT")


@contextmanager
def place() -> Iterator[Path]:
    """Provide an empty directory for the files of a benchmark, and delete it afterwards."""
    directory = ROOT / "benchmarks" / ".files"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def _peak(pid: int) -> Iterator[list[float]]:
    """Sample the combined peak memory of a process and its descendants, in MB."""
    peak = [0.0]
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(1.0):
            peak[0] = max(peak[0], sum(map(_megabytes, _family(pid))))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        ended.set()
        watcher.join()


def _family(pid: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    family = [pid]
    for member in family:
        family += parents.get(member, [])
    return family


def _megabytes(pid: int) -> float:
    # Proportional set size, because Spark's Python workers are forks that share memory.
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return 0.0
