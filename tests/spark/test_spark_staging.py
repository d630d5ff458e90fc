"""Writing `staged_jobs` from Spark: all rows in one commit, or none, whatever happens to tasks and drivers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark import InheritableThread, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from drain.database import postgres
from drain.errors import StageError
from drain.tables import bulk
from pipeline.datasources import adbc, staging
from pipeline.failures import explanation
from tests.helpers import PATIENCE_SECONDS, in_a_hurry, query, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Save = Callable[..., None]

# Spark's workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


@pytest.fixture
def save(database_url: str) -> Save:
    def act(rows: DataFrame, run_id: str = "run", **options: Any) -> None:
        writer = (
            rows.write.format("staged_jobs").option("database_url", database_url).option("run_id", run_id)
        )
        for name, value in options.items():
            writer = writer.option(name, str(value))
        writer.mode("append").save()

    return act


@pytest.fixture(params=["data source", "driver"])
def save_either(request: pytest.FixtureRequest, database_url: str, save: Save) -> Save:
    """Both ways of staging: any program's, and that of the commands."""
    if request.param == "data source":
        return save
    return lambda rows: staging.stage(rows, database_url, {"run_id": "run"})


def jobs(spark: SparkSession, count: int, partitions: int = 4) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr(
        "'tests.act' AS job_name", "to_json(array(id)) AS job_args"
    )


def staged(database_url: str) -> list[int]:
    return [
        number
        for (number,) in query(database_url, "SELECT (job_args ->> 0)::int FROM staged_jobs ORDER BY 1")
    ]


def nothing_is_left(database_url: str) -> bool:
    tables = query(database_url, "SELECT FROM pg_class WHERE relname ~ '^bulk_[0-9a-f]{32}$'")
    return not tables and not query(database_url, "SELECT FROM bulk_side_tables")


def reason(error: pytest.ExceptionInfo[PySparkException]) -> str:
    return explanation(str(error.value))


def once(directory: Path, name: str) -> bool:
    """Whether this is the first time that anybody asks for this name."""
    try:
        (directory / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def test_each_row_becomes_a_job_with_the_defaults_of_the_schema(
    spark: SparkSession, database_url: str, save: Save
) -> None:
    save(jobs(spark, 1000))
    assert staged(database_url) == list(range(1000))
    assert query(
        database_url, "SELECT DISTINCT job_kwargs, queue, priority, tag, max_attempts FROM staged_jobs"
    ) == [({}, "default", 0, None, None)]
    assert query(database_url, "SELECT count(DISTINCT xmin::text) FROM staged_jobs") == [(1,)]
    assert nothing_is_left(database_url)


def test_every_column_that_an_application_may_give_arrives(
    spark: SparkSession, database_url: str, save: Save
) -> None:
    save(
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


def test_nulls_are_defaults_and_odd_arguments_arrive_as_they_are(
    spark: SparkSession, database_url: str, save: Save
) -> None:
    odd = ["", "ż€\U0001f600", "\t\n\\N\\", '"', "x" * 1_000_000]
    rows = spark.createDataFrame(
        [("tests.act", text, None) for text in odd], "job_name string, text string, queue string"
    )
    save(rows.select("job_name", f.to_json(f.array("text")).alias("job_args"), "queue"))
    found = query(database_url, "SELECT job_args ->> 0 FROM staged_jobs WHERE queue = 'default'")
    assert sorted(text for (text,) in found) == sorted(odd)


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
    assert nothing_is_left(database_url)


def test_the_same_run_at_the_same_time_stages_once_and_fails_nobody(
    spark: SparkSession, database_url: str, save: Save
) -> None:
    failures: list[Exception] = []

    def act() -> None:
        try:
            # A thread of its own has no active session in the JVM.
            spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)  # type: ignore[union-attr]
            save(jobs(spark, 5000), "together")
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [InheritableThread(act) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [str(failure) for failure in failures] == []
    assert staged(database_url) == list(range(5000))
    assert nothing_is_left(database_url)


def test_of_two_commits_of_a_run_one_waits_for_the_other_and_learns_of_it(database_url: str) -> None:
    with postgres.connect(database_url, "one") as one, postgres.connect(database_url, "other") as other:
        tables = [bulk.create_side_table(each, "run") for each in (one, other)]
        for table in tables:
            one.execute(f"INSERT INTO {table} (task, job_name) VALUES (1, 'tests.act')")
        with one.transaction():
            one.execute("INSERT INTO bulk_runs (run_id, rows) VALUES ('run', 5)")
            answers: list[int] = []
            thread = threading.Thread(
                target=lambda: answers.append(bulk.stage(other, "run", tables[1], [bulk.Task(1, 1)]))
            )
            thread.start()
            waiting = (
                "SELECT FROM pg_stat_activity WHERE application_name = 'other' AND wait_event_type = 'Lock'"
            )
            wait_until(lambda: query(database_url, waiting))
        thread.join(30)
        assert answers == [5]
        assert staged(database_url) == []
        assert nothing_is_left(database_url)


def test_an_empty_source_is_a_run_that_staged_nothing(
    spark: SparkSession, database_url: str, save: Save
) -> None:
    save(jobs(spark, 0))
    assert query(database_url, "SELECT rows FROM bulk_runs") == [(0,)]
    assert staged(database_url) == []


def test_a_task_that_fails_at_first_and_is_repeated_adds_its_rows_once(
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


def test_a_task_whose_process_is_killed_is_repeated_and_adds_its_rows_once(
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
    assert nothing_is_left(database_url)


def test_rows_that_a_task_has_copied_and_spark_does_not_count_are_not_staged(database_url: str) -> None:
    # A task that was killed sees its rows end as if these had been all, and commits what it has.
    with postgres.connect(database_url, "tests") as connection:
        table = bulk.create_side_table(connection, "run")
        for task, number in ((1, 10), (1, 11), (2, 10), (3, 12)):
            connection.execute(
                f"INSERT INTO {table} (task, job_name, job_args) VALUES (%s, 'tests.act', %s::text)",
                (task, f"[{number}]"),
            )
        assert bulk.stage(connection, "run", table, [bulk.Task(1, 2), bulk.Task(3, 1)]) == 3
    assert staged(database_url) == [10, 11, 12]


def test_a_run_with_rows_missing_is_refused_as_a_whole(database_url: str) -> None:
    with postgres.connect(database_url, "tests") as connection:
        table = bulk.create_side_table(connection, "run")
        connection.execute(f"INSERT INTO {table} (task, job_name) VALUES (1, 'tests.act')")
        with pytest.raises(StageError, match="copied 2 rows and 1 were found; nothing was staged"):
            bulk.stage(connection, "run", table, [bulk.Task(1, 2)])
    assert staged(database_url) == []
    assert query(database_url, "SELECT FROM bulk_runs") == []


def test_a_sibling_that_fails_for_good_fails_the_run_and_leaves_nothing(
    spark: SparkSession, database_url: str, save: Save
) -> None:
    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if 900 in [int(text.as_py()[1:-1]) for text in batch.column(1)]:
                raise RuntimeError("no luck today")
            yield batch

    rows = jobs(spark, 1000, 4).mapInArrow(fail, "job_name string, job_args string")
    with pytest.raises(PySparkException) as error:
        save(rows)
    assert "no luck today" in reason(error)
    assert staged(database_url) == []
    assert query(database_url, "SELECT FROM bulk_runs") == []
    wait_until(lambda: nothing_is_left(database_url))
    save(jobs(spark, 10))
    assert staged(database_url) == list(range(10))


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("'tests.act' AS job_name, '{}' AS job_args", ["job args must be a json array", "tests.act, {}"]),
        ("' ' AS job_name, '[77]' AS job_args", ["job name must not be empty", "[77]"]),
        ("'tests.act' AS job_name, '[' AS job_args", ["cannot be read as JSON", "job_args = ["]),
        ("'tests.act' AS job_name, '[\"\\\\u0000\"]' AS job_args", ["cannot be read as JSON", "u0000"]),
        ("'tests.act' AS job_name, 'a b' AS queue", ["queue must be a name that rq can carry", "a b"]),
        ("cast(null AS string) AS job_name, '[78]' AS job_args", ["job name must not be null", "[78]"]),
        ("'tests.act' AS job_name, bigint(3000000000) AS priority", ["3000000000"]),
    ],
    ids=["no array", "no name", "no json", "nul", "queue", "null", "number"],
)
def test_one_row_that_breaks_a_rule_fails_the_whole_run_and_is_named(
    spark: SparkSession, database_url: str, save: Save, rows: str, words: list[str]
) -> None:
    good = (
        jobs(spark, 100).withColumn("priority", f.lit(0).cast("bigint")).withColumn("queue", f.lit("default"))
    )
    with pytest.raises(PySparkException) as error:
        save(good.unionByName(spark.sql(f"SELECT {rows}"), allowMissingColumns=True))
    assert all(word in reason(error) for word in words), reason(error)
    assert staged(database_url) == []
    wait_until(lambda: nothing_is_left(database_url))


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        ("1 AS id", {}, "column job_name is missing"),
        ("'a' AS job_name, 1 AS id", {}, "column 'id' cannot be staged"),
        ("'a' AS job_name, array(1) AS job_args", {}, "to_json(array(…)) makes one"),
        ("'a' AS job_name, 'high' AS priority", {}, "column priority is string and must be int"),
        ("'a' AS job_name", {"run_id": ""}, "option run_id is missing"),
        ("'a' AS job_name", {"max_connections": "none"}, "option max_connections must be a whole number"),
        ("'a' AS job_name", {"max_connections": "0.5"}, "option max_connections must be a whole number"),
        ("'a' AS job_name", {"max_connections": "0"}, "option max_connections must be a whole number"),
        ("'a' AS job_name", {"rows_per_second": "-1"}, "option rows_per_second must be a number"),
        ("'a' AS job_name", {"database_url": "mysql://x"}, "must start with postgresql://"),
    ],
)
def test_what_cannot_be_staged_is_refused_before_a_row_is_read(
    spark: SparkSession, database_url: str, save: Save, columns: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException) as error:
        save(spark.sql(f"SELECT {columns}"), **options)
    assert words in reason(error)
    assert nothing_is_left(database_url)


def test_a_database_that_is_away_is_one_line_without_its_password(spark: SparkSession, save: Save) -> None:
    with pytest.raises(PySparkException) as error:
        save(jobs(spark, 1), database_url="postgresql://u:geheim@localhost:1/x")
    assert "PostgreSQL at localhost:1/x cannot be used" in reason(error)
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize("slots", [1, 2])
def test_no_more_tasks_copy_at_a_time_than_are_allowed(
    database_url: str, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    columns = StructType().add("job_name", "string")
    writer = staging.Staging(
        database_url, {"run_id": "run", "max_connections": str(slots)}, columns, overwrite=False
    )
    rows = pa.RecordBatch.from_pydict({"job_name": ["tests.act"]})
    refused = threading.Event()
    monkeypatch.setattr(staging, "sleep", lambda _: refused.set())
    monkeypatch.setattr(staging, "_task_attempt", lambda: 1)
    with ExitStack() as others, ThreadPoolExecutor(1) as thread:
        for slot in range(slots):
            other = others.enter_context(adbc.connect(database_url, "other"))
            assert writer._lock_slot(other, slot)
        copied = thread.submit(writer.write, iter([rows]))
        wait_until(refused.is_set)
        assert not copied.done()
        # The last slot is given back, and the task gets it.
        other.rollback()
        assert copied.result(PATIENCE_SECONDS) == staging.Copied(1, 1)


def test_rows_come_due_at_the_rate_that_is_asked_for(
    spark: SparkSession, database_url: str, save: Save
) -> None:
    save(jobs(spark, 10), rows_per_second=4)
    waits = "SELECT date_part('second', scheduled_at - staged_at)::int, count(*) FROM staged_jobs GROUP BY 1 ORDER BY 1"
    assert query(database_url, waits) == [(0, 4), (1, 4), (2, 2)]


def test_side_tables_of_drivers_that_died_are_dropped_after_a_day(database_url: str) -> None:
    with postgres.connect(database_url, "tests") as connection:
        old, young = (bulk.create_side_table(connection, run) for run in ("old", "young"))
        connection.execute(
            "UPDATE bulk_side_tables SET created_at = now() - interval '25 hours' WHERE name = %s", [old]
        )
        bulk.create_side_table(connection, "new")
        assert query(database_url, f"SELECT to_regclass('{old}'), to_regclass('{young}') IS NULL") == [
            (None, False)
        ]


DRIVER = """
import os, signal
from pipeline import datasources
from pipeline.datasources.staging import Staging
from pipeline.datasources.tables import StagedJobs
from pipeline.session import session

class Dying(Staging):
    def commit(self, messages):
        os.kill(self.driver, signal.SIGKILL)
        signal.pause()

class Source(StagedJobs):
    def writer(self, schema, overwrite):
        writer = Dying(self.database_url, dict(self.options), schema, overwrite=overwrite)
        writer.driver = int(self.options["driver"])
        return writer

with session("local[1]") as spark:
    spark.dataSource.register(Source)
    jobs = spark.range(0, 100, 1, 2).selectExpr("'tests.act' AS job_name", "to_json(array(id)) AS job_args")
    writer = jobs.write.format("staged_jobs").option("run_id", "killed").option("driver", os.getpid())
    writer.mode("append").save()
"""


def test_a_driver_killed_between_side_table_and_commit_has_staged_nothing_and_the_next_stages_all(
    spark: SparkSession, database_url: str, save: Save
) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        env=os.environ | in_a_hurry() | {"DRAIN_DATABASE_URL": database_url},
        stderr=subprocess.DEVNULL,
    )
    assert driver.wait(120) == -signal.SIGKILL
    assert staged(database_url) == []
    left = query(database_url, "SELECT name, run_id FROM bulk_side_tables")
    assert [run for _, run in left] == ["killed"]
    assert query(database_url, f"SELECT count(*) FROM {left[0][0]}") == [(100,)]
    save(jobs(spark, 100), "killed")
    assert staged(database_url) == list(range(100))
    assert nothing_is_left(database_url)
