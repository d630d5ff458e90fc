"""`drain audit --expected`: what an application says it has committed, against all places where a job can be."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from drain.__main__ import main
from drain.pipeline import history
from tests.helpers import query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Audit = Callable[..., Result]

LONG_AGO = datetime.now(UTC) - timedelta(days=30)
COMMON = "id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at"
VALUES = "id, 'tests.act', '[]', '{}', CASE WHEN id %% 2 = 0 THEN 'even' ELSE 'odd' END, 0, now(), now()"
PLACES = {
    "staged_jobs": (f"staged_jobs ({COMMON}) OVERRIDING SYSTEM VALUE", VALUES),
    "inflight_jobs": (f"inflight_jobs ({COMMON}, delivery)", f"{VALUES}, id"),
    "dead_jobs": (f"dead_jobs ({COMMON}, reason, explanation)", f"{VALUES}, 'failed', 'x'"),
}


def put(database_url: str, table: str, ids: Iterable[int]) -> None:
    into, values = PLACES[table]
    statement = f"INSERT INTO {into} SELECT {values} FROM unnest(%s::bigint[]) AS id RETURNING id"
    query(database_url, statement, list(ids))


def finish(database_url: str, ids: Iterable[int], at: datetime | None = None) -> None:
    query(
        database_url,
        f"INSERT INTO finished_jobs ({COMMON}, moved_at, claimed_at, finished_at, attempts, fencing_token) "
        f"SELECT {VALUES}, now(), now(), coalesce(%s, now()), 1, 1 FROM unnest(%s::bigint[]) AS id RETURNING id",
        at,
        list(ids),
    )


def archive(spark: SparkSession, database_url: str, path: Path, where: str) -> None:
    with history.instant(database_url) as instant:
        rows = instant.table(spark, "finished_jobs", ["id", "queue", "job_name", "finished_at"], where=where)
        dated = rows.selectExpr("*", "date_format(finished_at, 'yyyy-MM-dd') AS finished_date")
        dated.write.mode("append").partitionBy("finished_date", "queue").parquet(str(path))


@pytest.fixture
def audit(spark: SparkSession, database_url: str, tmp_path: Path) -> Audit:
    def act(ids: Iterable[int] | str, *options: str) -> Result:
        source = ids
        if not isinstance(ids, str):
            path = tmp_path / "expected.csv"
            path.write_text("id\n" + "".join(f"{number}\n" for number in ids))
            source = str(path)
        words = ["audit", "--database-url", database_url, "--expected", str(source), *options]
        return CliRunner().invoke(main, words, catch_exceptions=False)

    return act


def test_jobs_in_exactly_one_place_each_pass(database_url: str, audit: Audit) -> None:
    put(database_url, "staged_jobs", [1, 2])
    put(database_url, "inflight_jobs", [3, 4])
    put(database_url, "dead_jobs", [5])
    finish(database_url, [6, 7])
    finish(database_url, [8], LONG_AGO)
    result = audit(range(1, 9))
    assert result.exit_code == 0, result.output
    assert (
        result.stdout
        == "8 expected; 2 staged, 2 inflight, 3 finished, 1 dead: every job is in exactly one place\n"
    )


def test_each_kind_of_breach_is_found_counted_and_named(database_url: str, audit: Audit) -> None:
    put(database_url, "staged_jobs", [1, 2, 3])
    put(database_url, "inflight_jobs", [3])
    finish(database_url, [4])
    finish(database_url, [4], LONG_AGO)
    result = audit([1, 3, 4, 5, 6])
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "FAIL  2 in the list, but in no table or archive: 5, 6",
        "FAIL  2 in more than one place, or more than once in one: 3, 4",
        "FAIL  1 in a table or in the archive, but not in the list: 2",
        "5 expected; 2 staged, 1 inflight, 1 finished, 0 dead: not every job is in exactly one place",
    ]
    answer = json.loads(audit([1, 3, 4, 5, 6], "--json").stdout)
    assert (answer["ok"], answer["expected"]) == (False, 5)
    assert answer["breaches"] == [
        {"reason": "lost", "count": 2, "ids": [5, 6]},
        {"reason": "doubled", "count": 2, "ids": [3, 4]},
        {"reason": "unknown", "count": 1, "ids": [2]},
    ]


def test_only_jobs_of_dropped_days_may_be_missing(database_url: str, audit: Audit) -> None:
    finish(database_url, [1, 2], LONG_AGO)
    finish(database_url, [3])
    query(database_url, "SELECT drain_drop_old_day(1)")
    assert audit([1, 2, 3]).stdout == (
        "3 expected; 0 staged, 0 inflight, 1 finished, 0 dead, 2 dropped: every job is in exactly one place\n"
    )
    assert audit([1, 2, 3, 4]).stdout.startswith("FAIL  1 in the list, but in no table or archive: 4\n")


def test_no_more_than_twenty_ids_are_named(audit: Audit) -> None:
    result = audit(range(1, 101))
    assert result.exit_code == 1
    first = result.stdout.splitlines()[0]
    assert first.startswith("FAIL  100 in the list, but in no table or archive: 1, 2")
    assert first.endswith("18, 19, 20, ...")


def test_duplicate_ids_count_once_and_unlisted_jobs_are_ignored(database_url: str, audit: Audit) -> None:
    put(database_url, "staged_jobs", [1, 2, 3])
    assert audit([1, 2, 2]).exit_code == 0


def test_the_list_may_cover_a_single_queue_or_job(database_url: str, audit: Audit) -> None:
    put(database_url, "staged_jobs", range(1, 7))
    finish(database_url, [7, 8])
    assert audit([2, 4, 6, 8], "--queue", "even").exit_code == 0
    assert audit([2, 4, 6, 8], "--queue", "odd").exit_code == 1
    assert audit(range(1, 9), "--job", "tests.act").exit_code == 0
    assert audit([2, 4, 6, 8]).exit_code == 1


def test_a_query_on_the_same_database_uses_the_same_snapshot(database_url: str, audit: Audit) -> None:
    put(database_url, "staged_jobs", [1, 2])
    query(
        database_url,
        "CREATE TABLE orders (job_id bigint); INSERT INTO orders VALUES (1), (2) RETURNING job_id",
    )
    assert audit("sql:SELECT job_id FROM orders", "--key", "job_id").exit_code == 0
    query(database_url, "INSERT INTO orders VALUES (3) RETURNING job_id")
    assert audit("sql:SELECT job_id FROM orders", "--key", "job_id").exit_code == 1


def test_archived_jobs_count_once_even_if_still_in_postgres(
    spark: SparkSession, database_url: str, audit: Audit, tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    finish(database_url, [1, 2])
    finish(database_url, [3, 4, 5], LONG_AGO)
    # Today is archived in part, and still here; of long ago one row is still here, and two are no more.
    archive(spark, database_url, path, "id IN (1, 3, 4, 5)")
    query(database_url, "DELETE FROM finished_jobs WHERE id IN (3, 4) RETURNING id")
    assert audit(range(1, 6), "--archive", str(path)).exit_code == 0
    assert audit(range(1, 6)).exit_code == 1
    archive(spark, database_url, path, "id = 5")
    query(database_url, "DELETE FROM finished_jobs WHERE id = 5 RETURNING id")
    result = audit(range(1, 6), "--archive", str(path))
    assert result.exit_code == 1
    assert result.stdout.splitlines()[0] == "FAIL  1 in more than one place, or more than once in one: 5"


@pytest.mark.parametrize("name", ["a\\b", "a'b", "x${spark.app.name}y"])
def test_any_name_of_a_job_is_found_in_the_archive_too(
    spark: SparkSession, database_url: str, audit: Audit, tmp_path: Path, name: str
) -> None:
    finish(database_url, [1], LONG_AGO)
    query(database_url, "UPDATE finished_jobs SET job_name = %s", name)
    archive(spark, database_url, tmp_path / "archive", "true")
    query(database_url, "DELETE FROM finished_jobs RETURNING id")
    result = audit([1], "--job", name, "--archive", str(tmp_path / "archive"))
    assert result.exit_code == 0, result.output


def test_a_missing_archive_is_mentioned(database_url: str, audit: Audit, tmp_path: Path) -> None:
    put(database_url, "staged_jobs", [1])
    result = audit([1], "--archive", str(tmp_path / "archvie"))
    assert result.exit_code == 0
    assert f"there is no archive at {tmp_path / 'archvie'}: only jobs in Postgres count\n" in result.stderr


@pytest.mark.parametrize(
    ("ids", "options", "code", "words"),
    [
        ([], [], 1, "the list of expected jobs is empty"),
        ([1], ["--key", "nope"], 1, "the list has no column 'nope'; it has id"),
        ("nothing.parquet", [], 1, "Path does not exist"),
        ("nothing", [], 1, "cannot detect the format of 'nothing'"),
    ],
)
def test_an_unusable_list_is_reported_in_one_line(
    audit: Audit, ids: list[int] | str, options: list[str], code: int, words: str
) -> None:
    result = audit(ids, *options)
    assert result.exit_code == code
    assert words in result.stderr


def test_a_queue_without_a_list_is_a_usage_error(database_url: str) -> None:
    result = CliRunner().invoke(main, ["audit", "--database-url", database_url, "--queue", "mail"])
    assert result.exit_code == 2
    assert "--queue and --job go with --expected" in result.stderr
