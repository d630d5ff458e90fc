"""Staging from Spark: all rows in one commit, or none, whatever happens to tasks and drivers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from drain.errors import DrainError, StageError
from drain.pipeline import copying, runs, staging
from drain.pipeline.failures import explanation
from drain.pipeline.runs import Run
from tests.helpers import in_a_hurry, query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Save = Callable[..., None]

# Spark's workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.fixture
def save(database_url: str) -> Save:
    def act(rows: DataFrame, run_id: str = "run", **options: Any) -> None:
        staging.stage_rows(rows, run_id, **{"database_url": database_url} | options)

    return act


@pytest.fixture(params=["in order", "shuffled", "in several commits", "without a shared disk"])
def save_either(
    request: pytest.FixtureRequest, database_url: str, save: Save, monkeypatch: pytest.MonkeyPatch
) -> Save:
    """All ways that rows take."""
    if request.param == "shuffled":
        return save
    if request.param == "in several commits":
        monkeypatch.setattr(copying, "_PARTS", 4)
        return lambda rows: save(rows, commit_every=100)
    if request.param == "without a shared disk":
        monkeypatch.setattr(copying, "_is_local", lambda _spark: False)

    def act(rows: DataFrame) -> None:
        run = Run(run_id="run")
        with runs.exclusive(database_url, "run") as connection, runs.begun(connection, run):
            copying.stage(connection, rows, run, is_divided=True)

    return act


def jobs(spark: SparkSession, count: int, partitions: int = 4) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr(
        "'tests.act' AS job_name", "to_json(array(id)) AS job_args"
    )


def staged(database_url: str) -> list[int]:
    return [
        number
        for (number,) in query(database_url, "SELECT (job_args ->> 0)::int FROM staged_jobs ORDER BY 1")
    ]


def once(directory: Path, name: str) -> bool:
    """Whether this is the first time that anybody asks for this name."""
    try:
        (directory / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def test_each_row_becomes_a_job_with_the_defaults_of_the_schema(
    spark: SparkSession, database_url: str, save_either: Save
) -> None:
    save_either(jobs(spark, 1000))
    assert staged(database_url) == list(range(1000))
    assert query(
        database_url, "SELECT DISTINCT job_kwargs, queue, priority, tag, max_attempts FROM staged_jobs"
    ) == [({}, "default", 0, None, None)]


def test_every_column_an_application_may_set_is_stored(
    spark: SparkSession, database_url: str, save_either: Save
) -> None:
    save_either(
        spark.sql(
            "SELECT 'tests.act' AS job_name, '[1]' AS job_args, '{\"a\": null}' AS job_kwargs, 'mail' AS queue, "
            "bigint(7) AS priority, timestamp '2030-01-01 00:00:00' AS scheduled_at, "
            "timestamp '2031-01-01 00:00:00' AS expires_at, 'here' AS tag, 3 AS max_attempts, 9 AS timeout_seconds, "
            "'{\"trace\": 1}' AS context, 'acme' AS key, 'doc:1' AS unique_key, 'last' AS keep, 30 AS quiet_seconds"
        )
    )
    assert query(
        database_url,
        "SELECT job_kwargs, queue, priority, date_part('year', scheduled_at), date_part('year', expires_at), tag, "
        "max_attempts, timeout_seconds, context FROM staged_jobs",
    ) == [({"a": None}, "mail", 7, 2030, 2031, "here", 3, 9, {"trace": 1})]
    # A quiet time begins at the time of the row.
    assert query(
        database_url,
        "SELECT key, unique_key, keep, quiet_seconds, scheduled_at - '2030-01-01Z'::timestamptz FROM staged_jobs",
    ) == [("acme", "doc:1", "last", 30.0, timedelta(seconds=30))]


def test_nulls_become_defaults_and_unusual_arguments_are_kept(
    spark: SparkSession, database_url: str, save_either: Save
) -> None:
    odd = ["", "ż€\U0001f600", "\t\n\\N\\", '"', "x" * 1_000_000]
    rows = spark.createDataFrame(
        [("tests.act", text, None) for text in odd], "job_name string, text string, queue string"
    )
    save_either(rows.select("job_name", f.to_json(f.array("text")).alias("job_args"), "queue"))
    found = query(database_url, "SELECT job_args ->> 0 FROM staged_jobs WHERE queue = 'default'")
    assert sorted(text for (text,) in found) == sorted(odd)


def test_text_with_quotes_line_ends_and_copy_markers_is_kept(
    spark: SparkSession, database_url: str, save_either: Save
) -> None:
    odd = ["", ",", '"', '""', "a\n\\.\nb", "\\.", "\\N", "NULL", " a ", "\r", "\r\n", "ż€\U0001f600", None]
    save_either(spark.createDataFrame([("tests.act", text) for text in odd], "job_name string, tag string"))
    assert {tag for (tag,) in query(database_url, "SELECT tag FROM staged_jobs")} == set(odd)


def test_all_rows_of_a_run_appear_in_one_commit(spark: SparkSession, database_url: str, save: Save) -> None:
    save(jobs(spark, 1000))
    assert query(database_url, "SELECT count(DISTINCT xmin::text), count(*) FROM staged_jobs") == [(1, 1000)]


def test_a_run_staged_by_another_program_meanwhile_is_rolled_back(
    spark: SparkSession, database_url: str
) -> None:
    run = Run(run_id="run")
    with runs.exclusive(database_url, "run") as connection, runs.begun(connection, run):
        query(database_url, "UPDATE bulk_runs SET rows = 5, committed_at = now() RETURNING 1")
        with pytest.raises(StageError, match="another program has just staged run 'run'"):
            copying.stage(connection, jobs(spark, 10), run, is_divided=True)
    assert staged(database_url) == []


def test_the_same_run_again_stages_nothing(spark: SparkSession, database_url: str, save: Save) -> None:
    save(jobs(spark, 10), "again")
    save(jobs(spark, 20), "again")
    assert staged(database_url) == list(range(10))
    save(jobs(spark, 10), "another")
    assert len(staged(database_url)) == 20
    assert query(database_url, "SELECT run_id, rows FROM bulk_runs ORDER BY 1") == [
        ("again", 10),
        ("another", 10),
    ]


def test_an_empty_source_is_recorded_as_an_empty_run(
    spark: SparkSession, database_url: str, save: Save
) -> None:
    save(jobs(spark, 0))
    assert query(database_url, "SELECT rows FROM bulk_runs") == [(0,)]
    assert staged(database_url) == []


def test_a_retried_task_adds_its_rows_once(
    spark: SparkSession, database_url: str, save_either: Save, tmp_path: Path
) -> None:
    def fail_once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if once(tmp_path, "failed"):
                raise RuntimeError("half-way")

    save_either(jobs(spark, 1000, 2).mapInArrow(fail_once, "job_name string, job_args string"))
    assert (tmp_path / "failed").exists()
    assert staged(database_url) == list(range(1000))


def test_a_task_retried_after_a_kill_adds_its_rows_once(
    spark: SparkSession, database_url: str, save_either: Save, tmp_path: Path
) -> None:
    def die_once(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield batch
            if once(tmp_path, "died"):
                os.kill(os.getpid(), signal.SIGKILL)

    save_either(jobs(spark, 1000, 2).mapInArrow(die_once, "job_name string, job_args string"))
    assert (tmp_path / "died").exists()
    assert staged(database_url) == list(range(1000))


def test_a_permanently_failing_task_fails_the_whole_run(
    spark: SparkSession, database_url: str, save: Save
) -> None:
    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if 900 in [int(text.as_py()[1:-1]) for text in batch.column(1)]:
                raise RuntimeError("no luck today")
            yield batch

    rows = jobs(spark, 1000, 4).mapInArrow(fail, "job_name string, job_args string")
    with pytest.raises(DrainError, match="no luck today"):
        save(rows)
    assert staged(database_url) == []
    assert query(database_url, "SELECT FROM bulk_runs") == []
    save(jobs(spark, 10))
    assert staged(database_url) == list(range(10))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("'tests.act' AS job_name, '{}' AS job_args", ["job args must be a json array", "tests.act, {}"]),
        ("' ' AS job_name, '[77]' AS job_args", ["job name must not be empty", "[77]"]),
        (
            "'tests.act' AS job_name, '[' AS job_args",
            ["cannot be read: invalid input syntax for type json", "column job_args"],
        ),
        (
            "'tests.act' AS job_name, '[\"\\\\u0000\"]' AS job_args",
            ["cannot be read: unsupported Unicode escape sequence", "u0000"],
        ),
        ("'tests.act' AS job_name, 'a b' AS queue", ["queue must be a name that rq can carry", "a b"]),
        ("cast(null AS string) AS job_name, '[78]' AS job_args", ["job name must not be null", "[78]"]),
        ("'tests.act' AS job_name, bigint(3000000000) AS priority", ["3000000000"]),
        ("'tests.act' AS job_name, timestamp'+67566-01-01' AS scheduled_at", ["times must lie between"]),
    ],
    ids=["no array", "no name", "no json", "nul", "queue", "null", "number", "year"],
)
def test_one_row_that_breaks_a_rule_fails_the_whole_run_and_is_named(
    spark: SparkSession, database_url: str, save: Save, rows: str, words: list[str]
) -> None:
    good = (
        jobs(spark, 100).withColumn("priority", f.lit(0).cast("bigint")).withColumn("queue", f.lit("default"))
    )
    with pytest.raises(StageError) as error:
        save(good.unionByName(spark.sql(f"SELECT {rows}"), allowMissingColumns=True))
    assert all(word in str(error.value) for word in words), str(error.value)
    assert staged(database_url) == []


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("1 AS id", {}, "column job_name is missing"),
        ("'a' AS job_name, 1 AS id", {}, "column 'id' cannot be staged"),
        ("'a' AS job_name, array(1) AS job_args", {}, "to_json(array(…)) makes one"),
        ("'a' AS job_name, 'high' AS priority", {}, "column priority is string but must be int"),
        ("'a' AS job_name", {"run_id": ""}, "the run id '' breaks the rule"),
        ("'a' AS job_name", {"commit_every": 0}, "commit_every must be above 0"),
        ("'a' AS job_name", {"rows_per_second": -1.0}, "rows_per_second must be a number above 0"),
        ("'a' AS job_name", {"rows_per_second": float("nan")}, "rows_per_second must be a number above 0"),
        ("'a' AS job_name", {"database_url": "mysql://x"}, "must start with postgresql://"),
    ],
)
def test_invalid_columns_and_options_are_refused_before_a_row_is_read(
    spark: SparkSession, database_url: str, save: Save, columns: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(DrainError, match=re.escape(words)):
        save(spark.sql(f"SELECT {columns}"), **options)


def test_an_unavailable_database_is_reported_without_its_password(spark: SparkSession, save: Save) -> None:
    with pytest.raises(DrainError) as error:
        save(jobs(spark, 1), database_url="postgresql://u:geheim@localhost:1/x")
    assert "PostgreSQL at localhost:1/x cannot be used" in str(error.value)
    assert "geheim" not in str(error.value)


def test_rows_come_due_at_the_requested_rate(spark: SparkSession, database_url: str, save: Save) -> None:
    save(jobs(spark, 10), rows_per_second=4)
    waits = "SELECT date_part('second', scheduled_at - staged_at)::int, count(*) FROM staged_jobs GROUP BY 1 ORDER BY 1"
    assert query(database_url, waits) == [(0, 4), (1, 4), (2, 2)]


def test_the_data_source_refuses_writes_and_names_the_alternative(
    spark: SparkSession, database_url: str
) -> None:
    writer = jobs(spark, 1).write.format("staged_jobs").option("database_url", database_url)
    with pytest.raises(PySparkException) as error:
        writer.mode("append").save()
    assert "stage jobs with pipeline.staging.stage_rows(rows, run_id)" in explanation(str(error.value))


DRIVER = """
import os, signal, sys
from drain.pipeline import copying, staging
from drain.pipeline.session import session
from drain.pipeline.throttle import Throttle

Throttle.pause = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
copying._PARTS = 4
with session("local[1]") as spark:
    jobs = spark.range(0, 100, 1, 2).selectExpr("'tests.act' AS job_name", "to_json(array(id)) AS job_args")
    staging.stage_rows(jobs, "killed", commit_every=10)
"""


def test_the_next_driver_stages_the_rest_of_a_killed_ones_run(
    spark: SparkSession, database_url: str, save: Save, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_PARTS", 4)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        env=os.environ | in_a_hurry() | {"DRAIN_DATABASE_URL": database_url},
        stderr=subprocess.DEVNULL,
    )
    assert driver.wait(120) == -signal.SIGKILL
    first = staged(database_url)
    assert 10 <= len(first) < 100
    assert query(database_url, "SELECT rows, committed_at FROM bulk_runs") == [(len(first), None)]
    save(jobs(spark, 100), "killed", commit_every=10)
    assert staged(database_url) == list(range(100))
    assert query(database_url, "SELECT rows, committed_at IS NULL, position FROM bulk_runs") == [
        (100, False, None)
    ]
