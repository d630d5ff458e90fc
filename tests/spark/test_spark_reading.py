"""Reading the job tables and queries from Spark: one instant, only what is asked for, few connections."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import datasource

from drain import stage
from drain.database import postgres
from drain.pipeline import history
from drain.pipeline.datasources import columns, conditions, snapshot
from drain.pipeline.failures import explanation
from tests.helpers import query, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Read = Callable[..., "DataFrame"]

FINISH = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token, last_error)
SELECT id, 'tests.act', jsonb_build_array(id), '{}', CASE WHEN id %% 2 = 0 THEN 'even' ELSE 'odd' END, 0, at, at, at,
    at, at, 1, 1, '{"type": "E"}'
FROM generate_series(%s::bigint, %s::bigint) AS id, LATERAL (SELECT now() - %s::interval AS at) AS time
"""


def finish(database_url: str, first: int, last: int, ago: str = "0") -> None:
    query(database_url, FINISH + " RETURNING id", first, last, ago)


@pytest.fixture
def read(spark: SparkSession, database_url: str) -> Read:
    def act(table: str, **options: Any) -> DataFrame:
        reader = spark.read.format(table).option("database_url", database_url)
        for name, value in options.items():
            reader = reader.option(name, str(value))
        return reader.load()

    return act


def ids(rows: DataFrame) -> list[int]:
    return sorted(row.id for row in rows.select("id").collect())


def filters_itself(rows: DataFrame) -> bool:
    plan = rows._jdf.queryExecution().executedPlan().toString()
    return any(line.lstrip("+-*(1234) ").startswith("Filter") for line in plan.splitlines())


@pytest.mark.parametrize("table", columns.TABLES)
def test_each_table_has_all_columns_of_the_schema(database_url: str, table: str) -> None:
    found = query(
        database_url, f"SELECT attname FROM pg_attribute WHERE attrelid = '{table}'::regclass AND attnum > 0"
    )
    assert {name for (name,) in found} == columns.TABLES[table].keys()


@pytest.mark.parametrize("table", columns.TABLES)
def test_an_empty_table_has_all_columns_and_no_rows(read: Read, table: str) -> None:
    rows = read(table)
    assert rows.columns == list(columns.TABLES[table])
    assert rows.collect() == []


def test_a_row_is_read_with_all_its_values(database_url: str, read: Read) -> None:
    with psycopg.connect(database_url) as connection:
        job_id = stage(
            connection,
            "tests.act",
            [1, "ż\n"],
            {"a": None},
            queue="mail",
            run_at=datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
            tag="here",
            context={"trace": 1},
        )
    (row,) = read("staged_jobs").collect()
    assert (row.id, row.job_args, row.job_kwargs) == (job_id, '[1, "ż\\n"]', '{"a": null}')
    assert (row.queue, row.tag, row.context, row.expires_at) == ("mail", "here", '{"trace": 1}', None)
    assert row.scheduled_at.replace(tzinfo=UTC) == datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def test_all_partitions_are_read_once_within_the_task_limit(database_url: str, read: Read) -> None:
    finish(database_url, 1, 20_000)
    finish(database_url, 20_001, 20_100, "3 days")
    finish(database_url, 20_101, 20_200, "400 days")
    for most in (1, 3):
        rows = read("finished_jobs", max_connections=most)
        assert ids(rows) == list(range(1, 20_201))
        assert rows.rdd.getNumPartitions() <= most


def test_a_large_table_is_divided(database_url: str, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    # 60 MB of arguments that do not compress, in the table itself.
    query(
        database_url,
        "INSERT INTO staged_jobs (job_name, job_args) "
        "SELECT 'tests.act', jsonb_build_array(string_agg(md5(i::text || j), '')) "
        "FROM generate_series(1, 30000) AS i, generate_series(1, 50) AS j GROUP BY i RETURNING id",
    )
    rows = read("staged_jobs", columns="id", max_connections=3)
    assert rows.rdd.getNumPartitions() == 3
    assert len(ids(rows)) == 30_000


def test_only_the_requested_columns_are_read(database_url: str, read: Read) -> None:
    finish(database_url, 1, 3)
    rows = read("finished_jobs", columns="queue, id")
    assert rows.columns == ["queue", "id"]
    assert [tuple(row) for row in rows.orderBy("id").collect()] == [("odd", 1), ("even", 2), ("odd", 3)]
    with pytest.raises(PySparkException) as error:
        read("finished_jobs", columns="id, nope")
    assert "finished_jobs has no column 'nope'; it has id, job_name" in explanation(str(error.value))


def test_a_condition_is_evaluated_by_postgres(database_url: str, read: Read) -> None:
    finish(database_url, 1, 10)
    assert ids(read("finished_jobs", where="queue = 'even' OR id = 1")) == [1, 2, 4, 6, 8, 10]
    with pytest.raises(PySparkException) as error:
        read("finished_jobs", where="nope = 1").collect()
    assert 'PostgreSQL refused: column "nope" does not exist' in explanation(str(error.value))


def test_a_spark_filter_is_pushed_down_to_postgres(
    spark: SparkSession, database_url: str, read: Read
) -> None:
    finish(database_url, 1, 10)
    finish(database_url, 11, 12, "2 days")
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        # Each DataFrame is asked once: see JobTable.
        recent = "finished_at > current_timestamp() - interval 1 day"
        asked = f"queue = 'even' AND id IN (1, 2, 4) AND {recent}"
        assert ids(read("finished_jobs", pushdown="true").where(asked)) == [2, 4]
        assert ids(read("finished_jobs", pushdown="true").where("NOT (id > 3) OR id = 12")) == [1, 2, 3, 12]
        assert ids(read("finished_jobs", pushdown="true").where("job_args = '[7]'")) == [7]
        # What Postgres has taken over, Spark does not do again.
        assert not filters_itself(read("finished_jobs", pushdown="true").where(asked))
        assert filters_itself(read("finished_jobs", pushdown="true").where("job_args = '[7]'"))
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (datasource.EqualTo(("id",), 5), "id = 5"),
        (datasource.EqualTo(("queue",), "o'neill"), "queue = 'o''neill'"),
        (datasource.In(("job_name",), ("a", "b")), "job_name IN ('a', 'b')"),
        (datasource.Not(datasource.EqualTo(("queue",), "a")), "NOT (queue = 'a')"),
        (datasource.IsNull(("tag",)), "tag IS NULL"),
        (datasource.IsNotNull(("tag",)), "tag IS NOT NULL"),
        (datasource.LessThanOrEqual(("id",), 5), "id <= 5"),
        (
            datasource.GreaterThan(("finished_at",), datetime(2026, 1, 2, tzinfo=UTC)),
            "finished_at > timestamptz '2026-01-02T00:00:00+00:00'",
        ),
        # What Spark and Postgres do not understand alike is left to Spark.
        (datasource.LessThan(("queue",), "b"), None),
        (datasource.EqualTo(("job_args",), "[1]"), None),
        (datasource.In(("id",), (1, None)), None),
        (datasource.EqualTo(("finished_at",), datetime(2026, 1, 2)), None),  # noqa: DTZ001
        (datasource.EqualTo(("queue",), "a\0"), None),
    ],
)
def test_a_pushed_down_condition_means_the_same_as_in_spark(
    given: datasource.Filter, expected: str | None
) -> None:
    assert conditions.condition(given) == expected


def test_all_tasks_of_a_read_see_the_same_instant_while_rows_move(database_url: str, read: Read) -> None:
    finish(database_url, 1, 1000)
    rows = read("finished_jobs", max_connections=2)
    # Planned, and thereby fixed.
    rows.rdd.getNumPartitions()
    finish(database_url, 1001, 1100)
    query(database_url, "DELETE FROM finished_jobs WHERE id <= 10 RETURNING id")
    assert ids(rows) == list(range(1, 1001))
    assert ids(read("finished_jobs")) == list(range(11, 1101))


def test_several_tables_are_read_in_one_snapshot_while_jobs_move(
    spark: SparkSession, database_url: str
) -> None:
    with psycopg.connect(database_url) as connection:
        for _ in range(200):
            stage(connection, "tests.act")
    ended = threading.Event()

    def move() -> None:
        with psycopg.connect(database_url, autocommit=True) as connection:
            while not ended.is_set():
                connection.execute(
                    "WITH gone AS (DELETE FROM staged_jobs WHERE id = (SELECT min(id) FROM staged_jobs) RETURNING *) "
                    "INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, "
                    "staged_at, reason, explanation) SELECT id, job_name, job_args, job_kwargs, queue, priority, "
                    "scheduled_at, staged_at, 'failed', 'x' FROM gone"
                )

    mover = threading.Thread(target=move)
    mover.start()
    try:
        moved = "SELECT FROM dead_jobs LIMIT 1"
        wait_until(lambda: query(database_url, moved))
        with history.instant(database_url) as instant:
            staged, dead = (instant.table(spark, f"{name}_jobs", ["id"]) for name in ("staged", "dead"))
            found = [*ids(staged), *ids(dead)]
    finally:
        ended.set()
        mover.join()
    assert sorted(found) == list(range(min(found), min(found) + 200))


def test_an_unused_snapshot_expires_with_a_clear_error(database_url: str, read: Read) -> None:
    finish(database_url, 1, 10)
    rows = read("finished_jobs", snapshot_seconds="0.5")
    rows.rdd.getNumPartitions()
    kept = "SELECT FROM pg_stat_activity WHERE application_name = 'drain snapshot' AND datname = current_database()"
    wait_until(lambda: not query(database_url, kept))
    with pytest.raises(PySparkException) as error:
        rows.collect()
    assert "has ended: read the table again" in explanation(str(error.value))


def test_no_partition_is_dropped_while_an_instant_is_open(database_url: str) -> None:
    finish(database_url, 1, 1)
    with (
        history.instant(database_url) as instant,
        postgres.connect(database_url, "tests") as connection,
    ):
        assert instant.days
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute(
                "SELECT drain_drop_day(relid, counted, checksum) "
                "FROM pg_partition_tree('finished_jobs'), drain_checksum_of(relid) "
                "WHERE isleaf AND relid::regclass::text ~ '\\d{8}$'"
            )


def test_no_partition_is_truncated_under_an_open_snapshot(database_url: str) -> None:
    empty = "SELECT drain_truncate_if_empty('staged_jobs_ready_0')"
    with postgres.connect(database_url, "tests") as holder:
        with snapshot.exported(holder, ["staged_jobs"]):
            assert query(database_url, empty) == [(False,)]
        assert query(database_url, empty) == [(True,)]


def test_a_query_is_read_with_matching_spark_types(spark: SparkSession, database_url: str) -> None:
    rows = (
        spark.read.format("postgres_query")
        .option("database_url", database_url)
        .option(
            "query",
            "SELECT 1 AS id, 2::bigint AS big, 'a' AS text, 1.5::numeric AS price, true AS yes, 1.5::float8 AS real, "
            "'{\"a\": 1}'::jsonb AS json, '00000000-0000-0000-0000-000000000001'::uuid AS uuid, "
            "date '2026-01-02' AS day, timestamptz '2026-01-02 03:04:05+00' AS at, NULL::text AS nothing;",
        )
        .load()
    )
    (row,) = rows.collect()
    assert (row.id, row.big, row.text, row.yes, row.real, row.nothing) == (1, 2, "a", True, 1.5, None)
    assert (row.price, row.json, row.uuid) == ("1.5", '{"a": 1}', "00000000-0000-0000-0000-000000000001")
    assert str(row.day) == "2026-01-02"
    assert row["at"].isoformat() == "2026-01-02T03:04:05"


@pytest.mark.parametrize(
    ("text", "words"),
    [("SELECT nope", 'PostgreSQL refused: column "nope" does not exist'), ("", "option query is missing")],
)
def test_a_query_refused_by_postgres_is_reported_in_one_line(
    spark: SparkSession, database_url: str, text: str, words: str
) -> None:
    with pytest.raises(PySparkException) as error:
        spark.read.format("postgres_query").option("database_url", database_url).option("query", text).load()
    assert words in explanation(str(error.value))
