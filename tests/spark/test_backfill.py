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
from drain.pipeline import copying
from drain.tables import bulk
from tests.helpers import all_with, in_a_hurry, query, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.every_python

Backfill = Callable[..., Result]

JOBS = "SELECT job_name, job_args, job_kwargs, queue, priority, tag FROM staged_jobs ORDER BY job_args"


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


def test_the_jobs_have_the_given_options(database_url: str, backfill: Backfill, documents: Path) -> None:
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
def test_any_spark_format_works_and_a_directorys_format_is_detected(
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


def test_a_postgres_query_can_be_a_source(database_url: str, backfill: Backfill) -> None:
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
def test_a_time_outside_the_calendar_is_refused(database_url: str, backfill: Backfill, kind: str) -> None:
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
def test_an_unreadable_line_fails_the_run_unless_permitted(
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


def test_repeating_a_run_under_the_same_name_does_nothing(
    database_url: str, backfill: Backfill, documents: Path
) -> None:
    first = backfill(documents, "--args", "id", "--run-id", "spring")
    assert (first.exit_code, first.stderr) == (0, "run spring\n")
    assert first.stdout.startswith("run spring has staged 3 jobs in ")
    again = backfill(documents, "--args", "id", "--run-id", "spring")
    assert (again.exit_code, again.stdout) == (
        0,
        "run spring had already staged its 3 jobs; nothing was staged\n",
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


def test_a_run_in_progress_in_another_process_is_refused(
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


def test_jobs_come_due_at_the_requested_rate(database_url: str, backfill: Backfill, documents: Path) -> None:
    assert backfill(documents, "--args", "id", "--max-rows-per-second", "2").exit_code == 0
    waits = "SELECT date_part('second', scheduled_at - staged_at)::int FROM staged_jobs ORDER BY 1"
    assert query(database_url, waits) == [(0,), (0,), (1,)]


@pytest.mark.parametrize(
    ("source", "options", "code", "words"),
    [
        ("{}", ["--args", "nope"], 1, "the source has no column 'nope'; it has at, author, id, price, tags"),
        ("{}", ["--args", "id", "--where", "nope = 1"], 1, "`nope` cannot be resolved"),
        ("{}", ["--args", "id", "--where", "id ="], 1, "Syntax error"),
        ("{}", ["--args", "id", "--kwargs", "user"], 2, "--kwargs must be NAME=VALUE, not 'user'"),
        ("{}", ["--args", "id", "--queue", "a b"], 1, "'a b' is not a queue name"),
        ("{}", ["--args", "id", "--job", " "], 1, "the rule 'job name must not be empty'"),
        ("{}", ["--args", "id", "--run-id", ""], 1, "run id must be a word of up to 255 characters"),
        ("{}", ["--args", "id", "--run-id", "a\nb"], 1, "run id must be a word of up to 255 characters"),
        ("{}", ["--args", "id", "--max-rows-per-second", "0"], 2, "is not in the range x>0"),
        (
            "{}",
            ["--args", "id", "--max-rows-per-second", "1e-300"],
            1,
            "the last of them would come due after",
        ),
        ("{}", ["--args", "id", "--conf", "spark"], 2, "--conf must be NAME=VALUE, not 'spark'"),
        (
            "{}",
            ["--args", "id", "--register", "nope:Nope"],
            1,
            "the data source 'nope:Nope' cannot be imported",
        ),
        ("{}", ["--args", "id", "--register", "json:loads"], 1, "'json:loads' is not a data source"),
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
def test_bad_input_is_reported_in_one_line_and_stages_nothing(
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


def test_a_row_that_breaks_a_rule_fails_the_run_and_is_named(
    database_url: str, backfill: Backfill, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"id": "x" * size}) + "\n" for size in (1, 2 * 1024**2, 3)))
    result = backfill(path, "--args", "id")
    assert result.exit_code == 1
    assert "Error: the arguments exceed 1 MiB: '[\"xxx" in result.stderr
    assert len(result.stderr) < 1000
    assert query(database_url, "SELECT FROM staged_jobs") == []


def test_progress_says_how_many_rows_and_how_fast() -> None:
    assert str(copying.Step(0, 0.0)) == "0 rows copied, 0 a second"
    assert str(copying.Step(50_000, 0.5)) == "50,000 rows copied, 100,000 a second"


RUN = ["--job", "tests.act", "--args", "id", "--run-id", "ended"]


SLOW = """
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM pg_sleep(0.001); RETURN NEW; END$$;
CREATE TRIGGER slow BEFORE INSERT ON staged_jobs FOR EACH ROW EXECUTE FUNCTION slow();
SELECT
"""


@pytest.fixture
def many(database_url: str, tmp_path: Path) -> str:
    """A file whose rows are copied for a minute."""
    query(database_url, SLOW)
    path = tmp_path / "many.csv"
    path.write_text("id\n" + "\n".join(map(str, range(60_000))))
    return str(path)


def until_it_copies(database_url: str) -> None:
    copying = "SELECT FROM pg_stat_progress_copy WHERE tuples_processed > 0 AND datname = current_database()"
    wait_until(lambda: query(database_url, copying), 300)


def hurry(database_url: str) -> None:
    """Copy no longer slowly; what a killed process has sent may still be copied."""
    wait_until(
        lambda: (
            not query(database_url, "SELECT FROM pg_stat_progress_copy WHERE datname = current_database()")
        )
    )
    query(database_url, "DROP FUNCTION slow CASCADE; SELECT")


def assert_it_can_be_repeated(database_url: str, backfill: Backfill, documents: Path) -> None:
    hurry(database_url)
    again = backfill(documents, "--args", "id", "--run-id", "ended")
    assert again.exit_code == 0, again.output
    assert query(database_url, "SELECT count(*) FROM staged_jobs") == [(3,)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_nothing_and_can_be_repeated(
    database_url: str, backfill: Backfill, documents: Path, many: str, number: signal.Signals, code: int
) -> None:
    def interrupt() -> None:
        until_it_copies(database_url)
        os.kill(os.getpid(), number)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    result = backfill(many, *RUN[2:])
    interrupter.join()
    assert result.exit_code == code
    assert "Traceback" not in result.output
    assert query(database_url, "SELECT FROM staged_jobs UNION ALL SELECT FROM bulk_runs") == []
    assert_it_can_be_repeated(database_url, backfill, documents)


def test_a_killed_run_stages_nothing_and_can_be_repeated(
    database_url: str, backfill: Backfill, documents: Path, many: str
) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from drain.__main__ import main; main()",
            "backfill",
            many,
            *RUN,
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


@pytest.fixture
def half(database_url: str, tmp_path: Path) -> Path:
    """Files of 9,000 ids, of which a run in several commits has staged a part when it was killed."""
    query(database_url, SLOW)
    path = tmp_path / "half"
    path.mkdir()
    for number in range(3):
        ids = range(number * 3_000, (number + 1) * 3_000)
        (path / f"{number}.csv").write_text("id\n" + "\n".join(f"{each:07}" for each in ids))
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from drain.__main__ import main; main()", "backfill", str(path), *RUN),
            *("--commit-every", "500", "--master", "local[1]"),
        ],
        env=os.environ | in_a_hurry() | {"DRAIN_DATABASE_URL": database_url, "MARK": database_url},
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: query(database_url, "SELECT FROM bulk_runs WHERE rows > 0"), 120)
    process.kill()
    process.wait(60)
    wait_until(lambda: not all_with("MARK", database_url))
    hurry(database_url)
    return path


def test_a_killed_run_in_several_commits_resumes_where_it_stopped(
    database_url: str, backfill: Backfill, half: Path
) -> None:
    ((before, complete),) = query(database_url, "SELECT rows, committed_at IS NOT NULL FROM bulk_runs")
    assert 0 < before < 9_000
    assert not complete
    assert query(database_url, "SELECT count(*) FROM staged_jobs") == [(before,)]
    result = backfill(half, *RUN[2:], "--commit-every", "500")
    assert result.exit_code == 0, result.output
    assert query(
        database_url,
        "SELECT count(*), count(DISTINCT job_args), count(DISTINCT xmin::text) > 2 FROM staged_jobs",
    ) == [(9_000, 9_000, True)]
    assert backfill(half, *RUN[2:]).output.endswith("had already staged its 9,000 jobs; nothing was staged\n")


def test_resuming_a_run_with_a_changed_file_is_refused(
    database_url: str, backfill: Backfill, half: Path
) -> None:
    before = query(database_url, "SELECT count(*) FROM staged_jobs")
    file = half / "0.csv"
    file.write_text(file.read_text() + "\n9001")
    result = backfill(half, *RUN[2:], "--commit-every", "500")
    assert result.exit_code == 1
    assert "the files of run ended have changed since it staged its first jobs" in result.stderr
    assert query(database_url, "SELECT count(*) FROM staged_jobs") == before


def test_a_run_resumes_even_if_its_skipped_rows_have_changed(
    database_url: str, backfill: Backfill, half: Path
) -> None:
    """An unfinished partition is read again as a whole: no row is mistaken for another."""
    query(database_url, "UPDATE bulk_runs SET plan = NULL RETURNING 1")
    ((before,),) = query(database_url, "SELECT rows FROM bulk_runs")
    result = backfill(half, *RUN[2:], "--where", "CAST(id AS bigint) % 2 = 0")
    assert result.exit_code == 0, result.output
    ((jobs, distinct, odd),) = query(
        database_url,
        "SELECT count(*), count(DISTINCT job_args), count(*) FILTER (WHERE (job_args ->> 0)::int % 2 = 1) "
        "FROM staged_jobs",
    )
    assert jobs == distinct == before + (9_000 - before) / 2
    assert odd == before / 2


def test_a_run_can_be_resumed_with_a_reject_file_and_more_cores(
    database_url: str, backfill: Backfill, half: Path
) -> None:
    result = backfill(half, *RUN[2:], "--reject", os.devnull, "--max-rejects", "3")
    assert result.exit_code == 0, result.output
    assert query(database_url, "SELECT count(*), count(DISTINCT job_args) FROM staged_jobs") == [
        (9_000, 9_000)
    ]


def test_the_same_files_in_another_order_are_another_source(spark: SparkSession, tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{name}.csv") for name in "ab"]
    for path in paths:
        Path(path).write_text("1\n2\n")
    there, back = (spark.read.csv(given) for given in (paths, paths[::-1]))
    assert copying._fingerprint(there) == copying._fingerprint(spark.read.csv(paths)) != ""
    assert copying._fingerprint(there) != copying._fingerprint(back)


def test_only_directories_of_killed_drivers_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "gettempdir", lambda: str(tmp_path))
    dead = subprocess.Popen(["true"])
    dead.wait()
    for pid in (dead.pid, os.getpid()):
        (tmp_path / f"drain-copy-{pid}-x").mkdir()
    copying._remove_left()
    assert [each.name for each in tmp_path.iterdir()] == [f"drain-copy-{os.getpid()}-x"]
