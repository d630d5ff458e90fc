"""`drain reconcile`: what differs between two sides, and which jobs are staged for it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import psycopg
import pytest
from click.testing import CliRunner, Result
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from drain import stage
from drain.errors import DrainError
from drain.pipeline.commands.reconcile import reconcile
from drain.pipeline.session import temporarily
from drain.terminal.commandline import Group
from tests.helpers import PATIENCE_SECONDS, drain_command, environment, new_enqueuer, query, stage_jobs

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from docsearch import (  # noqa: E402
    application,
    index,
    spark as docsearch_spark,
    store,
)
from docsearch.corpus import Entry  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's workers can import neither the tests nor the examples.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
cloudpickle.register_pickle_by_value(docsearch_spark)  # type: ignore[no-untyped-call]

JOB = "m.f"
ALL_THE_SAME = {"missing in target": 0, "different in target": 0, "deleted at source": 0, "up to date": 0}

pytestmark = pytest.mark.usefixtures("spark")


def run(database_url: str, *words: str, job: str = JOB) -> Result:
    main = Group(commands=[reconcile])
    return CliRunner().invoke(main, ["reconcile", "--database-url", database_url, "--job", job, *words])


def outcome(database_url: str, *words: str, job: str = JOB) -> dict[str, Any]:
    result = run(database_url, *words, "--json", job=job)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def refusal(database_url: str, *words: str) -> str:
    """The one line with which a run is refused; nothing was staged."""
    result = run(database_url, *words)
    assert result.exit_code == 1, result.output
    assert staged(database_url) == []
    error = [line for line in result.stderr.splitlines() if not line.startswith("run ")]
    assert len(error) == 1
    return error[0]


def sides(source: str, target: str, columns: str = "id, version") -> list[str]:
    """Rows as VALUES in Postgres' SQL, of each side."""
    select = "sql:SELECT * FROM (VALUES {}) AS rows ({})"
    return ["--source", select.format(source, columns), "--target", select.format(target, columns)]


BY_VERSION = ["--key", "id", "--version", "version"]
MISSING_1_TO_8 = [
    *sides(", ".join(f"({id_}, 1)" for id_ in range(1, 10)), "(9, 1)"),
    *BY_VERSION,
]


def staged(database_url: str) -> list[tuple[str, list[Any]]]:
    return [
        (name, args)
        for name, args in query(database_url, "SELECT job_name, job_args FROM staged_jobs ORDER BY 1, 2")
    ]


class Stores:
    """The documents of the example, its index, and the real way of a job from one to the other."""

    def __init__(self, database_url: str, redis_url: str, path: Path) -> None:
        store.create(database_url)
        index.create(path)
        self.engine = store.engine(database_url)
        self.index = index.Index(path)
        self._url = database_url
        self._env = environment(
            database_url,
            redis_url,
            DRAIN_JOBS="docsearch.jobs",
            DOCSEARCH_INDEX=str(path),
            PYTHONPATH=str(EXAMPLES),
        )
        self.words = [
            *("--source", "sql:SELECT id, name, text FROM documents", "--target", f"docsearch_index:{path}"),
            *("--register", "docsearch.spark:IndexSource", "--key", "id", "--compare", "name,text"),
            *("--delete-job", "docsearch.index_document", "--max-deletes", "50%", "--queue", "index"),
        ]

    def save(self, count: int) -> list[int]:
        entries = [Entry(f"module.name{number}", f"What name{number} does.") for number in range(count)]
        return [
            application.save(self.engine, entry, refuse=False, before_the_end=lambda: None).document_id
            for entry in entries
        ]

    def work(self) -> None:
        """Drain and work until nothing is left to do."""
        for words in (["run", "--once"], ["work", "index", "--burst"]):
            with drain_command(*words, env=self._env) as command:
                assert command.wait(PATIENCE_SECONDS) == 0

    def work_at_once(self) -> None:
        """Do what all staged jobs would, without them."""
        for id_, name, text in query(self._url, "SELECT id, name, text FROM documents"):
            self.index.write(id_, Entry(name, text), started_at=0.0)
        query(self._url, "DELETE FROM staged_jobs")

    def reconcile(self, *words: str) -> dict[str, Any]:
        return outcome(self._url, *self.words, *words, job="docsearch.index_document")

    def agree(self) -> bool:
        rows = query(self._url, "SELECT id, name, text FROM documents")
        return self.index.documents() == {id_: Entry(name, text) for id_, name, text in rows}

    def close(self) -> None:
        self.index.close()
        self.engine.dispose()


@pytest.fixture
def stores(database_url: str, redis_url: str, tmp_path: Path) -> Iterator[Stores]:
    with closing(Stores(database_url, redis_url, tmp_path / "index.sqlite3")) as both:
        yield both


def test_a_tampered_search_index_is_repaired(
    database_url: str, stores: Stores, tmp_path: Path, spark: SparkSession
) -> None:
    ids = stores.save(400)
    # None of it is indexed, and the jobs for all of it wait.
    before = stores.reconcile()
    assert (before["reasons"]["missing in target"], before["staged"], before["waiting"]) == (400, 0, 400)
    stores.work_at_once()
    assert stores.agree()

    for id_ in ids[:100]:
        stores.index.remove(id_)
    for id_ in ids[100:200]:
        stores.index.write(id_, Entry("module.altered", "Something else."), started_at=0.0)
    for id_ in range(1_000_000, 1_000_100):
        stores.index.write(id_, Entry("module.orphan", "Nobody has saved this."), started_at=0.0)
    query(database_url, "DELETE FROM documents WHERE id = ANY (%s)", ids[200:250])
    found = stores.reconcile("--report", str(tmp_path / "report"))
    assert found["reasons"] == {
        "missing in target": 100,
        "different in target": 100,
        "deleted at source": 150,
        "up to date": 150,
    }
    assert (found["staged"], found["waiting"]) == (350, 0)
    report = spark.read.parquet(str(tmp_path / "report"))
    assert report.columns == ["id", "reason", "changed"]
    assert {row.id for row in report.where("reason = 'different in target'").collect()} == set(ids[100:200])

    again = stores.reconcile()
    assert (again["reasons"], again["staged"], again["waiting"]) == (found["reasons"], 0, 350)
    stores.work()
    assert stores.agree()
    assert stores.index.search("orphan", 1) == []
    last = stores.reconcile()
    assert last["reasons"] == ALL_THE_SAME | {"up to date": 350}
    assert (last["staged"], last["waiting"], staged(database_url)) == (0, 0, [])


def test_a_key_is_skipped_while_its_job_waits_but_not_once_claimed(database_url: str, redis_url: str) -> None:
    # The first one stages the job's number as its only argument: 0, 1, 2, 3.
    ids = stage_jobs(database_url, 4, job=JOB)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
    claim = "UPDATE inflight_jobs SET lease_expires_at = now() + '1 hour' WHERE id = %s"
    retry = "UPDATE inflight_jobs SET next_run_at = now() + '1 hour' WHERE id = %s"
    query(database_url, claim, ids[1])
    query(database_url, retry, ids[2])
    with psycopg.connect(database_url) as connection:
        stage(connection, JOB, [4])
        stage(connection, JOB, [5], {"how": "otherwise"})
        stage(connection, JOB, [8], expires_at=datetime.now(UTC) + timedelta(days=1))
        stage(connection, "m.g", [6])
        stage(connection, JOB, [7, 8])
    others = {(JOB, (4,)), (JOB, (5,)), (JOB, (8,)), ("m.g", (6,)), (JOB, (7, 8))}

    dry = outcome(database_url, *MISSING_1_TO_8, "--dry-run")
    found = outcome(database_url, *MISSING_1_TO_8)
    assert (dry["staged"], dry["waiting"]) == (found["staged"], found["waiting"]) == (5, 3)
    new = [(name, tuple(args)) for name, args in staged(database_url)]
    for each in others:
        new.remove(each)
    # 2 waits for its retry, 3 in Redis, 4 in staged_jobs.
    assert new == [(JOB, (id_,)) for id_ in (1, 5, 6, 7, 8)]


class WorkedMeanwhile(DataSource):
    """A target without rows. While it is read, a worker finishes all jobs that waited."""

    @classmethod
    def name(cls) -> str:
        return "worked_meanwhile"

    def schema(self) -> str:
        return "id int, version int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _WorkedMeanwhileReader(self.options["url"])


class _WorkedMeanwhileReader(DataSourceReader):
    def __init__(self, url: str) -> None:
        self._url = url

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("DELETE FROM staged_jobs")
        yield from []


def test_a_job_finished_during_the_read_does_not_exclude_its_key(
    database_url: str, spark: SparkSession
) -> None:
    with psycopg.connect(database_url) as connection:
        stage(connection, JOB, [1])
    spark.dataSource.register(WorkedMeanwhile)
    target = ["--target", "worked_meanwhile:", "--target-option", f"url={database_url}"]
    outcome(database_url, "--source", "sql:SELECT 1 AS id, 1 AS version", *target, *BY_VERSION)
    assert staged(database_url) == [(JOB, [1])]


class Ordered(DataSource):
    """A side that says on disk when it has been read, and whether it was before another one had been."""

    @classmethod
    def name(cls) -> str:
        return "ordered"

    def schema(self) -> str:
        return "id int, version int"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _OrderedReader(self.options["path"], self.options.get("after"))


class _OrderedReader(DataSourceReader):
    def __init__(self, path: str, after: str | None) -> None:
        self._read = Path(path)
        self._after = Path(after) if after else None

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        if self._after is not None and not self._after.exists():
            # Not raised: Spark would try again, and then it is not too early any more.
            self._read.with_suffix(".early").touch()
        # Enough to take longer than the start of another task.
        for id_ in range(300_000):
            yield id_, 1
        self._read.touch()


def test_the_target_is_read_before_the_source(database_url: str, tmp_path: Path, spark: SparkSession) -> None:
    spark.dataSource.register(Ordered)
    target, source = tmp_path / "target", tmp_path / "source"
    words = ["--source", f"ordered:{source}", "--target", f"ordered:{target}", *BY_VERSION]
    found = outcome(database_url, *words, "--source-option", f"after={target}")
    assert found["reasons"] == ALL_THE_SAME | {"up to date": 300_000}
    assert sorted(tmp_path.iterdir()) == [source, target]


def test_deleted_keys_are_only_counted_without_a_delete_job(database_url: str) -> None:
    words = [*sides("(1, 1), (2, 5)", "(2, 4), (3, 1)"), *BY_VERSION]
    only_counted = run(database_url, *words, "--tag", "sync")
    assert "there is no --delete-job" in only_counted.output
    assert staged(database_url) == [(JOB, [1]), (JOB, [2])]
    delete = ["--delete-job", "m.remove", "--max-deletes", "1"]
    found = outcome(database_url, *words, *delete, "--queue", "bulk", "--priority", "7")
    assert (found["staged"], found["waiting"]) == (1, 2)
    columns = "job_name, job_args, queue, priority, tag"
    rows = query(database_url, f"SELECT {columns} FROM staged_jobs ORDER BY job_name, job_args")
    assert rows == [
        (JOB, [1], "default", 100, "sync"),
        (JOB, [2], "default", 100, "sync"),
        ("m.remove", [3], "bulk", 7, None),
    ]


ONE_OF_TEN_IS_LEFT = [
    *sides("(1, 1)", ", ".join(f"({id_}, 1)" for id_ in range(1, 11))),
    *(*BY_VERSION, "--delete-job", "m.remove"),
]


@pytest.mark.parametrize("most", [None, "8", "89.9%"])
def test_a_run_that_would_delete_too_many_keys_stages_nothing(database_url: str, most: str | None) -> None:
    words = [*ONE_OF_TEN_IS_LEFT, *(["--max-deletes", most] if most else [])]
    reason = (
        f"the source lacks 9 of the target's 10 keys, more than --max-deletes {most or '10%'} allows: "
        "check that the source is complete, or allow more"
    )
    assert refusal(database_url, *words, "--run-id", "nightly") == f"Error: {reason}; nothing was staged"
    assert f"a run would stage nothing: {reason}" in run(database_url, *words, "--dry-run").output
    assert outcome(database_url, *words, "--max-deletes", "9", "--run-id", "nightly")["staged"] == 9


@pytest.mark.parametrize("most", ["9", "90%", "100%"])
def test_deletes_up_to_the_bound_are_staged(database_url: str, most: str) -> None:
    assert outcome(database_url, *ONE_OF_TEN_IS_LEFT, "--max-deletes", most)["staged"] == 9


def test_an_empty_source_deletes_nothing_by_default(database_url: str) -> None:
    empty = ["--source", "sql:SELECT 1 AS id, 1 AS version WHERE false"]
    refused = refusal(database_url, *ONE_OF_TEN_IS_LEFT, *empty)
    assert "the source lacks 10 of the target's 10 keys" in refused
    # One key alone, too.
    refused = refusal(
        database_url, *ONE_OF_TEN_IS_LEFT, *empty, "--target", "sql:SELECT 1 AS id, 1 AS version"
    )
    assert "the source lacks 1 of the target's 1 keys" in refused


@pytest.mark.parametrize("most", ["", "-1", "1.5", "many", "1 %", "%"])
def test_a_bound_that_is_not_a_number_is_refused(database_url: str, most: str) -> None:
    assert f"such as 500 or 1%, not {most!r}" in refusal(
        database_url, *ONE_OF_TEN_IS_LEFT, "--max-deletes", most
    )


def test_a_key_may_have_several_columns_named_differently_on_each_side(database_url: str) -> None:
    source = "sql:SELECT * FROM (VALUES ('a''\"ä', 1::int2, 1), ('b', 1, 1)) AS rows (tenant, id, version)"
    target = "sql:SELECT 'b' AS customer, 1::int8 AS document, 2::int8 AS seen"
    words = ["--key", "tenant = customer, id=document", "--version", "version=seen"]
    found = outcome(database_url, "--source", source, "--target", target, *words)
    assert found["reasons"] == ALL_THE_SAME | {"missing in target": 1, "different in target": 1}
    assert staged(database_url) == [(JOB, ["a'\"ä", 1]), (JOB, ["b", 1])]
    assert outcome(database_url, "--source", source, "--target", target, *words)["waiting"] == 2


def test_null_is_a_version_like_any_other(database_url: str) -> None:
    rows = sides("(1, NULL), (2, NULL), (3, 1)", "(1, NULL), (2, 1), (3, NULL::int)")
    assert outcome(database_url, *rows, *BY_VERSION, "--dry-run")["reasons"] == ALL_THE_SAME | {
        "different in target": 2,
        "up to date": 1,
    }


def test_columns_are_compared_pairwise_and_nulls_are_equal(database_url: str) -> None:
    ours = "(1, 'a', NULL), (2, NULL, NULL), (3, 'ab', 'c'), (4, '', NULL), (5, 'a', 'b')"
    theirs = "(1, NULL, 'a'), (2, NULL, NULL), (3, 'a', 'bc'), (4, NULL, ''), (5, 'a', 'b')"
    rows = sides(ours, theirs, "id, name, text")
    outcome(database_url, *rows, "--key", "id", "--compare", "name,text")
    assert staged(database_url) == [(JOB, [1]), (JOB, [3]), (JOB, [4])]


def test_the_columns_that_differ_are_reported_for_each_key_and_counted(
    spark: SparkSession, database_url: str, tmp_path: Path
) -> None:
    ours = "(1, 'a', 'x'), (2, 'b', NULL), (3, 'c', 'z'), (4, 'd', 'd'), (5, 'e', 'e')"
    theirs = "(1, 'a', 'x'), (2, 'b', 'y'), (3, 'C', NULL), (4, 'D', 'd'), (6, 'f', 'f')"
    rows = sides(ours, theirs, "id, name, text")
    words = [*rows, "--key", "id", "--compare", "name,text", "--report", str(tmp_path / "report")]
    found = outcome(database_url, *words)
    assert found["changed"] == {"name": 2, "text": 2}
    report = {row.id: row.changed for row in spark.read.parquet(str(tmp_path / "report")).collect()}
    assert report == {2: ["text"], 3: ["name", "text"], 4: ["name"], 5: None, 6: None}


def test_a_report_contains_the_versions_of_both_sides(
    spark: SparkSession, database_url: str, tmp_path: Path
) -> None:
    words = [*sides("(1, 5), (2, 1)", "(1, 4)"), *BY_VERSION, "--report", str(tmp_path / "report")]
    assert outcome(database_url, *words)["changed"] == {"version": 1}
    report = spark.read.parquet(str(tmp_path / "report")).orderBy("id")
    assert report.columns == ["id", "reason", "changed", "source_version", "target_version"]
    assert [tuple(row) for row in report.collect()] == [
        (1, "different in target", ["version"], 5, 4),
        (2, "missing in target", None, 1, None),
    ]


def parquet(spark: SparkSession, path: Path, query: str) -> str:
    """Write the rows of a query on Spark as Parquet."""
    spark.sql(query).write.parquet(str(path))
    return str(path)


LONG = "12345678901234567890123456789012345678"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("decimal(10,2)", "decimal(12,4)"),
        ("decimal(38,0)", "decimal(38,30)"),
        ("decimal(38,30)", "int"),
        ("bigint", "decimal(5,1)"),
    ],
)
def test_decimals_are_compared_by_value_whatever_their_precision_and_scale(
    spark: SparkSession, database_url: str, tmp_path: Path, source: str, target: str
) -> None:
    rows = (
        "SELECT id, CAST(price AS {}) AS price "
        "FROM VALUES (1, {}), (2, 0), (3, -7), (4, NULL), (5, {}) AS r(id, price)"
    )
    ours = parquet(spark, tmp_path / "ours.parquet", rows.format(source, 3, 1))
    theirs = parquet(spark, tmp_path / "theirs.parquet", rows.format(target, 3, 2))
    outcome(database_url, "--source", ours, "--target", theirs, "--key", "id", "--compare", "price")
    assert staged(database_url) == [(JOB, [5])]


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize(
    ("scale", "equal", "different"),
    [
        (8, {"1.10": "1.1", "-0.50": "-0.5", "-0.0": "0", "0.000000100": "0.0000001"}, {"2.5": "2.51"}),
        (0, {f"{LONG}.00": LONG, "100": "100"}, {f"{LONG}9": LONG, f"{LONG}.1": LONG, "NaN": "1", "-3": "3"}),
    ],
)
def test_postgres_numerics_and_parquet_decimals_are_compared_by_value(
    spark: SparkSession,
    database_url: str,
    tmp_path: Path,
    scale: int,
    equal: dict[str, str],
    different: dict[str, str],
    ansi: str,
) -> None:
    pairs = list(enumerate({**equal, **different}.items()))
    ours = ", ".join(f"({id_}, '{numeric}'::numeric)" for id_, (numeric, _) in pairs)
    theirs = ", ".join(f"({id_}, '{number}')" for id_, (_, number) in pairs)
    decimals = f"SELECT id, CAST(price AS decimal(38,{scale})) AS price FROM VALUES {theirs} AS r(id, price)"
    target = parquet(spark, tmp_path / "target.parquet", decimals)
    source = f"sql:SELECT * FROM (VALUES {ours}) AS rows (id, price)"
    with temporarily(spark, {"spark.sql.ansi.enabled": ansi}):
        outcome(database_url, "--source", source, "--target", target, "--key", "id", "--compare", "price")
    assert staged(database_url) == [(JOB, [id_]) for id_, _ in pairs[len(equal) :]]


def test_decimal_keys_may_differ_in_scale_but_never_match_text(
    spark: SparkSession, database_url: str, tmp_path: Path
) -> None:
    rows = "SELECT CAST(id AS {}) AS id, 1 AS version FROM VALUES ('1.5'), ('2') AS r(id)"
    ours = parquet(spark, tmp_path / "ours.parquet", rows.format("decimal(3,1)") + " WHERE id < '2'")
    theirs = parquet(spark, tmp_path / "theirs.parquet", rows.format("decimal(12,4)"))
    delete = ["--delete-job", "m.g", "--max-deletes", "1"]
    words = ["--source", ours, "--target", theirs, *delete, *BY_VERSION]
    assert outcome(database_url, *words)["reasons"]["up to date"] == 1
    assert staged(database_url) == [("m.g", [2])]
    query(database_url, "DELETE FROM staged_jobs")
    text = "sql:SELECT 2::numeric AS id, 1 AS version"
    refused = refusal(database_url, "--source", text, "--target", theirs, *BY_VERSION)
    assert "id is string in the source and id is decimal(12,4) in the target; cast one of them" in refused


def test_a_side_may_have_columns_that_are_computed_for_the_comparison(database_url: str) -> None:
    rows = sides("(1, 'A@x', '1'), (2, 'B@x', '2')", "(1, 'a@x', '1'), (2, 'c@x', '2')", "id, email, number")
    words = ["--source-column", "email=lower(email)", "--source-column", "count=cast(number as int) + 0"]
    words += ["--target-column", "n=length(email) - 3 + id", "--compare", "email,count=n", "--key", "id"]
    found = outcome(database_url, *rows, *words)
    assert found["changed"] == {"email": 1, "count=n": 0}
    assert staged(database_url) == [(JOB, [2])]


@pytest.mark.parametrize("expression", ["lower(nowhere)", "lower(", "sum(version)", ""])
def test_an_expression_that_spark_refuses_is_named(database_url: str, expression: str) -> None:
    words = [*sides("(1, 1)", "(1, 1)"), *BY_VERSION, "--target-column", f"version={expression}"]
    refused = refusal(database_url, *words)
    assert (
        f"--target-column version={expression} is not an expression on the side's columns: Spark: " in refused
    )


def test_nested_values_are_compared_with_their_nulls_and_boundaries(
    spark: SparkSession, database_url: str, tmp_path: Path
) -> None:
    kinds = "id int, one struct<a:string,b:string>, many array<array<int>>"
    ours = [(1, (None, "x"), [[1], [2]]), (2, ("x", None), [[1, None]]), (3, (None, None), [[1], []])]
    theirs = [(1, ("x", None), [[1], [2]]), (2, ("x", None), [[None, 1]]), (3, (None, None), [[1], []])]
    words = []
    for side, rows in (("source", ours), ("target", theirs)):
        spark.createDataFrame(rows, kinds).write.parquet(str(tmp_path / f"{side}.parquet"))
        words += [f"--{side}", str(tmp_path / f"{side}.parquet")]
    outcome(database_url, *words, "--key", "id", "--compare", "one,many")
    assert staged(database_url) == [(JOB, [1]), (JOB, [2])]


@pytest.mark.parametrize(
    ("source", "target", "reason"),
    [
        ("(1, 1), (1, 2)", "(1, 1)", "1, 2 times in the source and 1 times in the target"),
        ("(1, 1)", "(3, 1), (3, 1)", "3, 0 times in the source and 2 times in the target"),
        (
            "(1, 1), (NULL, 1)",
            "(1, 1)",
            "1 in the source and 0 in the target have null in id; complete them, or leave them out by --on-null skip",
        ),
        ("('1', 1)", "(1, 1)", "id is string in the source and id is int in the target"),
    ],
)
def test_an_invalid_key_is_refused(database_url: str, source: str, target: str, reason: str) -> None:
    assert reason in refusal(database_url, *sides(source, target), *BY_VERSION)


def test_rows_without_a_key_are_skipped_and_counted_on_request(
    spark: SparkSession, database_url: str, tmp_path: Path
) -> None:
    rows = sides(
        "(1, 1, 1), (1, NULL, 1), (NULL, 2, 1), (2, 2, 1)", "(1, 1, 1), (1, NULL, 1)", "a, b, version"
    )
    words = [*rows, "--key", "a,b", "--version", "version"]
    words += ["--on-null", "skip", "--report", str(tmp_path / "report")]
    shown = run(database_url, *words)
    assert "rows without a key, skipped: 2 in the source and 1 in the target" in shown.output
    assert staged(database_url) == [(JOB, [2, 2])]
    assert spark.read.parquet(str(tmp_path / "report")).count() == 1
    assert outcome(database_url, *words[:-2])["skipped"] == {"source": 2, "target": 1}


def test_a_duplicate_key_beyond_pythons_time_range_is_named(
    spark: SparkSession, database_url: str, tmp_path: Path
) -> None:
    rows = spark.sql("SELECT timestamp '+12000-01-01 00:00:00' AS id, 1 AS version FROM range(2)")
    rows.write.parquet(str(tmp_path / "rows"))
    words = ["--source", str(tmp_path / "rows"), "--target", str(tmp_path / "rows"), *BY_VERSION]
    assert "such as +12000-01-01 00:00:00, 2 times in the source" in refusal(database_url, *words)


def test_a_column_that_is_not_there_is_named(database_url: str) -> None:
    words = [*sides("(1, 1)", "(1, 1)"), "--key", "id", "--version", "version=etag"]
    assert "the target has no column 'etag'; it has id, version" in refusal(database_url, *words)


def test_a_dry_run_stages_nothing_and_notes_no_run(database_url: str) -> None:
    result = run(database_url, *MISSING_1_TO_8, "--dry-run")
    assert result.exit_code == 0
    assert "missing in target    8" in result.output
    assert "8 jobs would be staged; nothing was" in result.output
    assert staged(database_url) == query(database_url, "SELECT FROM bulk_runs") == []


def test_the_same_run_again_stages_nothing(database_url: str) -> None:
    words = [*MISSING_1_TO_8, "--run-id", "nightly"]
    assert outcome(database_url, *words)["staged"] == 8
    query(database_url, "DELETE FROM staged_jobs")
    again = run(database_url, *words)
    assert "run nightly had already staged its 8 jobs" in again.output
    assert staged(database_url) == []


def test_a_concurrent_run_for_the_same_job_is_refused(database_url: str) -> None:
    with psycopg.connect(database_url) as other:
        other.execute("SELECT pg_advisory_lock(1785684587, hashtext('m.remove'))")
        line = refusal(database_url, *MISSING_1_TO_8, "--delete-job", "m.remove")
        assert "another reconcile that stages m.remove is under way" in line


def test_an_existing_report_is_not_overwritten(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "report").mkdir()
    line = refusal(database_url, *MISSING_1_TO_8, "--report", str(tmp_path / "report"))
    assert "already exists; --report needs a new path" in line


def test_the_report_of_a_failed_run_is_overwritten_by_its_next_attempt(
    spark: SparkSession, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise DrainError("no luck")

    words = [*MISSING_1_TO_8, "--run-id", "nightly", "--report", str(tmp_path / "report")]
    with monkeypatch.context() as patch:
        patch.setattr("drain.pipeline.reconcile._stage", fail)
        assert refusal(database_url, *words) == "Error: no luck"
    assert outcome(database_url, *words)["staged"] == 8
    assert spark.read.parquet(str(tmp_path / "report")).count() == 8


def test_a_job_that_cannot_be_staged_is_refused_before_anything_is_read(database_url: str) -> None:
    line = refusal(
        database_url, "--source", "sql:no query", "--target", "sql:no query", *BY_VERSION, "--queue", " "
    )
    assert "is not a queue name" in line


@pytest.mark.parametrize(
    "words", [[], ["--version", "a", "--compare", "b"], ["--version", "a,b"], ["--compare", "a,"]]
)
def test_wrong_usage_is_reported(words: list[str]) -> None:
    result = run("postgresql://nowhere", "--source", "a.csv", "--target", "b.csv", "--key", "id", *words)
    assert result.exit_code == click.UsageError.exit_code
