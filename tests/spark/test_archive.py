"""`drain archive`: closed days go to Parquet, each row once, and leave Postgres only then."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from pyspark.errors import PySparkException
from pyspark.sql.functions import expr
from pyspark.sql.streaming.datasource import ReadAllAvailable

from drain.database import postgres
from drain.errors import DrainError
from drain.pipeline import archive as work, days, files, follow, history
from drain.pipeline.commands.archive import archive as command
from drain.pipeline.datasources.tables import FinishedJobsStream
from drain.pipeline.lake import files as archives
from drain.pipeline.lake.files import Archive
from drain.tables import finished
from drain.terminal.commandline import Group
from tests.helpers import ROOT, query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Archiving = Callable[..., Result]

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


def in_files(path: Path, day: date | None = None) -> list[int]:
    """Ids in the files that count, each as often as it is there."""
    place = Archive(str(path))
    files = place.files(day or YESTERDAY)
    return sorted(
        id_ for file in files for batch in place.batches(file, ["id"]) for id_ in batch["id"].to_pylist()
    )


def names(path: Path, day: date | None = None) -> list[str]:
    """Names of all files of a day, hidden ones included, without the identity of a run."""
    files = sorted((path / f"finished_date={day or YESTERDAY}").rglob("*.*"))
    return [re.sub("-[0-9a-f]{32}", "", each.name) for each in files]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def archive(spark: SparkSession, database_url: str, path: Path) -> Archiving:
    def act(*options: str) -> Result:
        words = ["archive", str(path), "--database-url", database_url, "--keep-days", "0", *options]
        return CliRunner().invoke(main, words, catch_exceptions=False)

    return act


def test_an_interrupted_archive_stops_without_trying_other_days(
    database_url: str, archive: Archiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        raise PySparkException("the job was cancelled")

    for day in (YESTERDAY, YESTERDAY - timedelta(days=1)):
        make_day(database_url, day)
        finish(database_url, day.toordinal(), day.toordinal(), day)
    monkeypatch.setattr(days, "write", interrupted)
    result = archive()
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_a_file_is_refused_as_an_archive(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = ["archive", str(tmp_path / "file"), "--database-url", "postgresql://nowhere"]
    assert "is a file; name the directory of the archive" in CliRunner().invoke(main, words).stderr


def test_a_closed_day_is_archived_and_its_partition_dropped(
    spark: SparkSession, database_url: str, archive: Archiving, path: Path
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 300)
    finish(database_url, 301, 400, queue="007")
    finish(database_url, 401, 450, TODAY)
    result = archive()
    assert result.exit_code == 0, result.output
    assert f"{YESTERDAY}  400 rows  archived, partition dropped\n" in result.output
    assert in_files(path) == list(range(1, 401))
    assert YESTERDAY not in partitions(database_url)
    assert in_postgres(database_url, TODAY) == 50
    assert in_files(path, TODAY) == []
    assert names(path) == ["whole-000001-1-1.parquet"]
    (file,) = path.rglob("*.parquet")
    rows = pq.read_table(file, columns=["queue", "finished_at"])
    assert rows == rows.sort_by([("queue", "ascending"), ("finished_at", "ascending")])
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"
    again = archive()
    assert (again.exit_code, again.output) == (0, "Postgres has no closed days\n")
    assert in_files(path) == list(range(1, 401))


def test_rows_are_read_back_with_all_their_values(
    spark: SparkSession, database_url: str, archive: Archiving, path: Path
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
    database_url: str, archive: Archiving, path: Path
) -> None:
    make_day(database_url, YESTERDAY)
    result = archive()
    assert (result.exit_code, result.output) == (0, f"{YESTERDAY}  0 rows  archived, partition dropped\n")
    assert YESTERDAY not in partitions(database_url)
    assert not path.exists()


def test_kept_days_stay_and_a_dry_run_only_counts(database_url: str, archive: Archiving, path: Path) -> None:
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


def test_late_rows_are_added_to_their_archived_day_and_deleted(
    spark: SparkSession, database_url: str, archive: Archiving, path: Path
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 10)
    archive()
    finish(database_url, 11, 12)
    finish(database_url, 13, 13, TODAY)
    result = archive()
    assert (result.exit_code, result.output) == (0, f"{YESTERDAY}  2 rows  archived, late, deleted\n")
    assert in_files(path) == list(range(1, 13))
    assert query(database_url, "SELECT id FROM finished_jobs") == [(13,)]


def restored(database_url: str, archive: Archiving) -> None:
    """Archive yesterday, and put its rows back, as if its partition had not been dropped."""
    query(database_url, "CREATE TABLE kept AS SELECT * FROM finished_jobs")
    result = archive()
    assert result.exit_code == 0, result.output
    make_day(database_url, YESTERDAY)
    query(database_url, "INSERT INTO finished_jobs SELECT * FROM kept")
    query(database_url, "DROP TABLE kept")


def old_layout(path: Path) -> None:
    """Put the rows of each file of yesterday into files of their queues, as earlier versions wrote them."""
    place = Archive(str(path))
    for number, file in enumerate(place.files(YESTERDAY)):
        rows = pq.ParquetFile(file.path).read()
        for queue in rows["queue"].unique().to_pylist():
            directory = Path(file.path).with_name("queue=" + quote(queue, safe=""))
            directory.mkdir(exist_ok=True)
            of_queue = rows.filter(pc.equal(rows["queue"], queue)).drop_columns(["queue"])
            pq.write_table(of_queue, directory / f"part-{number}.zstd.parquet")
        Path(file.path).unlink()


def test_files_that_hold_a_part_of_the_day_are_completed(
    database_url: str, archive: Archiving, path: Path
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 100)
    restored(database_url, archive)
    finish(database_url, 101, 200, queue="b")
    result = archive()
    assert result.exit_code == 0, result.output
    assert in_files(path) == list(range(1, 201))
    assert names(path) == ["added-000002-1-1.parquet", "whole-000001-1-1.parquet"]
    assert YESTERDAY not in partitions(database_url)


def test_a_day_of_many_files_becomes_one_file_and_keeps_rows_that_postgres_lacks(
    spark: SparkSession, database_url: str, archive: Archiving, path: Path
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 100)
    finish(database_url, 101, 110, queue="007")
    finish(database_url, 111, 120, queue="__HIVE_DEFAULT_PARTITION__")
    finish(database_url, 121, 130, queue="a:b/c")
    restored(database_url, archive)
    old_layout(path)
    # A day may have files of both layouts.
    finish(database_url, 131, 140)
    assert len(names(path)) == 4
    rows = history.read(spark, str(path), ["id", "queue"])
    assert {row.queue for row in rows.collect()} == {"mail", "007", "__HIVE_DEFAULT_PARTITION__", "a:b/c"}
    # As after a restore of the database to an earlier time.
    query(database_url, "DELETE FROM finished_jobs WHERE id = 7")
    result = archive()
    assert result.exit_code == 0, result.output
    assert names(path) == ["whole-000001-1-1.parquet"]
    assert in_files(path) == list(range(1, 141))
    assert not [each for each in (path / f"finished_date={YESTERDAY}").iterdir() if each.is_dir()]
    queues = {row["queue"] for row in archives.rows(str(path), ["queue"])}
    assert queues == {"mail", "007", "__HIVE_DEFAULT_PARTITION__", "a:b/c"}
    assert len(list(archives.rows(str(path), ["id"], queue="007", job_name="tests.act"))) == 10


def test_rows_that_are_in_the_files_twice_are_written_once(
    database_url: str, archive: Archiving, path: Path
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 10)
    restored(database_url, archive)
    (file,) = path.rglob("*.parquet")
    file.with_name("part-1.parquet").write_bytes(file.read_bytes())
    assert len(in_files(path)) == 20
    result = archive()
    assert result.exit_code == 0, result.output
    assert in_files(path) == list(range(1, 11))


def test_a_day_too_large_for_one_file_is_split(
    database_url: str, archive: Archiving, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(days, "_TASK_BYTES", 16_384)
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 300)
    restored(database_url, archive)
    assert len(names(path)) > 1
    assert in_files(path) == list(range(1, 301))
    # They are not taken for small files that should become one.
    before = names(path)
    result = archive()
    assert (result.exit_code, names(path)) == (0, before), result.output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE finished_jobs SET tag = 'x' WHERE id = 7", "1 differ"),
        ("UPDATE finished_jobs SET job_args = '[0]' WHERE id <= 3", "3 differ"),
        ("UPDATE finished_jobs SET queue = 'other' WHERE id = 7", "1 differ"),
    ],
)
def test_a_day_whose_files_disagree_stays_and_the_reason_is_reported(
    database_url: str,
    archive: Archiving,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    words: str,
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 10)
    finish(database_url, 11, 12, TODAY - timedelta(days=4))
    with monkeypatch.context() as patch:
        patch.setattr(finished, "remove_day", lambda *_: True)
        archive()
    query(database_url, change)
    result = archive()
    assert result.exit_code == 1
    assert words in result.output
    assert f"Error: {YESTERDAY}: files and table disagree" in result.output
    assert str(path / f"finished_date={YESTERDAY}") in result.output
    assert in_postgres(database_url) == 10
    # The other day is none the worse for it.
    assert in_postgres(database_url, TODAY - timedelta(days=4)) == 0
    assert names(path) == ["whole-000001-1-1.parquet"]


def test_a_day_with_unreadable_files_is_named_and_blocks_no_other(
    database_url: str, archive: Archiving, path: Path
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
    assert line.startswith(f"Error: {earlier}: not archived, and nothing was dropped: the archive at ")
    assert f"remove {damaged.parent} and run this again" in line
    assert (in_postgres(database_url, earlier), in_postgres(database_url)) == (5, 0)


def test_a_queue_may_be_named_like_hives_default_partition(
    spark: SparkSession, database_url: str, archive: Archiving, path: Path
) -> None:
    finish(database_url, 1, 5, queue="__HIVE_DEFAULT_PARTITION__")
    result = archive()
    assert (result.exit_code, in_postgres(database_url)) == (0, 0), result.output
    (queue,) = {row.queue for row in history.read(spark, str(path)).collect()}
    assert queue == "__HIVE_DEFAULT_PARTITION__"


def test_all_files_of_a_day_are_synced_before_its_partition_is_dropped(
    database_url: str, archive: Archiving, path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_jobs_archived_after_a_snapshot_are_not_part_of_it(
    spark: SparkSession, database_url: str, path: Path
) -> None:
    def keep(instant: history.Instant, job_id: int, day: date, xid: str) -> None:
        rows = instant.table(spark, "finished_jobs", files.COLUMNS, where=f"id = {job_id}")
        rows = rows.withColumn("finished_xid", expr(xid))
        order = days.Order(database_url, instant.snapshot, str(path), str(day), "0" * 32, size=0, late=True)
        files.add_to_day(Archive(str(path)), day, days.write(rows, order, 0), order.run, whole=False)

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


def test_a_row_missing_from_the_files_keeps_the_day(
    database_url: str, archive: Archiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 10)
    write = days.write
    monkeypatch.setattr(days, "write", lambda rows, *given: write(rows.where("id <> 4"), *given))
    result = archive()
    assert (result.exit_code, in_postgres(database_url)) == (1, 10)
    assert "1 are missing in the files" in result.output


def test_an_incomplete_read_keeps_the_day(
    database_url: str, archive: Archiving, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 10)
    within = days.within
    monkeypatch.setattr(days, "within", lambda day: f"{within(day)} AND id <> 4")
    result = archive()
    assert (result.exit_code, in_postgres(database_url)) == (1, 10)
    assert "of 10 rows in" in result.output
    assert "9 were read" in result.output


def test_rows_that_are_added_while_a_day_is_archived_are_archived_too(
    spark: SparkSession, database_url: str, archive: Archiving, path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert in_files(path) == list(range(1, 12))
    assert in_files(path, TODAY - timedelta(days=2)) == list(range(100, 112))
    assert in_postgres(database_url) == 0


def test_a_day_in_use_stays_and_the_next_one_is_archived(
    spark: SparkSession, database_url: str, archive: Archiving, path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert f"archived, but {name} was not dropped: finished_jobs is in use" in result.output
    assert f"{YESTERDAY}  5 rows  archived, partition dropped" in result.output
    again = archive()
    assert (again.exit_code, in_files(path, YESTERDAY - timedelta(days=1))) == (0, [1, 2, 3, 4, 5])


def test_the_archiver_waits_for_a_short_reader(
    database_url: str, archive: Archiving, monkeypatch: pytest.MonkeyPatch
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


def test_only_one_archiver_runs_at_a_time(database_url: str, archive: Archiving) -> None:
    make_day(database_url, YESTERDAY)
    with work.exclusive(database_url):
        for options in ([], ["--follow"]):
            result = archive(*options)
            assert result.exit_code == 1
            assert "another `drain archive` is running on this database" in result.output
        assert archive("--dry-run").exit_code == 0
    assert archive().exit_code == 0


@pytest.mark.parametrize("where", ["write", "compare"])
def test_the_next_archiver_completes_a_failed_one(
    database_url: str, archive: Archiving, path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 100)

    def fail(*_: Any) -> None:
        raise DrainError("failed")

    with monkeypatch.context() as patch:
        patch.setattr(days, where, fail)
        output = archive().output
        assert output.startswith(f"Error: {YESTERDAY}: not archived, and nothing was dropped: failed. ")
        assert len(output.splitlines()) == 1
    assert in_postgres(database_url) == 100
    assert in_files(path) == []
    result = archive()
    assert result.exit_code == 0, result.output
    assert in_files(path) == list(range(1, 101))
    assert names(path) == ["whole-000001-1-1.parquet"]
    assert YESTERDAY not in partitions(database_url)


KILLED_AT = {
    "before a name": "files.give_names = die",
    "between two names": """
give = files.give_names
files.give_names = lambda archive, names: (give(archive, names[:1]), die())""",
    "after the names": "files.flush = die",
    "before older files are removed": "files.remove = die",
    "among the older files": """
remove = files.remove
files.remove = lambda archive, paths: (remove(archive, list(paths)[:1]), die())""",
    "before the drop": "finished.remove_day = die",
}


@pytest.mark.parametrize("layout", ["hours", "queues"])
@pytest.mark.parametrize("at", KILLED_AT)
def test_an_archiver_that_is_killed_is_completed_by_the_next_one(
    spark: SparkSession, database_url: str, path: Path, at: str, layout: str
) -> None:
    make_day(database_url, YESTERDAY)
    for first in range(1, 101, 20):
        finish(database_url, first, first + 19, queue=f"q{first}")
        with work.exclusive(database_url) as lock:
            follower = follow.Follower(follow.Plan(database_url, str(path), keep=1), lock, not_called)
            follower.run_once()
            follower.close()
    assert len(names(path)) == 5
    if layout == "queues":
        old_layout(path)
    killed(database_url, path, KILLED_AT[at])
    assert in_postgres(database_url) == 100
    if layout == "hours":
        # Readers see each row once, whatever is there.
        assert in_files(path) == list(range(1, 101))
    assert set(in_files(path)) == set(range(1, 101))
    with work.exclusive(database_url) as lock:
        (day,) = finished.closed_days(lock)
        archiver = work.Archiver(lock, database_url, str(path), partial(days.archive, spark))
        assert archiver.close(day).problem is None
    assert in_files(path) == list(range(1, 101))
    assert all(name.startswith("whole-") for name in names(path))
    assert in_postgres(database_url) == 0


def not_called(_: Sequence[days.Order]) -> list[days.Answer]:
    raise AssertionError


def killed(database_url: str, path: Path, patch: str) -> None:
    """Close yesterday in a process that kills itself where `patch` lets it call die(), with no Spark to wait for."""
    program = f"""
import os, signal
from drain.pipeline.lake.files import Archive
from drain.tables import finished
from drain.pipeline import archive, files
from drain.pipeline.datasources import adbc, transactions
from drain.pipeline.days import Answer, Comparison
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
def write(orders):
    (order,) = orders
    place = Archive(order.archive)
    before = [file.path for file in place.files(order.day)]
    with adbc.connect(order.database_url, "tests") as connection:
        rows = list(transactions.read(connection, 0, 10**12, files.COLUMNS))
    halves = [[rows[0].slice(0, 50)], [rows[0].slice(50)]]
    written = [
        file for number, half in enumerate(halves) for file in files.write(place, order.day, f"x{{number}}", half)
    ]
    return [Answer(written, True, before, Comparison(100, 0, 0, 0))]
{patch}
with archive.exclusive({database_url!r}) as lock:
    (day,) = finished.closed_days(lock)
    print(archive.Archiver(lock, {database_url!r}, {str(path)!r}, write).close(day))
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, timeout=60, capture_output=True, check=False
    )
    assert result.returncode == -signal.SIGKILL, result


def test_a_stream_does_not_skip_rows_restored_from_a_dump(database_url: str) -> None:
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
