"""`drain archive --follow`: jobs are in the files seconds after they finish, once, with no Spark but to close days."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from drain.errors import DrainError
from drain.pipeline import archive as work, closing, days, files, follow, hours
from drain.pipeline.follow import Follower
from tests.helpers import ROOT, query, wait_until
from tests.spark.test_archive import (
    INSERT,
    finish,
    in_files,
    in_postgres,
    make_day,
    names,
    not_called,
    partitions,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Following = Callable[..., Any]
# Spark does real work meanwhile, on a machine that has other work.
PATIENCE_SECONDS = 120
TODAY = YESTERDAY = date.min


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever day it was when the tests began."""
    day = datetime.now(UTC).date()
    monkeypatch.setattr(sys.modules[__name__], "TODAY", day)
    monkeypatch.setattr(sys.modules[__name__], "YESTERDAY", day - timedelta(days=1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def following(database_url: str, path: Path) -> Following:
    @contextmanager
    def start(write: Any = not_called, *, keep: int = 1, max_rows: int = 100) -> Iterator[Follower]:
        plan = follow.Plan(database_url, str(path), keep, max_rows)
        with work.exclusive(database_url) as lock:
            follower = Follower(plan, lock, write)
            try:
                yield follower
            finally:
                follower.close()

    return start


def rows_of(follower: Follower) -> list[int]:
    """Follow until there is nothing new; returns the number of rows of each batch."""
    found = []
    while batch := follower.run_once():
        found.append(batch.rows)
    return found


def test_finished_jobs_are_in_the_files_once_by_day(
    database_url: str, path: Path, following: Following
) -> None:
    make_day(database_url, YESTERDAY)
    for first in range(1, 251, 50):
        finish(database_url, first, first + 49, TODAY)
    finish(database_url, 251, 260, YESTERDAY)
    with following() as follower:
        assert rows_of(follower) == [100, 100, 60]
        finish(database_url, 261, 270, TODAY)
        assert rows_of(follower) == [10]
        assert rows_of(follower) == []
    # Taken up where it ended, which the names of the files say.
    finish(database_url, 271, 280, TODAY)
    with following() as follower:
        assert rows_of(follower) == [10]
    assert in_files(path, TODAY) == [*range(1, 251), *range(261, 281)]
    assert in_files(path, YESTERDAY) == list(range(251, 261))
    assert all(re.fullmatch(r"hour-01-\d+-\d+\.parquet", name) for name in names(path, TODAY))
    assert in_postgres(database_url, TODAY) == 270


def test_a_row_that_commits_late_is_not_skipped(database_url: str, path: Path, following: Following) -> None:
    with following() as follower, psycopg.connect(database_url) as slow:
        slow.execute(INSERT.encode(), ("mail", 1, 5, TODAY))
        finish(database_url, 6, 10, TODAY)
        assert rows_of(follower) == []
        slow.commit()
        assert rows_of(follower) == [10]
    assert in_files(path, TODAY) == list(range(1, 11))


def test_past_hours_are_merged_into_one_file_each(
    database_url: str, path: Path, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hours, "_QUIET_SECONDS", 0.0)
    # Several row groups, and several pieces of work.
    monkeypatch.setattr(files, "_GROUP_BYTES", 4096)
    monkeypatch.setattr(hours, "_ROWS", 16)
    make_day(database_url, YESTERDAY)
    with following() as follower:
        for first in range(1, 101, 20):
            finish(database_url, first, first + 19, YESTERDAY, queue=f"q{first}")
            rows_of(follower)
        assert len(names(path, YESTERDAY)) == 5
        follower.merge(0.0)
        assert len([name for name in names(path, YESTERDAY) if not name.startswith("_")]) == 5
        while len(names(path, YESTERDAY)) > 1:
            follower.merge(0.0)
        follower.merge(float("inf"))
        finish(database_url, 101, 110, YESTERDAY)
        rows_of(follower)
    assert in_files(path, YESTERDAY) == list(range(1, 111))
    with following() as follower:
        assert rows_of(follower) == []
        follower.merge(float("inf"))
    assert len(names(path, YESTERDAY)) == 1
    assert in_files(path, YESTERDAY) == list(range(1, 111))


def test_the_present_hour_is_not_merged(
    database_url: str, path: Path, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hours, "_QUIET_SECONDS", 0.0)
    with following() as follower:
        for id_ in (1, 2):
            finish(database_url, id_, id_, TODAY)
            query(database_url, "UPDATE finished_jobs SET finished_at = now() WHERE id = %s", id_)
            rows_of(follower)
        before = names(path, TODAY)
        follower.merge(float("inf"))
        assert names(path, TODAY) == before


def test_days_are_closed_while_jobs_are_followed(
    spark: SparkSession, database_url: str, path: Path, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_CLOSE_SECONDS", 0.0)
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 20, YESTERDAY)
    with following() as follower:
        assert rows_of(follower) == [20]
    with following(partial(days.archive, spark), keep=0) as follower:

        def is_closed() -> bool:
            follower.close_days_if_due()
            follower.run_once()
            return YESTERDAY not in partitions(database_url) and in_postgres(database_url, YESTERDAY) == 0

        finish(database_url, 21, 25, YESTERDAY)
        finish(database_url, 26, 30, TODAY)
        wait_until(is_closed, PATIENCE_SECONDS)
        # Late, when its day has no partition any more.
        finish(database_url, 31, 35, YESTERDAY)
        wait_until(is_closed, PATIENCE_SECONDS)
    assert in_files(path, YESTERDAY) == [*range(1, 26), *range(31, 36)]
    assert in_files(path, TODAY) == list(range(26, 31))
    assert [name[:5] for name in names(path, YESTERDAY)] == ["added", "whole"]


def test_a_problem_with_a_day_is_reported_once_until_it_recurs(database_url: str, path: Path) -> None:
    reported: list[work.Archived] = []
    closed = work.Archived(YESTERDAY, rows=1, late=False, seconds=0.0)
    in_use = replace(closed, problem="in use")
    with work.exclusive(database_url) as lock:
        follower = Follower(follow.Plan(database_url, str(path)), lock, not_called, reported.append)
        for day in (in_use, in_use, closed, in_use, in_use):
            follower._report(day)
        follower.close()
    assert reported == [in_use, closed, in_use]


def test_files_of_other_servers_and_versions_are_merged_only_at_the_close(
    database_url: str, path: Path, following: Following
) -> None:
    finish(database_url, 1, 10, TODAY)
    with following() as follower:
        assert rows_of(follower) == [10]
    (file,) = path.rglob("*.parquet")
    for name in ("hour-01-0-1000000000000.parquet", "queue=mail/part-0.parquet"):
        moved = file.with_name(name) if "/" not in name else file.parent / name
        moved.parent.mkdir(exist_ok=True)
        file = file.rename(moved)
        finish(database_url, 100 + len(name), 100 + len(name), TODAY)
        with following() as follower:
            rows_of(follower)
        assert in_files(path, TODAY) == list(range(1, 11))


def test_a_batch_that_fails_leaves_no_file(
    database_url: str, path: Path, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    finish(database_url, 1, 10, TODAY)
    with following() as follower, monkeypatch.context() as patch:
        patch.setattr(files.Writer, "finish", fail)
        with pytest.raises(DrainError, match="no space left"):
            follower.run_once()
        assert names(path, TODAY) == []


KILLED_AT = {
    "before the name": "files.give_names = die",
    "after the name": "give = files.give_names\nfiles.give_names = lambda *given: (give(*given), die())",
    "in a merge": "files.Writer.finish = die",
    "after a merge": "files.remove = die",
    "among the merged files": "remove = files.remove\nfiles.remove = lambda *given: (remove(*given), die())",
}


@pytest.mark.parametrize("at", KILLED_AT)
def test_a_follower_that_is_killed_is_completed_by_the_next_one(
    database_url: str, path: Path, following: Following, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    make_day(database_url, YESTERDAY)
    with following() as follower:
        for first in (1, 21):
            finish(database_url, first, first + 19, YESTERDAY)
            rows_of(follower)
    if "merge" not in at:
        finish(database_url, 41, 60, YESTERDAY)
    program = f"""
import os, signal
from drain.pipeline import archive, files, follow, hours
def die(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
{KILLED_AT[at]}
plan = follow.Plan({database_url!r}, {str(path)!r}, keep=1)
with archive.exclusive({database_url!r}) as lock:
    follower = follow.Follower(plan, lock, None)
    follower.run_once()
    follower.merge(float("inf"))
"""
    done = [sys.executable, "-c", program]
    result = subprocess.run(done, cwd=ROOT, timeout=60, capture_output=True, check=False)
    assert result.returncode == -signal.SIGKILL, result.stderr.decode()
    expected = list(range(1, 41 if "merge" in at else 61))
    # Each row once, before anything has been repaired.
    assert in_files(path, YESTERDAY) == expected[: 40 if at == "before the name" else None]
    monkeypatch.setattr(hours, "_QUIET_SECONDS", 0.0)
    with following() as follower:
        rows_of(follower)
        follower.merge(float("inf"))
    assert in_files(path, YESTERDAY) == expected
    assert len(names(path, YESTERDAY)) == 1


def test_the_command_uses_spark_only_to_close_days(
    spark: SparkSession, database_url: str, path: Path
) -> None:
    make_day(database_url, YESTERDAY)
    finish(database_url, 1, 50, YESTERDAY)
    finish(database_url, 51, 60, TODAY)
    query(
        database_url,
        "INSERT INTO job_steps (job_id, name, result, seconds, fencing_token) VALUES (50, 'a', 'null', 1, 1)",
    )
    words = ["archive", str(path), "--follow", "--json", "--keep-days", "0", "--master", "local[1]"]
    process = subprocess.Popen(
        [sys.executable, "-m", "drain", *words, "--nice", "0", "--conf", "spark.sql.shuffle.partitions=1"],
        cwd=ROOT,
        env=os.environ | {"DRAIN_DATABASE_URL": database_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: in_files(path, TODAY) == list(range(51, 61)), PATIENCE_SECONDS)
        status = Path(f"/proc/{process.pid}/status").read_text()
        wait_until(lambda: YESTERDAY not in partitions(database_url), PATIENCE_SECONDS)
        process.terminate()
        out, error = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, error) == (0, "stopped\n")
    events = [json.loads(line) for line in out.splitlines()]
    assert sum(event["rows"] for event in events if event["event"] == "batch") == 60
    assert int(status.partition("VmHWM:")[2].split()[0]) < 300_000
    assert in_files(path, YESTERDAY) == list(range(1, 51))
    assert len(list((path / "job_steps" / f"finished_date={YESTERDAY}").glob("whole-*.parquet"))) == 1


def test_spark_ends_with_its_follower(database_url: str, path: Path) -> None:
    order = days.Order(database_url, "no snapshot", str(path), str(TODAY), "0" * 32, size=0, late=False)
    closer = closing.Closer({"master": "local[1]", "settings": {}, "verbose": False, "nice": 0})
    closer.end()
    with pytest.raises(DrainError, match="Spark was ended"):
        closer([order])
    closer = closing.Closer({"master": "bogus", "settings": {}, "verbose": False, "nice": 0})
    with pytest.raises(DrainError, match="Spark did not start"):
        closer([order])
