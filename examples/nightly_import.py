"""A nightly import: a batch that grows, and one report at its end.

`python -m examples.nightly_import DIRECTORY` stages it. The first job finds the files, each file's job cuts it into
chunks, and each chunk's job inserts its lines. No job counts the others: the report runs once all of them have ended.
"""

import os
import sys
from itertools import islice
from pathlib import Path

import psycopg

import drain
from drain import current_job, job, psycopg_transaction

CHUNK_LINES = 1000
TABLES = """
CREATE TABLE IF NOT EXISTS lines (path text, number integer, line text, PRIMARY KEY (path, number));
CREATE TABLE IF NOT EXISTS reports (directory text, jobs integer, dead integer, lines integer);
"""


@job(queue="import")
def find_files(directory: str) -> None:
    """Add a member per file."""
    with psycopg_transaction() as connection:
        files = [(str(path),) for path in sorted(Path(directory).glob("*.csv"))]
        drain.stage_many(connection, cut, files, flow=current_job().flow)


@job(queue="import")
def cut(path: str) -> None:
    """Add a member per chunk, which waits for nothing."""
    with Path(path).open() as file:
        lines = sum(1 for _ in file)
    with psycopg_transaction() as connection:
        chunks = [(path, first) for first in range(0, lines, CHUNK_LINES)]
        drain.stage_many(connection, load, chunks, flow=current_job().flow)


@job(queue="import", max_attempts=3, retry_base_seconds=0.1)
def load(path: str, first: int) -> None:
    """Insert lines exactly once: they commit with the job's finish."""
    with Path(path).open() as file:
        rows = [(path, n, line) for n, line in islice(enumerate(file), first, first + CHUNK_LINES)]
    with psycopg_transaction() as connection, connection.cursor() as cursor:
        cursor.executemany("INSERT INTO lines VALUES (%s, %s, %s)", rows)


@job(queue="import")
def report(directory: str) -> None:
    """Write the numbers, also if a file could not be imported."""
    batch = current_job().flow
    with psycopg_transaction() as connection:
        counted = drain.flow_progress(connection, batch)
        assert counted is not None  # noqa: S101  (it exists while its callback does)
        connection.execute(
            "INSERT INTO reports SELECT %s, %s, %s, count(*) FROM lines WHERE starts_with(path, %s)",
            [directory, counted.total, counted.dead, directory],
        )


def stage(connection: "psycopg.Connection[tuple[object, ...]]", directory: str) -> int:
    """Stage the import in the open transaction; return the batch's id."""
    with drain.batch(
        connection, on_complete=(report, [directory]), description=f"import of {directory}"
    ) as batch:
        batch.stage(find_files, [directory])
    return batch.id


if __name__ == "__main__":
    with psycopg.connect(os.environ["DRAIN_DATABASE_URL"]) as connection:
        connection.execute(TABLES)
        print(f"staged batch {stage(connection, sys.argv[1])}")
