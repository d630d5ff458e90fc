"""COPY of the rows of a DataFrame into `staged_jobs`: Spark's tasks encode them, and the driver copies.

A row of the result of a query comes from the one attempt of a task that Spark has accepted, so a task that is repeated
or killed half-way adds nothing. The session that copies holds the lock of the run: once another driver has the lock,
nothing of this one is under way.

A run in several commits ends each with a partition, and notes how many partitions are done. Those of files are the same
each time; other rows are divided by their values. An unfinished partition is read again as a whole, whatever a
condition finds in it by then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, gettempdir
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from drain.database import postgres
from drain.errors import DrainError
from drain.formatting import count
from drain.pipeline import interruption
from drain.pipeline.datasources import columns
from drain.pipeline.failures import explained, stored
from drain.pipeline.session import temporarily
from drain.tables import bulk, staged

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from drain.database.postgres import Connection
    from drain.pipeline.runs import Run

# Timeout for a statement: the COPY of hundreds of millions of rows takes hours.
_STATEMENT_SECONDS = 12 * 3600
# Timeout for a lock.
_LOCK_SECONDS = 60
# Time after which a run that commits several times does so, whatever the number of its rows.
_TRANSACTION_SECONDS = 20.0
# Beginning of the name of a directory for encoded rows; the driver's process id follows.
_DIRECTORY = "drain-copy-"
# Interval between two reports.
_REPORT_SECONDS = 0.5
# A partition is copied once all of it has been encoded. Rows in partitions of any size are shuffled into this many; in
# one commit, Spark joins small ones again.
_PARTS = 256
_SMALL = {"spark.sql.files.maxPartitionBytes": "2m"}
_JOINED = _SMALL | {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": str(_PARTS),
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}
# The number of partitions must not depend on the machine that the run goes on with.
_REPEATABLE = _SMALL | {"spark.sql.files.minPartitionNum": "1"}


class Place(NamedTuple):
    """Place where a run goes on: the first partition that is not done, and what the partitions are made of."""

    part: int = 0
    source: str = ""


class Chunk(NamedTuple):
    """Part of the input of COPY."""

    part: int
    rows: int
    text: bytes


@dataclass(frozen=True)
class Step:
    """Progress at one moment.

    Attributes:
        rows: Number of rows copied so far.
        seconds: Seconds since copying began.
    """

    rows: int
    seconds: float

    def __str__(self) -> str:
        rate = self.rows / self.seconds if self.seconds else 0.0
        return f"{count(self.rows, 'row')} copied, {rate:,.0f} a second"


def stage(
    connection: Connection,
    jobs: DataFrame,
    run: Run,
    *,
    is_divided: bool,
    report: Callable[[str], None] = lambda _line: None,
    pause: Callable[[int, float], None] = lambda _rows, _seconds: None,
) -> int:
    """Stage a job for each row of a DataFrame.

    Args:
        connection: In autocommit mode; it holds the lock of the run, which has begun.
        jobs: Rows with columns of `staged_jobs`.
        run: The run; in one transaction, unless it says otherwise.
        is_divided: The rows come from files that Spark divides into small partitions.
        report: Receives the progress as a line, twice a second.
        pause: Called between two commits, with the rows and the duration of the one before.

    Returns:
        Number of jobs that the run has staged, now and before.

    Raises:
        ConfigError: A column is missing or unknown.
        StageError: A row breaks a rule of `staged_jobs`; nothing was staged, or nothing after the last commit.
        KeyboardInterrupt: SIGINT arrived; of a commit too, either nothing is left or all of it.
    """
    names = columns.stageable(jobs.schema)
    noted = bulk.find(connection, run.run_id)
    total = noted.rows if noted else 0
    several = run.commit_every is not None or total > 0
    source = _fingerprint(jobs) if several and is_divided else ""
    is_divided = is_divided and (bool(source) or not several)
    place = Place(source=source)
    if noted and noted.position:
        place = _resumed(noted.position, place, run.run_id)
    chunks = _chunks(jobs, place, is_divided=is_divided, several=several)
    report("reading the source")
    # Until there is a row, no transaction is open: Spark may work for an hour before.
    following = next(chunks, None)
    postgres.limit_session(connection, statement_seconds=_STATEMENT_SECONDS, lock_seconds=_LOCK_SECONDS)
    copied, began, reported_at = 0, monotonic(), 0.0
    while True:
        commit_began = monotonic()
        with ExitStack() as stack:
            copy = stack.enter_context(
                bulk.staging(connection, run.run_id, names, before=total, rows_per_second=run.rows_per_second)
            )
            while following is not None and not (
                run.commit_every is not None
                and following.part != place.part
                and (copy.rows >= run.commit_every or monotonic() > commit_began + _TRANSACTION_SECONDS)
            ):
                with interruption.at_once():
                    copy.write(following.text, following.rows)
                place = place._replace(part=following.part)
                if monotonic() >= reported_at + _REPORT_SECONDS:
                    reported_at = monotonic()
                    report(str(Step(copied + copy.rows, reported_at - began)))
                following = next(chunks, None)
            if following is not None:
                copy.position = json.dumps(place._replace(part=following.part))
            report(f"{count(copied + copy.rows, 'row')} copied; committing")
            with interruption.at_once():
                stack.close()
        total, copied = total + copy.rows, copied + copy.rows
        if following is None:
            return total
        pause(copy.rows, monotonic() - commit_began)


def _resumed(position: str, start: Place, run_id: str) -> Place:
    place = Place(*json.loads(position))
    if place.source != start.source:
        raise DrainError(
            f"the files of run {run_id} have changed since it staged the first of its jobs: give the same files"
        )
    return place


def _fingerprint(jobs: DataFrame) -> str:
    """Identify the files that the rows come from, as they are divided into partitions; "" if they are not files."""
    divided = _files_of(attrgetter("_jdf")(jobs).queryExecution().toRdd())
    if divided is None:
        return ""
    parts = [
        [(stored(str(file.toString())), file.fileSize(), file.modificationTime()) for file in part.files()]
        for part in divided
    ]
    return sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _files_of(rdd: Any) -> Sequence[Any] | None:
    """Return Spark's FilePartition for each partition of an RDD, also of rows that are kept; None if there are none."""
    while True:
        parts = list(rdd.partitions())
        if all(part.getClass().getSimpleName() == "FilePartition" for part in parts):
            return parts
        before = rdd.dependencies()
        if before.size() != 1 or before.head().getClass().getSimpleName() != "OneToOneDependency":
            return None
        rdd = before.head().rdd()


@contextmanager
def dividing(spark: SparkSession, *, several: bool) -> Iterator[None]:
    """Let sources that are read in the block be divided as `stage` needs it, for one commit or for several."""
    with temporarily(spark, _REPEATABLE if several else _JOINED):
        yield


def _chunks(jobs: DataFrame, place: Place, *, is_divided: bool, several: bool) -> Iterator[Chunk]:
    """Encode the rows in Spark's tasks; the next partition is encoded while one is copied."""
    from drain.pipeline import encoding

    with ExitStack() as stack:
        if not is_divided:
            # By their values, so that a task that is repeated sends each row to the same partition.
            jobs = jobs.repartition(_PARTS, *jobs.columns) if several else jobs.repartition(*jobs.columns)
        # Spark keeps the whole result of a task in the JVM's memory.
        directory = None
        if _is_local(jobs.sparkSession):
            _remove_left()
            name = f"{_DIRECTORY}{os.getpid()}-"
            directory = Path(stack.enter_context(TemporaryDirectory(prefix=name)))
        encoder = encoding.Encoder(staged.IF_NULL, directory)
        encoded = jobs.mapInArrow(encoder, encoding.CHUNK).rdd
        # Partition by partition, and not by toLocalIterator(), which would begin with the first one again.
        encode = partial(jobs.sparkSession.sparkContext.runJob, encoded, list)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        parts = encoded.getNumPartitions()
        ahead = pool.submit(encode, [place.part]) if place.part < parts else None
        for part in range(place.part, parts):
            found, ahead = ahead, pool.submit(encode, [part + 1]) if part + 1 < parts else None
            # Before the COPY ends with the error: PostgreSQL takes no more than 10,000 bytes of its text.
            with explained():
                rows = found.result() if found else []
            for row in rows:
                yield Chunk(row.part, row.rows, _taken(Path(row.file)) if row.file else bytes(row.text))


def _remove_left() -> None:
    """Remove the directories of drivers that were killed."""
    for left in Path(gettempdir()).glob(f"{_DIRECTORY}*"):
        pid = left.name.removeprefix(_DIRECTORY).partition("-")[0]
        # Another driver may be removing it.
        with suppress(FileNotFoundError):
            if left.stat().st_uid == os.getuid() and pid.isdecimal() and not _is_alive(int(pid)):
                rmtree(left, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _is_local(spark: SparkSession) -> bool:
    return str(spark.sparkContext.master).startswith("local")


def _taken(file: Path) -> bytes:
    text = file.read_bytes()
    file.unlink()
    return text
