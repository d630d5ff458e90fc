"""`drain backfill`: a job for each row of a source, in one commit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from click.testing import CliRunner, Result

from drain.__main__ import main
from drain.tables import bulk
from pipeline import progress
from tests.helpers import all_with, in_a_hurry, query, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.every_python

Backfill = Callable[..., Result]

JOBS = "SELECT job_name, job_args, job_kwargs, queue, priority, tag FROM staged_jobs ORDER BY job_args"
LEFT = "SELECT FROM bulk_side_tables UNION ALL SELECT FROM pg_class WHERE relname ~ '^bulk_[0-9a-f]{32}$'"


@pytest.fixture
def backfill(spark: SparkSession, database_url: str) -> Backfill:
    def act(source: str | Path, *options: str) -> Result:
        words = ["backfill", str(source), "--database-url", database_url, "--job", "tests.act", *options]
        return CliRunner().invoke(main, words, catch_exceptions=False)

    return act


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "documents.jsonl"
    rows = [
        {"id": 1, "author": "ann", "price": 1.5, "tags": ["a", "b"], "at": {"city": "Bonn"}},
        {"id": 2, "author": None, "price": None, "tags": [], "at": {"city": 'ż"'}},
        {"id": 3, "author": "bob", "price": 2.0, "tags": None, "at": None},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_each_row_becomes_a_job_whose_arguments_keep_their_types(
    database_url: str, backfill: Backfill, documents: Path
) -> None:
    result = backfill(
        documents,
        "--args",
        "id,author,price,tags,at.city",
        "--kwargs",
        "user=author, where=at",
        "--on-null",
        "stage",
    )
    assert result.exit_code == 0, result.output
    assert query(database_url, JOBS) == [
        (
            "tests.act",
            [1, "ann", 1.5, ["a", "b"], "Bonn"],
            {"user": "ann", "where": {"city": "Bonn"}},
            "default",
            100,
            None,
        ),
        (
            "tests.act",
            [2, None, None, [], 'ż"'],
            {"user": None, "where": {"city": 'ż"'}},
            "default",
            100,
            None,
        ),
        ("tests.act", [3, "bob", 2.0, None, None], {"user": "bob", "where": None}, "default", 100, None),
    ]


def test_the_jobs_are_as_the_options_say(database_url: str, backfill: Backfill, documents: Path) -> None:
    options = [
        "--args",
        "id",
        "--queue",
        "bulk",
        "--priority",
        "7",
        "--tag",
        "spring",
        "--where",
        "author IS NOT NULL",
    ]
    assert backfill(documents, *options).exit_code == 0
    assert query(database_url, JOBS) == [
        ("tests.act", [1], {}, "bulk", 7, "spring"),
        ("tests.act", [3], {}, "bulk", 7, "spring"),
    ]


@pytest.mark.parametrize("spelled", ["parquet of days", "parquet", "CSV:", "json", "orc:"])
def test_any_format_of_sparks_is_a_source_and_a_directory_is_known_by_its_files(
    spark: SparkSession, database_url: str, backfill: Backfill, tmp_path: Path, spelled: str
) -> None:
    kind, colon, _ = spelled.partition(":")
    kind, _, days = kind.partition(" ")
    rows = spark.createDataFrame([(1, "a,b", 1), (2, "c", 2)], "id bigint, name string, day int")
    writer = rows.write.format(kind).option("header", "true")
    (writer.partitionBy("day") if days else writer).save(str(tmp_path / "rows"))
    source = f"{kind}:{tmp_path / 'rows'}" if colon else tmp_path / "rows"
    types = ["--columns", "id bigint"] if kind == "CSV" else []
    result = backfill(source, "--args", "id,name", *types)
    assert result.exit_code == 0, result.output
    assert query(database_url, "SELECT job_args FROM staged_jobs ORDER BY job_args -> 0") == [
        ([1, "a,b"],),
        ([2, "c"],),
    ]


def test_a_query_on_postgres_is_a_source(database_url: str, backfill: Backfill) -> None:
    result = backfill(
        "sql:SELECT id, 'user ' || id AS name FROM generate_series(1, 3) AS id",
        "--args",
        "id",
        "--kwargs",
        "name=name",
    )
    assert result.exit_code == 0, result.output
    found = query(database_url, "SELECT job_args, job_kwargs FROM staged_jobs ORDER BY job_args")
    assert found == [([number], {"name": f"user {number}"}) for number in (1, 2, 3)]


def test_times_keep_their_microseconds_and_a_comment_may_end_a_query(
    database_url: str, backfill: Backfill
) -> None:
    moment = "2026-01-02 03:04:05.123456"
    result = backfill(
        f"sql:SELECT '{moment}+00'::timestamptz AS a, '{moment}'::timestamp AS b -- both", "--args", "a,b"
    )
    assert result.exit_code == 0, result.output
    expected = ["2026-01-02T03:04:05.123456Z", "2026-01-02T03:04:05.123456"]
    assert query(database_url, "SELECT job_args FROM staged_jobs") == [(expected,)]


@pytest.mark.parametrize("kind", ["timestamptz", "timestamp", "date"])
def test_a_time_that_no_calendar_has_is_refused(database_url: str, backfill: Backfill, kind: str) -> None:
    result = backfill(f"sql:SELECT 'infinity'::{kind} AS until", "--args", "until")
    assert result.exit_code == 1
    assert "column until holds a time outside of the years 1 to 9999" in result.stderr
    assert query(database_url, "SELECT FROM staged_jobs") == []


@pytest.mark.parametrize(
    ("name", "columns", "text"),
    [
        ("rows.jsonl", "id", '{"id": 1}\n{"id": 2\n{"id": 3}\n'),
        ("rows.csv", "id,author", "id,author\n1,ann\n2\n3,bob\n"),
    ],
)
def test_a_line_that_cannot_be_read_fails_the_run_unless_that_is_wanted(
    database_url: str, backfill: Backfill, tmp_path: Path, name: str, columns: str, text: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert backfill(path, "--args", columns).exit_code == 1
    assert query(database_url, "SELECT FROM staged_jobs") == []
    permissive = ["--option", "mode=PERMISSIVE", "--on-null", "stage"]
    assert backfill(path, "--args", columns, *permissive).exit_code == 0


def test_a_dry_run_counts_and_shows_ten_and_stages_nothing(
    database_url: str, backfill: Backfill, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id\n" + "".join(f"{number}\n" for number in range(30)))
    typed = ["--args", "id", "--columns", "id bigint", "--dry-run"]
    result = backfill(path, *typed, "--where", "id < 25", "--queue", "bulk")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        *(f"tests.act  [{number}]" for number in range(10)),
        "...",
        "25 jobs on queue bulk with priority 100; nothing was staged",
    ]
    answer = json.loads(backfill(path, *typed, "--json").stdout)
    assert answer["jobs"] == 30
    assert answer["shown"][0] == {"job_args": [0], "job_kwargs": {}}
    assert query(database_url, "SELECT FROM staged_jobs") == []
    assert query(database_url, "SELECT FROM bulk_runs") == []


def test_a_run_is_named_and_the_same_name_again_does_nothing(
    database_url: str, backfill: Backfill, documents: Path
) -> None:
    first = backfill(documents, "--args", "id", "--run-id", "spring")
    assert (first.exit_code, first.stderr) == (0, "run spring\n")
    assert first.stdout.startswith("run spring has staged 3 jobs in ")
    again = backfill(documents, "--args", "id", "--run-id", "spring")
    assert (again.exit_code, again.stdout) == (
        0,
        "run spring had staged its 3 jobs before; nothing was staged now\n",
    )
    answer = json.loads(backfill(documents, "--args", "id", "--run-id", "spring", "--json").stdout)
    assert {name: answer[name] for name in ("run_id", "jobs", "before")} == {
        "run_id": "spring",
        "jobs": 3,
        "before": True,
    }
    assert query(database_url, "SELECT count(*) FROM staged_jobs") == [(3,)]


def test_two_runs_without_a_name_are_two_runs(database_url: str, backfill: Backfill, documents: Path) -> None:
    assert backfill(documents, "--args", "id").stderr != backfill(documents, "--args", "id").stderr
    assert query(database_url, "SELECT count(*) FROM staged_jobs") == [(6,)]


def test_a_run_that_another_process_has_under_way_is_refused(
    database_url: str, backfill: Backfill, documents: Path
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert bulk.try_to_run(connection, "spring")
        result = backfill(documents, "--args", "id", "--run-id", "spring")
    assert (result.exit_code, result.stderr) == (
        1,
        "run spring\nError: run spring is under way in another process\n",
    )
    assert query(database_url, "SELECT FROM staged_jobs") == []


def test_the_jobs_come_due_at_the_rate_that_is_asked_for(
    database_url: str, backfill: Backfill, documents: Path
) -> None:
    assert backfill(documents, "--args", "id", "--max-rows-per-second", "2").exit_code == 0
    waits = "SELECT date_part('second', scheduled_at - staged_at)::int FROM staged_jobs ORDER BY 1"
    assert query(database_url, waits) == [(0,), (0,), (1,)]


@pytest.mark.parametrize(
    ("source", "options", "code", "words"),
    [
        ("{}", ["--args", "nope"], 1, "the source has no column 'nope'; it has at, author, id, price, tags"),
        ("{}", ["--args", "id", "--where", "nope = 1"], 1, "`nope` cannot be resolved"),
        ("{}", ["--args", "id", "--where", "id ="], 1, "Syntax error"),
        ("{}", ["--args", "id", "--kwargs", "user"], 2, "--kwargs is given as NAME=VALUE, not 'user'"),
        ("{}", ["--args", "id", "--queue", "a b"], 1, "'a b' is not a queue name"),
        ("{}", ["--args", "id", "--job", " "], 1, "the rule 'job name must not be empty'"),
        ("{}", ["--args", "id", "--run-id", ""], 1, "option run_id is missing"),
        ("{}", ["--args", "id", "--run-id", "a\nb"], 1, "run id must be a word of up to 255 characters"),
        ("{}", ["--args", "id", "--max-rows-per-second", "0"], 2, "is not in the range x>0"),
        (
            "{}",
            ["--args", "id", "--max-rows-per-second", "1e-300"],
            1,
            "the last of 3 would come due later than",
        ),
        ("{}", ["--args", "id", "--conf", "spark"], 2, "--conf is given as NAME=VALUE, not 'spark'"),
        (
            "{}",
            ["--args", "id", "--register", "nope:Nope"],
            1,
            "the data source 'nope:Nope' cannot be imported",
        ),
        ("{}", ["--args", "id", "--register", "json:loads"], 1, "'json:loads' is no data source"),
        ("{}", ["--args", "id", "--where", " "], 2, "--where is empty"),
        ("{}x", ["--args", "id"], 1, "cannot detect the format of"),
        ("nothing.parquet", ["--args", "id"], 1, "Path does not exist"),
        ("nope:nothing", ["--args", "id"], 1, "nope"),
        (
            "sql:SELECT id FROM nope",
            ["--args", "id"],
            1,
            'PostgreSQL refused: relation "nope" does not exist',
        ),
        ("sql:", ["--args", "id"], 1, "option query is missing"),
    ],
)
def test_bad_input_is_one_clear_line_and_stages_nothing(
    database_url: str,
    backfill: Backfill,
    documents: Path,
    source: str,
    options: list[str],
    code: int,
    words: str,
) -> None:
    result = backfill(source.format(documents), *options)
    assert result.exit_code == code
    assert words in result.stderr.splitlines()[-1]
    assert query(database_url, "SELECT FROM staged_jobs UNION ALL SELECT FROM bulk_runs") == []
    wait_until(lambda: not query(database_url, LEFT))


def test_a_row_that_breaks_a_rule_fails_the_run_and_is_named(
    database_url: str, backfill: Backfill, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"id": "x" * size}) + "\n" for size in (1, 2 * 1024**2, 3)))
    result = backfill(path, "--args", "id")
    assert result.exit_code == 1
    assert (
        "a row breaks the rule 'job arguments must not exceed 1 mebibyte': Failing row contains"
        in result.stderr
    )
    assert len(result.stderr) < 1000
    assert query(database_url, "SELECT FROM staged_jobs") == []
    wait_until(lambda: not query(database_url, LEFT))


def test_progress_says_how_far_how_fast_and_how_long_still() -> None:
    assert str(progress.Step(0, 100, 0.0)) == "0 of 100 rows, 0 a second"
    assert (
        str(progress.Step(50_000, 2_000_000, 0.5)) == "50,000 of 2,000,000 rows, 100,000 a second, 20s left"
    )
    assert str(progress.Step(1_000, 200_000, 1.0)) == "1,000 of 200,000 rows, 1,000 a second, 3m 19s left"
    assert str(progress.Step(100, 100, 1.0)) == "100 rows copied; staging them in one commit"


def test_progress_is_what_postgres_has_of_the_rows(
    spark: SparkSession, database_url: str, documents: Path
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        table = bulk.create_side_table(connection, "run")
        assert bulk.copied_rows(connection, "run") == 0
        with connection.cursor().copy(f"COPY {table} (task) FROM STDIN") as copy:
            for _ in range(100_000):
                copy.write("1\n")
            wait_until(
                lambda: query(database_url, "SELECT FROM pg_stat_progress_copy WHERE tuples_processed > 0")
            )
            with psycopg.connect(database_url) as other:
                assert 0 < bulk.copied_rows(other, "run") < 100_000
        wait_until(lambda: bulk.copied_rows(connection, "run") == 100_000)


RUN = ["backfill", "slow:", "--job", "tests.act", "--args", "id", "--run-id", "ended"]
SLOW = ["--register", "tests.slow_source:Slow"]


def until_it_copies(database_url: str) -> None:
    copying = "SELECT FROM pg_stat_progress_copy WHERE tuples_processed > 0 AND datname = current_database()"
    wait_until(lambda: query(database_url, copying), 120)


def assert_it_can_be_repeated(database_url: str, backfill: Backfill, documents: Path) -> None:
    again = backfill(documents, "--args", "id", "--run-id", "ended")
    assert again.exit_code == 0, again.output
    assert query(database_url, "SELECT count(*) FROM staged_jobs") == [(3,)]
    assert query(database_url, LEFT) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_interrupted_half_way_leaves_nothing_and_can_be_repeated(
    database_url: str, backfill: Backfill, documents: Path, number: signal.Signals, code: int
) -> None:
    def interrupt() -> None:
        until_it_copies(database_url)
        os.kill(os.getpid(), number)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    result = backfill("slow:", *RUN[4:], *SLOW)
    interrupter.join()
    assert result.exit_code == code
    assert "Traceback" not in result.output
    assert query(database_url, LEFT) == []
    assert_it_can_be_repeated(database_url, backfill, documents)


def test_a_run_that_is_killed_half_way_stages_nothing_and_can_be_repeated(
    database_url: str, backfill: Backfill, documents: Path
) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from drain.__main__ import main; main()",
            *RUN,
            *SLOW,
            "--master",
            "local[1]",
        ],
        env=os.environ | in_a_hurry() | {"DRAIN_DATABASE_URL": database_url, "MARK": database_url},
        stderr=subprocess.DEVNULL,
    )
    until_it_copies(database_url)
    process.kill()
    process.wait(60)
    wait_until(lambda: not all_with("MARK", database_url))
    assert_it_can_be_repeated(database_url, backfill, documents)
