"""`drain archive`: closed days go to Parquet, each row once, and leave Postgres only then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadAllAvailable

from drain.database import postgres
from drain.errors import DrainError
from drain.tables import finished
from drain.terminal.commandline import Group
from pipeline import archive as work
from pipeline import files, follow, history
from pipeline.commands.archive import archive as command
from pipeline.datasources.follow import FinishedJobsStream
from pipeline.session import temporarily
from tests.helpers import ROOT, in_a_hurry, query, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Archive = Callable[..., Result]

# Spark does real work meanwhile, on a machine that has other work.
PATIENCE_SECONDS = 120

TODAY = YESTERDAY = date.min
INSERT = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token, last_error)
SELECT id, 'tests.act', jsonb_build_array(id), '{}', %s, 0, at, at, at, at, at, 1, 1, NULL
FROM generate_series(%s::bigint, %s::bigint) AS id,
    LATERAL (SELECT (%s::date + interval '1 hour') AT TIME ZONE 'UTC' + id * interval '1 microsecond' AS at) AS time
"""
main = Group(commands={"archive": command})


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever day it was when the tests began."""
    day = datetime.now(UTC).date()
    monkeypatch.setattr(sys.modules[__name__], "TODAY", day)
    monkeypatch.setattr(sys.modules[__name__], "YESTERDAY", day - timedelta(days=1))


def make_day(database_url: str, day: date) -> str:
    """The partition of a day, as if it had been made in time."""
    name = f"finished_jobs_{day:%Y%m%d}"
    query(
        database_url,
        f"CREATE TABLE {name} PARTITION OF finished_jobs (PRIMARY KEY (id)) "
        f"FOR VALUES FROM ('{day} 00:00+00') TO ('{day + timedelta(days=1)} 00:00+00')",
    )
    return name


def finish(database_url: str, first: int, last: int, day: date | None = None, queue: str = "mail") -> None:
    query(database_url, INSERT, queue, first, last, day or YESTERDAY)


def partitions(database_url: str) -> set[date]:
    with postgres.connect(database_url, "tests") as connection:
        return {day.date for day in finished.days(connection)}


def in_postgres(database_url: str, day: date | None = None) -> int:
    counted = "SELECT count(*) FROM finished_jobs WHERE (finished_at AT TIME ZONE 'UTC')::date = %s"
    ((count,),) = query(database_url, counted, day or YESTERDAY)
    return int(count)


def in_files(spark: SparkSession, path: Path, day: date | None = None) -> list[int]:
    rows = files.of_days(spark, str(path), [day or YESTERDAY])
    return [] if rows is None else sorted(row.id for row in rows.select("id").collect())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def archive(spark: SparkSession, database_url: str, path: Path) -> Archive:
    def act(*options: str) -> Result:
        words = ["archive", str(path), "--database-url", database_url, "--keep-days", "0", *options]
        return CliRunner().invoke(main, words, catch_exceptions=False)

    return act


def test_an_interrupted_archive_ends_and_tries_no_other_day(
    database_url: str, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise PySparkException("the job was cancelled")

    for day in (YESTERDAY, YESTERDAY - timedelta(days=1)):
        make_day(database_url, day)
        finish(database_url, day.toordinal(), day.toordinal(), day)
    monkeypatch.setattr(files, "append", interrupted)
    result = archive()
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_a_file_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ["archive", str(tmp_path / "file"), "--database-url", "postgresql://nowhere"]
    assert "is a file; name the directory of the archive" in CliRunner().invoke(main, words).stderr


def killed(database_url: str, path: Path, patch: str, *options: str) -> None:
    """Run the command in a process of its own that kills itself where `patch` has it call die()."""
    program = f"""
import os, signal
from drain.tables import finished
from pipeline import files
from pipeline.commands.archive import archive
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
{patch}
archive({[str(path), "--keep-days", "0", *options]!r})
"""
    given = {"DRAIN_DATABASE_URL": database_url, "SPARK_MASTER": "local[1]"}
    environment = os.environ | in_a_hurry() | given
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        timeout=120,
        capture_output=True,
        check=False,
    )
    assert result.returncode == -signal.SIGKILL, result.stderr.decode()
    # The server lets go of its lock a moment later.
    lock = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 6"
    wait_until(lambda: not query(database_url, lock))


def test_a_closed_day_is_in_the_files_and_its_partition_gone(
    spark: SparkSession, database_url: str, archive: Archive, path: Path
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 300)
    finish(database_url, 301, 400, queue="007")
    finish(database_url, 401, 450, TODAY)
    result = archive()
    assert result.exit_code == 0, result.output
    assert f"{YESTERDAY}  400 rows  archived, partition dropped\n" in result.output
    assert in_files(spark, path) == list(range(1, 401))
    assert YESTERDAY not in partitions(database_url)
    assert in_postgres(database_url, TODAY) == 50
    assert in_files(spark, path, TODAY) == []
    day = path / f"finished_date={YESTERDAY}"
    assert {each.name for each in day.iterdir()} == {"queue=mail", "queue=007"}
    assert all(".zstd." in each.name for each in day.glob("*/part-*"))
    again = archive()
    assert (again.exit_code, again.output) == (0, "no closed day is in Postgres\n")
    assert in_files(spark, path) == list(range(1, 401))


def test_rows_come_back_with_all_that_they_held(
    spark: SparkSession, database_url: str, archive: Archive, path: Path
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 1, queue="a:b.c")
    finish(database_url, 2, 2, queue="007")
    finish(database_url, 3, 3, queue="_x-")
    long = "ż" * 500_000
    query(
        database_url,
        "UPDATE finished_jobs SET job_args = jsonb_build_array(%s::text), job_kwargs = '{\"a\": null}', tag = 't', "
        "context = '{\"é\": \"\\\"\\n\"}', finished_by = '', staged_at = '0001-01-02 00:00:00.000001+00', "
        "scheduled_at = '9999-12-29 23:59:59.999999+00', priority = -2147483648, last_error = 'null' WHERE id = 1",
        long,
    )
    before = query(
        database_url,
        "SELECT id, queue, finished_at, finished_xid::text::bigint FROM finished_jobs ORDER BY id",
    )
    result = archive()
    assert result.exit_code == 0, result.output
    rows = history.read(spark, str(path)).orderBy("id")
    assert [row.queue for row in rows.select("queue").collect()] == ["a:b.c", "007", "_x-"]
    found = [
        (row.id, row.queue, row.at, row.finished_xid)
        for row in rows.selectExpr("*", "unix_micros(finished_at) AS at")
        .drop("staged_at", "scheduled_at")
        .collect()
    ]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    assert found == [
        (id_, queue, (at - epoch) // timedelta(microseconds=1), xid) for id_, queue, at, xid in before
    ]
    (first,) = (
        rows.where("id = 1")
        .selectExpr("*", "string(staged_at) AS s", "string(scheduled_at) AS d")
        .drop("staged_at", "scheduled_at")
        .collect()
    )
    assert json.loads(first.job_args) == [long]
    assert (first.job_kwargs, first.tag, first.finished_by) == ('{"a": null}', "t", "")
    assert (json.loads(first.context), first.last_error) == ({"é": '"\n'}, "null")
    assert (first.s, first.d) == ("0001-01-02 00:00:00.000001", "9999-12-29 23:59:59.999999")
    assert (first.priority, first.history, first.finished_date) == (-2147483648, None, str(YESTERDAY))


def test_a_day_without_rows_is_dropped_and_no_file_is_written(
    database_url: str, archive: Archive, path: Path
) -> None:
    make_day(database_url, YESTERDAY)
    result = archive()
    assert (result.exit_code, result.output) == (0, f"{YESTERDAY}  0 rows  archived, partition dropped\n")
    assert YESTERDAY not in partitions(database_url)
    assert not path.exists()


def test_days_that_are_kept_stay_and_a_dry_run_counts_and_does_nothing(
    database_url: str, archive: Archive, path: Path
) -> None:
    old = TODAY - timedelta(days=3)
    make_day(database_url, YESTERDAY)
    make_day(database_url, old)
    finish(database_url, 1, 3)
    finish(database_url, 4, 1237, old)
    # A row of a day that has no partition.
    finish(database_url, 2000, 2000, TODAY - timedelta(days=2))
    dry = archive("--dry-run")
    assert dry.output == (
        f"{old}  1,234 rows\n{TODAY - timedelta(days=2)}  1 row\n{YESTERDAY}  3 rows\n"
        "3 closed days; nothing was archived\n"
    )
    assert json.loads(archive("--dry-run", "--json", "--keep-days", "2").output) == [
        {"day": str(old), "rows": 1234}
    ]
    assert archive("--dry-run", "--follow").exit_code == 2
    assert not path.exists()
    result = archive("--keep-days", "1", "--json")
    assert [json.loads(line)["day"] for line in result.output.splitlines()] == [
        str(old),
        str(TODAY - timedelta(days=2)),
    ]
    assert in_postgres(database_url) == 3
    assert in_postgres(database_url, old) == 0


def test_rows_that_come_after_their_day_has_been_archived_are_added_and_deleted(
    spark: SparkSession, database_url: str, archive: Archive, path: Path
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 10)
    archive()
    finish(database_url, 11, 12)
    finish(database_url, 13, 13, TODAY)
    result = archive()
    assert (result.exit_code, result.output) == (0, f"{YESTERDAY}  2 rows  archived, late, deleted\n")
    assert in_files(spark, path) == list(range(1, 13))
    assert query(database_url, "SELECT id FROM finished_jobs") == [(13,)]


def test_files_that_hold_a_part_of_the_day_are_completed(
    spark: SparkSession, database_url: str, archive: Archive, path: Path
) -> None:
    """As a driver leaves them that dies while the files of its tasks are renamed, one after the other."""
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 100)
    finish(database_url, 101, 200, queue="b")
    with postgres.connect(database_url, "tests") as connection:
        connection.execute("CREATE TABLE copy AS SELECT * FROM finished_jobs")
        archive()
        make_day(database_url, YESTERDAY)
        connection.execute("INSERT INTO finished_jobs SELECT * FROM copy")
    for file in (path / f"finished_date={YESTERDAY}" / "queue=b").iterdir():
        file.unlink()
    assert in_files(spark, path) == list(range(1, 101))
    result = archive()
    assert result.exit_code == 0, result.output
    assert in_files(spark, path) == list(range(1, 201))
    assert YESTERDAY not in partitions(database_url)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE finished_jobs SET tag = 'x' WHERE id = 7", "1 differ"),
        ("UPDATE finished_jobs SET job_args = '[0]' WHERE id <= 3", "3 differ"),
        ("UPDATE finished_jobs SET queue = 'other' WHERE id = 7", "1 differ"),
        (None, "5 are there more than once"),
    ],
)
def test_a_day_whose_files_disagree_stays_and_one_line_says_why(
    spark: SparkSession,
    database_url: str,
    archive: Archive,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str | None,
    words: str,
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 10)
    finish(database_url, 11, 12, TODAY - timedelta(days=4))
    with monkeypatch.context() as patch:
        patch.setattr(finished, "remove_day", lambda *_: True)
        archive()
    if change is not None:
        query(database_url, change)
    else:
        rows = files.of_days(spark, str(path), [YESTERDAY])
        assert rows is not None
        files.append(rows.where("id <= 5"), str(path))
    result = archive()
    assert result.exit_code == 1
    assert words in result.output
    assert f"Error: {YESTERDAY}: files and table disagree" in result.output
    assert str(path / f"finished_date={YESTERDAY}") in result.output
    assert in_postgres(database_url) == 10
    # The other day is none the worse for it.
    assert in_postgres(database_url, TODAY - timedelta(days=4)) == 0


def test_a_day_whose_files_cannot_be_read_is_named_and_keeps_no_other_from_its_end(
    database_url: str, archive: Archive, path: Path
) -> None:
    earlier = YESTERDAY - timedelta(days=1)
    finish(database_url, 1, 5, earlier)
    finish(database_url, 6, 10)
    damaged = path / f"finished_date={earlier}" / "queue=mail"
    damaged.mkdir(parents=True)
    (damaged / "part-0.zstd.parquet").write_text("this is no Parquet")
    result = archive()
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"Error: {earlier}: not archived, and nothing was dropped: Spark: ")
    assert f"remove {damaged.parent} and run this again" in line
    assert (in_postgres(database_url, earlier), in_postgres(database_url)) == (5, 0)


def test_a_queue_may_be_called_as_the_directory_of_those_that_have_none(
    spark: SparkSession, database_url: str, archive: Archive, path: Path
) -> None:
    finish(database_url, 1, 5, queue="__HIVE_DEFAULT_PARTITION__")
    result = archive()
    assert (result.exit_code, in_postgres(database_url)) == (0, 0), result.output
    (queue,) = {row.queue for row in history.read(spark, str(path)).collect()}
    assert queue == "__HIVE_DEFAULT_PARTITION__"


def test_the_disk_has_all_files_of_a_day_before_its_partition_is_dropped(
    database_url: str, archive: Archive, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[Path] = set()
    sync, remove = files._sync, finished.remove_day

    def recorded(each: Path) -> None:
        sync(each)
        synced.add(each)

    def only_then(*arguments: Any) -> bool:
        day = path / f"finished_date={YESTERDAY}"
        assert {*day.rglob("*"), day, path} <= synced
        assert any(day.rglob("*.parquet"))
        return remove(*arguments)

    monkeypatch.setattr(files, "_sync", recorded)
    monkeypatch.setattr(finished, "remove_day", only_then)
    finish(database_url, 1, 5)
    assert archive().exit_code == 0


def test_what_is_finished_and_archived_after_an_instant_is_not_of_it(
    spark: SparkSession, database_url: str, path: Path
) -> None:
    def keep(instant: history.Instant, job_id: int, day: date, xid: str) -> None:
        rows = instant.table(spark, "finished_jobs", files.COLUMNS, where=f"id = {job_id}")
        rows = rows.selectExpr("* EXCEPT (finished_xid)", f"{xid} AS finished_xid")
        files.append(rows.selectExpr("*", f"'{day}' AS {history.DATE}"), str(path))

    def ids(instant: history.Instant) -> list[int]:
        rows = instant.finished(spark, ["id"], archive=str(path))
        return sorted(row.id for row in rows.collect())

    # Of a server that was further than this one.
    finish(database_url, 1, 1, TODAY - timedelta(days=30))
    with history.instant(database_url) as instant:
        keep(instant, 1, TODAY - timedelta(days=30), "bigint(1000000000000)")
    with history.instant(database_url) as before:
        finish(database_url, 2, 2)
        query(database_url, "UPDATE finished_jobs SET finished_at = now() WHERE id = 2")
        with history.instant(database_url) as after:
            keep(after, 2, TODAY, "finished_xid")
            assert ids(after) == [1, 2]
        assert ids(before) == [1]


def test_a_row_that_is_not_in_the_files_keeps_the_day(
    database_url: str, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 10)
    append = files.append
    monkeypatch.setattr(files, "append", lambda rows, path: append(rows.where("id <> 4"), path))
    result = archive()
    assert (result.exit_code, in_postgres(database_url)) == (1, 10)
    assert "1 are missing in the files" in result.output


def test_a_read_that_misses_rows_keeps_the_day(
    database_url: str, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 10)
    within = work._within
    monkeypatch.setattr(work, "_within", lambda day: f"{within(day)} AND id <> 4")
    result = archive()
    assert (result.exit_code, in_postgres(database_url)) == (1, 10)
    assert "of 10 rows in" in result.output
    assert "9 were read" in result.output


def test_rows_that_are_added_while_a_day_is_archived_are_archived_too(
    spark: SparkSession, database_url: str, archive: Archive, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 10)
    finish(database_url, 100, 110, TODAY - timedelta(days=2))
    remove = finished.remove_day
    added = iter([(111, TODAY - timedelta(days=2)), (11, YESTERDAY)])

    def add_and_remove(connection: Any, day: finished.Day, kept: finished.Checksum) -> bool:
        if kept.rows < 12 and (one := next(added, None)):
            finish(database_url, one[0], one[0], one[1])
            gone = remove(connection, day, kept)
            assert not gone
            return gone
        return remove(connection, day, kept)

    monkeypatch.setattr(finished, "remove_day", add_and_remove)
    result = archive()
    assert result.exit_code == 0, result.output
    assert in_files(spark, path) == list(range(1, 12))
    assert in_files(spark, path, TODAY - timedelta(days=2)) == list(range(100, 112))
    assert in_postgres(database_url) == 0


def test_a_day_that_is_in_use_stays_and_the_next_one_is_archived(
    spark: SparkSession, database_url: str, archive: Archive, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = make_day(database_url, YESTERDAY - timedelta(days=1))
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 5, YESTERDAY - timedelta(days=1))
    finish(database_url, 6, 10)
    with psycopg.connect(database_url) as reader, monkeypatch.context() as patch:
        patch.setattr(work.Archiver.close, "__defaults__", (0.2,))
        # Somebody writes to this one, and only to this one.
        reader.execute(f"LOCK TABLE {name} IN ROW EXCLUSIVE MODE")
        result = archive()
    assert result.exit_code == 1
    assert f"archived, and a transaction uses {name}" in result.output
    assert f"{YESTERDAY}  5 rows  archived, partition dropped" in result.output
    again = archive()
    assert (again.exit_code, in_files(spark, path, YESTERDAY - timedelta(days=1))) == (0, [1, 2, 3, 4, 5])


def test_a_reader_who_goes_away_soon_is_waited_for(
    database_url: str, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_day(database_url, YESTERDAY)
    refused = threading.Event()
    with psycopg.connect(database_url) as reader:
        reader.execute("SELECT FROM finished_jobs")

        def pause(_seconds: float) -> None:
            refused.set()
            reader.rollback()

        monkeypatch.setattr(work, "sleep", pause)
        result = archive()
    assert result.exit_code == 0, result.output
    assert refused.is_set()


def test_only_one_archives_at_a_time(database_url: str, archive: Archive) -> None:
    make_day(database_url, YESTERDAY)
    with work.exclusive(database_url):
        for options in ([], ["--follow"]):
            result = archive(*options)
            assert result.exit_code == 1
            assert "another `drain archive` is at work on this database" in result.output
        assert archive("--dry-run").exit_code == 0
    assert archive().exit_code == 0


def test_an_archiver_that_is_killed_between_write_and_drop_is_completed_by_the_next_one(
    spark: SparkSession, database_url: str, archive: Archive, path: Path
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 100)
    killed(database_url, path, "finished.remove_day = die")
    assert in_postgres(database_url) == 100
    assert in_files(spark, path) == list(range(1, 101))
    result = archive()
    assert result.exit_code == 0, result.output
    assert in_files(spark, path) == list(range(1, 101))
    assert YESTERDAY not in partitions(database_url)


@pytest.mark.parametrize("where", ["append", "compare"])
def test_an_archiver_that_fails_before_or_after_the_write_is_completed_by_the_next_one(
    spark: SparkSession,
    database_url: str,
    archive: Archive,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 100)

    def fail(*_: Any) -> None:
        raise DrainError("failed")

    with monkeypatch.context() as patch:
        patch.setattr(files, where, fail)
        output = archive().output
        assert output.startswith(f"Error: {YESTERDAY}: not archived, and nothing was dropped: failed. ")
        assert len(output.splitlines()) == 1
    assert in_postgres(database_url) == 100
    assert len(in_files(spark, path)) == (0 if where == "append" else 100)
    result = archive()
    assert result.exit_code == 0, result.output
    assert in_files(spark, path) == list(range(1, 101))
    assert YESTERDAY not in partitions(database_url)


class Following:
    """`--follow` in a thread of this process, on the session that all tests share."""

    def __init__(
        self, spark: SparkSession, database_url: str, path: Path, checkpoint: str = "checkpoint"
    ) -> None:
        self.checkpoint = path.with_name(checkpoint)
        self.stop = threading.Event()
        self.batches: list[follow.Batch] = []
        self.days: list[work.Archived] = []
        self.error: BaseException | None = None
        plan = follow.Plan(database_url, str(path), str(path.with_name(checkpoint)), max_rows=100)

        def run() -> None:
            try:
                follow.run(
                    plan,
                    lambda: nullcontext(spark),
                    self.stop,
                    on_batch=self.batches.append,
                    on_day=self.days.append,
                )
            except DrainError as error:
                self.error = error

        self.thread = threading.Thread(target=run)
        self.thread.start()

    def has_noted_all(self) -> bool:
        """Whether Spark has noted each batch that it began as written; the next one begins again with what is not."""
        begun, written = (
            {file.name for file in (self.checkpoint / part).iterdir() if file.name.isdigit()}
            for part in ("offsets", "commits")
        )
        return begun <= written

    def end(self) -> None:
        self.stop.set()
        self.thread.join(PATIENCE_SECONDS)
        assert not self.thread.is_alive()


@pytest.fixture
def following(
    spark: SparkSession, database_url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Any]]:
    monkeypatch.setattr(follow, "_BATCH_INTERVAL", "100 milliseconds")
    with ExitStack() as stack:

        @contextmanager
        def start(checkpoint: str = "checkpoint") -> Iterator[Following]:
            running = Following(spark, database_url, path, checkpoint)
            stack.callback(running.end)
            try:
                yield running
            finally:
                running.end()

        yield start


def test_what_finishes_is_in_the_files_soon_and_once(
    spark: SparkSession, database_url: str, path: Path, following: Callable[..., Any]
) -> None:
    finish(database_url, 1, 250, TODAY)
    with following() as running:
        wait_until(lambda: len(in_files(spark, path, TODAY)) == 250, PATIENCE_SECONDS)
        for first in range(251, 301, 10):
            finish(database_url, first, first + 9, TODAY)
        wait_until(lambda: len(in_files(spark, path, TODAY)) == 300, PATIENCE_SECONDS)
        wait_until(running.has_noted_all, PATIENCE_SECONDS)
    assert running.error is None
    assert sum(batch.rows for batch in running.batches) == 300
    # Taken up where it ended.
    finish(database_url, 301, 310, TODAY)
    with following() as running:
        wait_until(lambda: 310 in in_files(spark, path, TODAY), PATIENCE_SECONDS)
    assert sum(batch.rows for batch in running.batches) == 10
    assert in_files(spark, path, TODAY) == list(range(1, 311))
    assert in_postgres(database_url, TODAY) == 310


def test_the_day_of_a_row_is_utcs_wherever_the_session_is(
    spark: SparkSession, database_url: str, path: Path, following: Callable[..., Any]
) -> None:
    finish(database_url, 1, 5, TODAY)
    with temporarily(spark, {"spark.sql.session.timeZone": "America/New_York"}), following():
        wait_until(lambda: in_files(spark, path, TODAY) == [1, 2, 3, 4, 5], PATIENCE_SECONDS)
    assert not (path / f"finished_date={YESTERDAY}").exists()


def test_a_stream_does_not_pass_over_rows_that_came_with_a_dump(database_url: str) -> None:
    stream = FinishedJobsStream(database_url, {}, ["id"])
    everything = ReadAllAvailable()
    finish(database_url, 1, 3)
    assert stream.latestOffset({"xid": 0}, everything)["xid"] > 0
    with pytest.raises(DrainError, match="begin with a new checkpoint"):
        stream.latestOffset({"xid": 10**12}, everything)
    query(database_url, "UPDATE finished_jobs SET finished_xid = '1000000000000' WHERE id = 2")
    with pytest.raises(DrainError, match="the database has moved here") as error:
        stream.latestOffset({"xid": 0}, everything)
    query(database_url, str(error.value).partition("Execute ")[2].partition(", and begin")[0])
    end = stream.latestOffset({"xid": 0}, everything)
    (part,) = stream.partitions({"xid": 0}, end)
    assert sum(batch.num_rows for batch in stream.read(part)) == 3


def test_a_row_of_a_transaction_that_commits_late_is_not_passed_over(
    spark: SparkSession, database_url: str, path: Path, following: Callable[..., Any]
) -> None:
    asks = (
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'drain spark stream' "
        "AND datname = current_database() AND backend_start > %s"
    )
    with following(), psycopg.connect(database_url) as slow:
        finish(database_url, 100, 100, TODAY)
        wait_until(lambda: in_files(spark, path, TODAY) == [100], PATIENCE_SECONDS)
        slow.execute(INSERT.encode(), ("mail", 1, 5, TODAY))
        finish(database_url, 6, 10, TODAY)
        ((now,),) = query(database_url, "SELECT clock_timestamp()")
        # The stream has asked what there is, and has gone on.
        asked = {wait_until(lambda: query(database_url, asks, now), PATIENCE_SECONDS)[0]}
        wait_until(lambda: set(query(database_url, asks, now)) - asked, PATIENCE_SECONDS)
        slow.commit()
        wait_until(lambda: len(in_files(spark, path, TODAY)) == 11, PATIENCE_SECONDS)
    assert in_files(spark, path, TODAY) == [*range(1, 11), 100]


def test_a_closed_day_that_could_not_be_dropped_is_not_written_again_by_the_stream(
    spark: SparkSession,
    database_url: str,
    path: Path,
    following: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "_CLOSE_SECONDS", 0.0)
    make_day(database_url, YESTERDAY)
    with following() as running, psycopg.connect(database_url) as slow:
        wait_until(lambda: YESTERDAY not in partitions(database_url), PATIENCE_SECONDS)
        # Before it is in the way, the new partition would be dropped like the old one.
        monkeypatch.setattr(follow, "_CLOSE_SECONDS", 3600.0)
        make_day(database_url, YESTERDAY)
        # In the partition's way, and in the stream's, which waits for open transactions.
        slow.execute("SELECT pg_current_xact_id() FROM finished_jobs")
        slow.execute("SELECT pg_current_xact_id()")
        finish(database_url, 1, 20)
        monkeypatch.setattr(follow, "_CLOSE_SECONDS", 0.0)
        wait_until(lambda: in_files(spark, path) == list(range(1, 21)), PATIENCE_SECONDS)
        monkeypatch.setattr(follow, "_CLOSE_SECONDS", 3600.0)
        wait_until(lambda: running.days[-1].problem, PATIENCE_SECONDS)
        slow.commit()
        wait_until(lambda: sum(batch.rows for batch in running.batches) == 20, PATIENCE_SECONDS)
    assert running.error is None
    assert in_files(spark, path) == list(range(1, 21))


def test_a_problem_of_a_day_is_told_once_and_again_when_it_comes_back(database_url: str, path: Path) -> None:
    told: list[work.Archived] = []
    plan = follow.Plan(database_url, str(path), str(path.with_name("checkpoint")))
    no_spark: Any = None
    closed = work.Archived(YESTERDAY, rows=1, late=False, seconds=0.0)
    in_use = replace(closed, problem="in use")
    with work.exclusive(database_url) as connection:
        follower = follow.Follower(plan, connection, no_spark, lambda _batch: None, told.append)
        for day in (in_use, in_use, closed, in_use, in_use):
            follower._report_day(day)
    assert told == [in_use, closed, in_use]


def test_a_batch_that_comes_after_the_end_is_not_taken_for_written(
    spark: SparkSession, database_url: str, path: Path
) -> None:
    plan = follow.Plan(database_url, str(path), str(path.with_name("checkpoint")))
    with work.exclusive(database_url) as connection:
        follower = follow.Follower(plan, connection, spark, lambda _batch: None, lambda _day: None)
        query_ = follower.start()
        follower.end(query_)
        finish(database_url, 1, 1, TODAY)
        with pytest.raises(DrainError, match="has been stopped"):
            follower._write_batch(spark.range(1), 0)
    assert in_files(spark, path, TODAY) == []


def test_a_day_that_is_over_is_dropped_while_its_rows_are_followed(
    spark: SparkSession,
    database_url: str,
    path: Path,
    following: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "_CLOSE_SECONDS", 0.0)
    with following() as running:
        make_day(database_url, YESTERDAY)
        for first in range(1, 101, 20):
            finish(database_url, first, first + 19)
        wait_until(
            lambda: YESTERDAY not in partitions(database_url) and in_postgres(database_url) == 0,
            PATIENCE_SECONDS,
        )
        finish(database_url, 101, 105)
        wait_until(lambda: in_postgres(database_url) == 0, PATIENCE_SECONDS)
    assert running.error is None
    assert in_files(spark, path) == list(range(1, 106))
    # The test looks at the partition too, while it is to be dropped.
    assert all(day.problem is None or "a transaction uses" in day.problem for day in running.days)


@pytest.mark.parametrize("when", ["before the write", "after the write"])
def test_a_follower_that_fails_in_a_batch_is_completed_by_the_next_one(
    spark: SparkSession,
    database_url: str,
    path: Path,
    following: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    when: str,
) -> None:
    finish(database_url, 1, 50, TODAY)
    append = files.append

    def fail(rows: Any, archive: str) -> None:
        if when == "after the write":
            append(rows, archive)
        raise DrainError(f"failed {when}")

    with monkeypatch.context() as patch:
        patch.setattr(files, "append", fail)
        with following() as running:
            wait_until(lambda: not running.thread.is_alive(), PATIENCE_SECONDS)
    assert str(running.error) == f"failed {when}"
    assert len(in_files(spark, path, TODAY)) == (50 if when == "after the write" else 0)
    finish(database_url, 51, 60, TODAY)
    with following():
        wait_until(lambda: 60 in in_files(spark, path, TODAY), PATIENCE_SECONDS)
    assert in_files(spark, path, TODAY) == list(range(1, 61))


def test_a_follower_without_its_checkpoint_writes_nothing_twice(
    spark: SparkSession, database_url: str, path: Path, following: Callable[..., Any]
) -> None:
    finish(database_url, 1, 50, TODAY)
    for first in range(51, 251, 50):
        finish(database_url, first, first + 49, TODAY)
    with following():
        wait_until(lambda: len(in_files(spark, path, TODAY)) == 250, PATIENCE_SECONDS)
    finish(database_url, 251, 260, TODAY)
    with following("another"):
        wait_until(lambda: 260 in in_files(spark, path, TODAY), PATIENCE_SECONDS)
    assert in_files(spark, path, TODAY) == list(range(1, 261))


def test_a_killed_follower_is_completed_by_the_next_one_which_ends_with_0_at_a_signal(
    spark: SparkSession, database_url: str, archive: Archive, path: Path
) -> None:
    finish(database_url, 1, 50, TODAY)
    die_after = "append = files.append\nfiles.append = lambda *given: (append(*given), die())"
    killed(database_url, path, die_after, "--follow")
    assert len(in_files(spark, path, TODAY)) == 50
    finish(database_url, 51, 60, TODAY)
    over = threading.Event()

    def end() -> None:
        wait_until(lambda: over.is_set() or 60 in in_files(spark, path, TODAY), PATIENCE_SECONDS)
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGTERM)

    ender = threading.Thread(target=end)
    ender.start()
    try:
        result = archive("--follow", "--json")
    finally:
        over.set()
        ender.join()
    assert result.exit_code == 0, result.output
    assert result.stderr == "stopped\n"
    # The batch of the one that was killed, and what came after it.
    assert sum(json.loads(line)["rows"] for line in result.stdout.splitlines()) == 60
    assert in_files(spark, path, TODAY) == list(range(1, 61))
    assert (path / "_checkpoint").is_dir()
