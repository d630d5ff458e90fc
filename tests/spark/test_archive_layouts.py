"""Archives with files of every version of job-drain: `tests/archive_layouts` has a day of each layout, two rows a day.

Each day was written by `pipeline.files.append` with the columns of `finished_jobs` at its time. When a column is added,
write a day of the new layout in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from drain import archive
from drain.__main__ import main
from drain.forecast import reading
from drain.rehearsal import past
from pipeline import files, history
from tests.helpers import environment, stage_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = Path(__file__).parents[1] / "archive_layouts"
# Columns that each layout has added.
ADDED: dict[str, set[str]] = {
    "2026-11-21": set(),
    "2026-11-22": {"key", "superseded_by"},
    "2026-11-23": {"result"},
    "2026-11-24": {"staged_by"},
}
IDS = list(range(1, 9))


def columns_of(day: str) -> set[str]:
    (file,) = ARCHIVE.glob(f"finished_date={day}/queue=mail/*.parquet")
    return {*pq.ParquetFile(file).schema_arrow.names, "queue"}


def first_with(name: str) -> int:
    """The first id of the layout that has the column."""
    return 1 + 2 * next((number for number, added in enumerate(ADDED.values()) if name in added), 0)


def test_a_file_of_each_layout_up_to_the_present_one_is_kept() -> None:
    layouts = [columns_of(day) for day in ADDED]
    assert layouts[-1] == set(files.COLUMNS)
    added = [later - earlier for earlier, later in pairwise(layouts)]
    assert added == list(ADDED.values())[1:]


def test_spark_reads_all_layouts_together_and_absent_columns_are_null(spark: SparkSession) -> None:
    rows = history.read(spark, str(ARCHIVE)).orderBy("id").collect()
    assert [row.id for row in rows] == IDS
    for name, value in (("key", "acme"), ("result", "true"), ("staged_by", "shop")):
        assert [row[name] for row in rows] == [value if id_ >= first_with(name) else None for id_ in IDS]


@pytest.mark.parametrize("columns", [reading._COLUMNS, past._COLUMNS], ids=["forecast", "rehearse"])
@pytest.mark.parametrize("selection", [{}, {"queue": "mail"}, {"job_name": "m.f", "queue": "mail"}])
def test_all_layouts_are_read_together_without_spark(
    columns: Sequence[str], selection: dict[str, str]
) -> None:
    rows = list(archive.rows(str(ARCHIVE), ["id", *columns], **selection))
    assert [row["id"] for row in rows] == [7, 8, 5, 6, 3, 4, 1, 2]
    assert all(set(row) == {"id", *columns} for row in rows)
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
    stage_jobs(database_url, 1, queue="mail")
    assert answer_of("forecast", "mail", "--workers", "1", **env)["run_times"] == len(IDS)
    words = ("replay", "--job", "m.f", "--where", "id > 0", "--dry-run")
    assert answer_of(*words, **env)["jobs"] == len(IDS)
    assert answer_of("stats", **env)["total"]["finished"] == len(IDS)
