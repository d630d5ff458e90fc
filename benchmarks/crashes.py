"""Jobs that commit in groups while PostgreSQL is killed repeatedly.

    python -m benchmarks.crashes [--quick] [--crashes 50] [--jobs 100000] [--seed 15]

Each job writes its id to a table in its own transaction. After each crash and at the end, the table is compared with
`finished_jobs`. The exit code is 1 if an id is in only one of the two, or appears twice.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING

import psycopg

from benchmarks import alone, figures, rates
from benchmarks.processes import environment
from drain import current_job, job, psycopg_transaction

if TYPE_CHECKING:
    from drain.embedded import Services

SIZES = {"crashes": (50, 4), "jobs": (100_000, 8000), "seed": (15, 15)}

_PAUSE_SECONDS = (0.3, 1.5)
_PATIENCE_SECONDS = 300
_DRAIN = [sys.executable, "-c", "from drain.__main__ import main; main()"]
_STAGE = """
INSERT INTO staged_jobs (job_name, queue)
SELECT CASE number % 2 WHEN 0 THEN 'benchmark.grouped' ELSE 'benchmark.flushed' END, 'crashes'
FROM generate_series(1, {}) AS number
"""
# Counts of jobs with only a write or only a finish, with two writes, and finished.
_COMPARE = """
SELECT count(*) FILTER (WHERE (written IS NULL) <> (finished IS NULL)), count(*) FILTER (WHERE written > 1),
    count(*) FILTER (WHERE finished = 1)
FROM (SELECT job_id AS id, count(*) AS written FROM written GROUP BY job_id) AS w
FULL JOIN (SELECT id, count(*) AS finished FROM finished_jobs GROUP BY id) AS f USING (id)
"""


@job(name="benchmark.grouped", queue="crashes", commit="grouped", lease_seconds=3)
def grouped() -> None:
    """Write the id, in a commit that waits for the disk together with others."""
    with psycopg_transaction() as connection:
        connection.execute("INSERT INTO written VALUES (%s)", (current_job().id,))


@job(name="benchmark.flushed", queue="crashes", lease_seconds=3)
def flushed() -> None:
    """Write the id, in a commit that waits for the disk alone."""
    grouped.function()


def section(services: Services, *, crashes: int, jobs: int, seed: int) -> str:
    """Crash, compare, and return the figures as Markdown; exit with 1 on any difference."""
    figures.say(f"{crashes} crashes of PostgreSQL under load")
    chance = random.Random(seed)
    with ExitStack() as stack:
        rates.refill(services, 0)
        _execute(services, "CREATE TABLE written (job_id bigint)")
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        for words in (["run", "--metrics-port", "0"], ["work", "crashes", "--processes", "2"]):
            process = subprocess.Popen(
                [*_DRAIN, *words], env=environment(services, "benchmarks.crashes"), stderr=log
            )
            stack.callback(_end, process)
        worst = 0
        for number in range(crashes):
            _execute(services, _STAGE.format(jobs // crashes))
            sleep(chance.uniform(*_PAUSE_SECONDS))
            services.postgres.kill()
            services.postgres.start()
            differ, twice, done = _compare(services)
            worst = max(worst, differ, twice)
            figures.say(f"  {number + 1}: {done:,} done, {differ} differ, {twice} twice")
        staged = crashes * (jobs // crashes)
        until = monotonic() + _PATIENCE_SECONDS
        while (found := _compare(services))[2] < staged and monotonic() < until:
            sleep(0.5)
        log.seek(0)
        undone = log.read().count("CommitUndoneError")
        _execute(services, "DROP TABLE written")
    differ, twice, done = found
    text = (
        f"## Crashes of PostgreSQL\n\nPostgreSQL was killed by SIGKILL {crashes} times while two worker processes "
        f'ran jobs of one INSERT, half of them with `commit="grouped"`. Of {staged:,} jobs, {done:,} finished. Crashes '
        f"undid {undone:,} commits, and these jobs ran again. Jobs with a write but no finish, or a finish but no "
        f"write: {max(worst, differ)}; with two writes: {twice}; goal: none."
    )
    if worst or differ or twice or done != staged:
        print(text)
        sys.exit(1)
    return text


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=30)
    process.kill()


def _compare(services: Services) -> tuple[int, int, int]:
    with psycopg.connect(services.database_url) as connection:
        (row,) = connection.execute(_COMPARE).fetchall()
    return row[0], row[1], row[2]


def _execute(services: Services, statement: str) -> None:
    with psycopg.connect(services.database_url, autocommit=True) as connection:
        connection.execute(statement.encode())


if __name__ == "__main__":
    alone.run("crashes", section, SIZES)
