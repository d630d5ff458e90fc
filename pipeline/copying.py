"""COPY of a DataFrame's rows into `staged_jobs`: Spark's tasks encode, the driver copies.

Only a task's accepted attempt yields rows, so repeated or killed tasks add nothing. The copying session holds the run's
lock, so drivers never overlap.

Each of several commits ends with a partition, and notes how many are done. An unfinished partition is read again as a
whole: partitions of files are stable; other rows are divided by value.
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

# Hundreds of millions of rows take hours.
_STATEMENT_SECONDS = 12 * 3600
_LOCK_SECONDS = 60
# Then a run of several commits commits early.
_TRANSACTION_SECONDS = 20.0
# Followed by the driver's pid.
_DIRECTORY = "drain-copy-"
_REPORT_SECONDS = 0.5
# Each is copied once encoded. For one commit, Spark joins small ones again.
_PARTS = 256
_SMALL = {"spark.sql.files.maxPartitionBytes": "2m"}
_JOINED = _SMALL | {
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": str(_PARTS),
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}
# The same partitions on any machine.
_REPEATABLE = _SMALL | {"spark.sql.files.minPartitionNum": "1"}


class Place(NamedTuple):
    """First unfinished partition, and a fingerprint of the files."""

    part: int = 0
    source: str = ""


class Staged(NamedTuple):
    """A run's jobs, now and before, and the id of its flow, if any."""

    jobs: int
    flow: int | None = None


class Chunk(NamedTuple):
    """Part of COPY's input."""

    part: int
    rows: int
    text: bytes


@dataclass(frozen=True)
class Step:
    """Rows copied, and seconds since the start."""

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
) -> Staged:
    """Stage a job per row.

    Args:
        connection: In autocommit mode, holding the lock of a run that has begun.
        is_divided: From files that Spark divides into small partitions.
        pause: Called between commits with the previous one's rows and seconds.

    Raises:
        StageError: A row breaks a rule of `staged_jobs`; nothing is staged after the last commit.
        KeyboardInterrupt: SIGINT; each commit is complete or undone.
    """
    names = columns.stageable(jobs.schema, in_graph=run.flow is not None and run.flow.node is not None)
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
    # No transaction yet: Spark may need an hour for the first row.
    following = next(chunks, None)
    postgres.limit_session(connection, statement_seconds=_STATEMENT_SECONDS, lock_seconds=_LOCK_SECONDS)
    copied, began, reported_at = 0, monotonic(), 0.0
    while True:
        commit_began = monotonic()
        with ExitStack() as stack:
            copy = stack.enter_context(
                bulk.staging(
                    *(connection, run.run_id, names),
                    before=total,
                    rows_per_second=run.rows_per_second,
                    flow=run.flow,
                )
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
            return Staged(total, copy.flow)
        pause(copy.rows, monotonic() - commit_began)


def _resumed(position: str, start: Place, run_id: str) -> Place:
    place = Place(*json.loads(position))
    if place.source != start.source:
        raise DrainError(
            f"the files of run {run_id} have changed since it staged its first jobs: give the same files"
        )
    return place


def _fingerprint(jobs: DataFrame) -> str:
    divided = _files_of(attrgetter("_jdf")(jobs).queryExecution().toRdd())
    if divided is None:
        return ""
    parts = [
        [(stored(str(file.toString())), file.fileSize(), file.modificationTime()) for file in part.files()]
        for part in divided
    ]
    return sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _files_of(rdd: Any) -> Sequence[Any] | None:
    """Find each partition's FilePartition, through caches; None without files."""
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
    """Divide the block's sources as `stage` needs."""
    with temporarily(spark, _REPEATABLE if several else _JOINED):
        yield


def _chunks(jobs: DataFrame, place: Place, *, is_divided: bool, several: bool) -> Iterator[Chunk]:
    from drain.pipeline import encoding

    with ExitStack() as stack:
        if not is_divided:
            # By value: a repeated task sends each row to the same partition.
            jobs = jobs.repartition(_PARTS, *jobs.columns) if several else jobs.repartition(*jobs.columns)
        # The JVM holds a task's whole result in memory.
        directory = None
        if _is_local(jobs.sparkSession):
            _remove_left()
            name = f"{_DIRECTORY}{os.getpid()}-"
            directory = Path(stack.enter_context(TemporaryDirectory(prefix=name)))
        encoder = encoding.Encoder(staged.IF_NULL, directory)
        encoded = jobs.mapInArrow(encoder, encoding.CHUNK).rdd
        # toLocalIterator() would begin with the first partition.
        encode = partial(jobs.sparkSession.sparkContext.runJob, encoded, list)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        parts = encoded.getNumPartitions()
        ahead = pool.submit(encode, [place.part]) if place.part < parts else None
        for part in range(place.part, parts):
            found, ahead = ahead, pool.submit(encode, [part + 1]) if part + 1 < parts else None
            # PostgreSQL cuts such texts at 10,000 bytes.
            with explained():
                rows = found.result() if found else []
            for row in rows:
                yield Chunk(row.part, row.rows, _taken(Path(row.file)) if row.file else bytes(row.text))


def _remove_left() -> None:
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
