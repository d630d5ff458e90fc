"""Archives with files of every version of job-drain: `tests/archive_layouts` has a day of each layout, two rows a day.

Each day was written with the columns of `finished_jobs` at its time, until 24 November with a directory for each queue.
When a column is added, write a day of the new layout with `drain.pipeline.files.write` and `add_to_day`. Steps,
edges and flows have been archived since 29 November: their first layout is in the day of 20 November.
"""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from drain.__main__ import main
from drain.contrib.rehearsal import past
from drain.errors import DrainError
from drain.pipeline import files, history
from drain.pipeline.archive import RELATED
from drain.pipeline.datasources import columns
from drain.pipeline.failures import explained
from drain.pipeline.lake import files as archive
from tests.helpers import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = Path(__file__).parents[1] / "archive_layouts"
# Columns that each layout has added.
ADDED: dict[str, set[str]] = {
    "2026-11-21": set(),
    "2026-11-22": {"key", "superseded_by"},
    "2026-11-23": {"result"},
    "2026-11-24": {"staged_by"},
    # Written on 25 November, with files of a day and no longer of a queue.
    "2026-11-20": set(),
}
IDS = list(range(1, 11))


def columns_of(day: str) -> set[str]:
    (file,) = ARCHIVE.glob(f"finished_date={day}/**/*.parquet")
    return {*pq.ParquetFile(file).schema_arrow.names, "queue"}


def first_with(name: str) -> int:
    """The first id of the layout that has the column."""
    return 1 + 2 * next((number for number, added in enumerate(ADDED.values()) if name in added), 0)


def test_there_is_a_sample_file_of_every_layout() -> None:
    layouts = [columns_of(day) for day in ADDED]
    assert layouts[-1] == set(files.COLUMNS)
    added = [later - earlier for earlier, later in pairwise(layouts)]
    assert added == list(ADDED.values())[1:]


def test_spark_reads_all_layouts_together_and_absent_columns_are_null(spark: SparkSession) -> None:
    rows = history.read(spark, str(ARCHIVE)).orderBy("id").collect()
    assert [row.id for row in rows] == IDS
    for name, value in (("key", "acme"), ("result", "true"), ("staged_by", "shop")):
        assert [row[name] for row in rows] == [value if id_ >= first_with(name) else None for id_ in IDS]


@pytest.mark.parametrize("table", RELATED)
def test_the_other_tables_have_a_sample_of_every_layout_too(spark: SparkSession, table: str) -> None:
    (*_, latest) = sorted((ARCHIVE / table).glob("finished_date=*/*.parquet"))
    assert set(pq.ParquetFile(latest).schema_arrow.names) == columns.TABLES[table].keys()
    names = list(columns.TABLES[table])
    found = history.read(spark, str(ARCHIVE), names, table=table).orderBy(*columns.KEYS[table]).collect()
    assert [row[0] for row in found] == {"job_steps": [9, 10], "job_edges": [10], "flows": [10]}[table]
    # `None`s are those of the samples.
    assert [name for name in names if found[0][name] is None] == (
        ["on_complete", "on_dead", "expires_at"] if table == "flows" else []
    )


@pytest.mark.parametrize(
    "name", ["a b", "50%25", "q[1]", "w*", "back\\slash", "c:d", "{a,b}", "#x?y", "caf\u00e9"]
)
def test_an_archive_may_be_at_any_path(spark: SparkSession, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    shutil.copytree(ARCHIVE, path)
    assert sorted(row.id for row in history.read(spark, str(path), ["id"]).collect()) == IDS


def test_replacing_a_file_during_a_read_is_reported(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Spark has found its path, or before."""
    message = "files of the archive were replaced during the read: run this again"
    shutil.copytree(ARCHIVE, tmp_path / "a")
    (file,) = (tmp_path / "a" / "finished_date=2026-11-20").glob("*.parquet")
    rows = history.read(spark, str(tmp_path / "a"), ["id"])
    listed = {day: archive.Archive(str(tmp_path / "a")).files(day) for day in ADDED}
    monkeypatch.setattr(archive.Archive, "files", lambda _, day: listed[day])
    file.unlink()
    with pytest.raises(DrainError, match=message), explained():
        rows.collect()
    with pytest.raises(DrainError, match=message), explained():
        history.read(spark, str(tmp_path / "a"), ["id"])


def test_a_condition_on_the_day_reads_only_the_files_of_those_days(spark: SparkSession) -> None:
    days = sorted(ADDED)
    for where, number in (
        ("finished_date >= '2026-11-23' AND id > 0", 2),
        ("job_name = 'm.f' AND (finished_date < '2026-11-22' AND finished_date > '2026-11-20')", 1),
        ("finished_date = '2026-11-23' OR id = 1", 5),
        ("id > 0", 5),
    ):
        assert len(history._chosen(spark, days, where)) == number
    assert history.read(spark, str(ARCHIVE), ["id"], where="finished_date = '2026-11-22'").count() == 2


@pytest.mark.parametrize("selection", [{}, {"queue": "mail"}, {"job_name": "m.f", "queue": "mail"}])
def test_all_layouts_are_read_together_without_spark(selection: dict[str, str]) -> None:
    rows = list(archive.rows(str(ARCHIVE), ["id", *past._COLUMNS], **selection))
    assert [row["id"] for row in rows] == [7, 8, 5, 6, 3, 4, 1, 2, 9, 10]
    assert all(set(row) == {"id", *past._COLUMNS} for row in rows)
    assert list(archive.rows(str(ARCHIVE), ["id"], queue="other")) == []


def answer_of(*words: str, **env: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*words, "--json"], env=env, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.usefixtures("spark")
def test_each_command_reads_an_archive_whose_oldest_file_lacks_newer_columns(
    database_url: str, redis_url: str
) -> None:
    env = environment(database_url, redis_url, DRAIN_ARCHIVE=str(ARCHIVE))
    words = ("replay", "--job", "m.f", "--where", "id > 0", "--dry-run")
    assert answer_of(*words, **env)["jobs"] == len(IDS)
    assert answer_of("stats", **env)["total"]["finished"] == len(IDS)
