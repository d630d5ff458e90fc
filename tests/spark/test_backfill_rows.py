"""Rows of CSV, JSON and Parquet: each is staged as its file has it, or fails the run with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from psycopg.conninfo import conninfo_to_dict

from drain.__main__ import main
from tests.helpers import in_a_hurry, query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.every_python

Backfill = Callable[..., Result]


@pytest.fixture
def backfill(spark: SparkSession, database_url: str, tmp_path: Path) -> Backfill:
    """Backfill from a file with this name and content."""

    def act(name: str, content: str | bytes, *options: str) -> Result:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        words = ["backfill", str(path), "--database-url", database_url, "--job", "tests.act", *options]
        return CliRunner().invoke(main, words, catch_exceptions=False)

    return act


def staged(database_url: str) -> list[list[Any]]:
    return [args for (args,) in query(database_url, "SELECT job_args FROM staged_jobs ORDER BY job_args")]


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ('id,note\n1,"say ""hi"" now"\n', (), [["1", 'say "hi" now']]),
        ('id,note\r\n1,"back\\slash"\r\n', (), [["1", "back\\slash"]]),
        ("id,note\n01067,x\noops,y\n", (), [["01067", "x"], ["oops", "y"]]),
        ("id,note\n01067,01067\n", ("--columns", "id int8, note text"), [[1067, "01067"]]),
        ('id,note\n7,""\n', (), [["7", ""]]),
        ('id,note\n1,"a\nb"\n2,c\n', ("--option", "multiLine=true"), [["1", "a\nb"], ["2", "c"]]),
        ("id,note\n7,1.20\n", ("--columns", "note decimal(10, 2), id bigint"), [[7, 1.2]]),
        ("id,note\n7,\n8,x\n", ("--on-null", "skip"), [["8", "x"]]),
        ("id,note\n7,\n", ("--on-null", "stage"), [["7", None]]),
        ("id,note\n7,\\u0000\n", (), [["7", "\\u0000"]]),
        ("id,note\n1,é\n".encode("latin1"), ("--option", "encoding=latin1"), [["1", "é"]]),
        ('id,note\n1,"say \\"hi\\""\n', ("--option", "escape=\\"), [["1", 'say "hi"']]),
        ("id,note\n1,€\n".encode("cp1252"), ("--option", "encoding=cp1252"), [["1", "€"]]),
    ],
)
def test_a_field_of_a_csv_is_staged_as_the_file_has_it(
    database_url: str, backfill: Backfill, text: str | bytes, options: tuple[str, ...], expected: list[Any]
) -> None:
    result = backfill("rows.csv", text, "--args", "id,note", *options)
    assert result.exit_code == 0, result.output
    assert staged(database_url) == expected


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("id,note\n1,x\n500\n", (), "malformed line '500'"),
        ("id,note\n1,x\n500,a,b,c\n", (), "malformed line '500,a,b,c'"),
        ("id,note\n1,x\n500\n", ("--where", "note IS NOT NULL"), "malformed line '500'"),
        ("id,note\n1,x\noops,y\n", ("--columns", "id bigint"), "column id holds 'oops', which is not bigint"),
        (
            "id,note\n1.239,y\n",
            ("--columns", "id decimal(5,2)"),
            "column id holds '1.239', which is not decimal(5,2)",
        ),
        (
            "id,note\n0.12345678901234567,y\n",
            ("--columns", "id decimal(38,16)"),
            "'0.12345678901234567', which is not decimal(38,16)",
        ),
        (
            "id,note\n123456789012345678.129,y\n",
            ("--columns", "id decimal(38,2)"),
            "'123456789012345678.129', which is not decimal(38,2)",
        ),
        ("id,note\n1e400,y\n", ("--columns", "id float8"), "column id holds '1e400', which is not double"),
        ("id,note\n-1e39,y\n", ("--columns", "id float4"), "column id holds '-1e39', which is not float"),
        ("id,note\n0044-03-15 BC,y\n", ("--columns", "id date"), "'0044-03-15 BC', which is not date"),
        (",id\n0,1\n", (), "the first line of a CSV has a name twice or an empty name"),
        ("id,note\n\ufffd,x\n", (), "bytes that are not valid UTF-8"),
        ("id,note\n,y\n", (), "column id is null; give --on-null stage or skip"),
        (
            "id,note\na\0b,y\n",
            (),
            "the arguments hold the character NUL, which PostgreSQL does not store: '[\"a\\u0000b\"] {}'",
        ),
        ("id,note\nx,a\0b\n", ("--kwargs", "note=note"), "the arguments hold the character NUL"),
        (f"id,note\n{'x' * 1024 * 1024},y\n", (), "the arguments exceed 1 MiB: '[\"xxxx"),
        ('id,note\n"",y\n', ("--columns", "id int4"), "column id is null"),
        (
            "id,note\n1,é\n".encode("latin1"),
            (),
            "not valid UTF-8: name the encoding, such as --option encoding=latin1",
        ),
        (
            'id,note\n1,"a\n2,b"\n',
            (),
            "in line '1,\"a': if fields have newlines, give --option multiLine=true",
        ),
        ('id,note\n1,"say \\"hi\\""\n', (), "double it, or name the escape, such as --option escape=\\"),
        (
            "id,note\n1,x\n",
            ("--option", "schema=id int"),
            "no option 'schema' and would ignore it; --columns names",
        ),
        (
            "id,note\n1,x\n",
            ("--columns", "id nope"),
            "columns 'id nope' cannot be read: give names and types",
        ),
        (
            "id,note\n1,x\n",
            ("--columns", "nope int"),
            "the source has no column 'nope' of --columns; it has id, note",
        ),
    ],
)
def test_a_row_that_cannot_be_staged_unchanged_fails_the_run(
    database_url: str, backfill: Backfill, text: str | bytes, options: tuple[str, ...], words: str
) -> None:
    result = backfill("rows.csv", text, "--args", "id", *options)
    assert result.exit_code == 1, result.output
    assert words in result.stderr.splitlines()[-1]
    assert staged(database_url) == []
    assert query(database_url, "SELECT FROM bulk_runs") == []


@pytest.mark.parametrize("columns", ["", "id"])
def test_a_malformed_line_fails_the_run_even_in_unused_columns(
    database_url: str, backfill: Backfill, columns: str
) -> None:
    assert backfill("rows.csv", "id,note\n1,x\n500\n", "--args", columns).exit_code == 1
    assert backfill("rows.jsonl", '{"id": 1}\n{"id": 2\n', "--args", columns).exit_code == 1
    assert staged(database_url) == []


def test_malformed_lines_are_dropped_on_request(database_url: str, backfill: Backfill) -> None:
    text = "id,note\n1,x\n500\n500,a,b,c\n"
    assert backfill("rows.csv", text, "--args", "id", "--option", "mode=DROPMALFORMED").exit_code == 0
    assert staged(database_url) == [["1"]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"id": 1}\n{"id": "oops"}\n', "malformed line"),
        (b'{"id": 1}\n{}\n', "column id is null"),
        (b'{"id": 1, "note": "\xe9"}\n', "bytes that are not valid UTF-8"),
        (b'{"id": 1}{"id": 2}\n', 'each object needs its own line: \'{"id": 1}{"id": 2}\''),
        (b'{"id": 1},{"id": 2}\n', "continues after its object"),
        (b'{"id": 1} oops\n', "continues after its object"),
        (b'{"id": 1, "note": "\\ud83d"}\n', "escape such as \\ud83d that is half of a character"),
    ],
)
def test_an_invalid_json_line_fails_the_run(
    database_url: str, backfill: Backfill, text: bytes, words: str
) -> None:
    result = backfill("rows.jsonl", text, "--args", "id", "--columns", "id bigint, note text")
    assert result.exit_code == 1, result.output
    assert words in result.stderr.splitlines()[-1]
    assert staged(database_url) == []


@pytest.mark.parametrize("number", ["1e400", "-1.8E+0308", "9" * 40])
@pytest.mark.parametrize("columns", ["", "id bigint, a double"])
def test_a_json_number_beyond_the_float_range_fails_the_run(
    database_url: str, backfill: Backfill, number: str, columns: str
) -> None:
    text = f'{{"id": 1, "a": 1.5}}\n{{"id": 2, "a": {number}}}\n'
    result = backfill("rows.jsonl", text, "--args", "id, a", "--columns", columns)
    assert result.exit_code == 1, result.output
    assert "has a number that a float cannot hold" in result.stderr.splitlines()[-1]
    assert staged(database_url) == []


def test_json_numbers_within_the_float_range_are_staged(database_url: str, backfill: Backfill) -> None:
    text = '{"a": 1e308, "note": "1e400"}\n{"a": 1e-400, "note": "\\" 1e999"}\n'
    long = '{"a": 2.5, "note": "1e400' + 50_000 * 'x\\"' + '"}\n'
    assert backfill("rows.jsonl", text + long, "--args", "a").exit_code == 0
    assert sorted(staged(database_url)) == [[0], [2.5], [10**308]]


def test_a_decimal_of_json_is_not_rounded(database_url: str, backfill: Backfill) -> None:
    options = ["--args", "n", "--columns", "n decimal(38,18)"]
    result = backfill("rows.jsonl", '{"n": 0.1234567890123456789}\n', *options)
    assert "column n holds '0.1234567890123456789', which is not decimal(38,18)" in result.stderr
    assert backfill("rows.jsonl", '{"n": 12345678901234567890.123456789}\n', *options).exit_code == 0
    numbers = query(database_url, "SELECT job_args ->> 0 FROM staged_jobs")
    assert numbers == [("12345678901234567890.123456789000000000",)]


@pytest.mark.parametrize(
    "line", ['{"id": "}{"}', '{"id": "},{", "more": [{"a": {}}, {"a": {}}]}', '[{"id": "}{"}]']
)
def test_braces_inside_a_json_line_are_not_a_second_object(backfill: Backfill, line: str) -> None:
    assert backfill("rows.jsonl", f"{line}\n", "--args", "id").exit_code == 0


def test_json_lines_can_have_another_encoding(database_url: str, backfill: Backfill) -> None:
    latin1 = ["--args", "note", "--option", "encoding=latin1"]
    assert backfill("rows.jsonl", '{"note": "é"}\n'.encode("latin1"), *latin1).exit_code == 0
    assert staged(database_url) == [["é"]]


def test_files_whose_headers_differ_fail_the_run(
    database_url: str, backfill: Backfill, tmp_path: Path
) -> None:
    (tmp_path / "other.csv").write_text("note,id\nx,1\n")
    result = backfill("rows.csv", "id,note\n1,x\n", "--args", "id")
    assert result.exit_code == 0, result.output
    words = [
        "backfill",
        f"csv:{tmp_path}/*.csv",
        "--database-url",
        database_url,
        "--job",
        "tests.act",
        "--args",
        "id",
    ]
    assert CliRunner().invoke(main, words, catch_exceptions=False).exit_code == 1
    assert staged(database_url) == [["1"]]


def test_pandas_nanoseconds_are_truncated_to_microseconds(
    database_url: str, backfill: Backfill, tmp_path: Path
) -> None:
    pandas = pytest.importorskip("pandas")
    moments = pandas.to_datetime(["2026-01-02 03:04:05.123456999", "1969-12-31 23:59:59.999999999"])
    frame = pandas.DataFrame({"id": [1, 2], "at": moments, "zoned": moments.tz_localize("UTC")})
    frame["span"] = [[moment] for moment in moments]
    frame.to_parquet(tmp_path / "made.parquet")
    result = backfill("rows.parquet", (tmp_path / "made.parquet").read_bytes(), "--args", "id,at,zoned")
    assert result.exit_code == 0, result.output
    assert staged(database_url) == [
        [1, "2026-01-02T03:04:05.123456", "2026-01-02T03:04:05.123456Z"],
        [2, "1969-12-31T23:59:59.999999", "1969-12-31T23:59:59.999999Z"],
    ]


def test_another_plan_under_a_run_id_is_refused_and_shown(database_url: str, backfill: Backfill) -> None:
    run = ["--run-id", "spring", "--args"]
    assert backfill("rows.csv", "id,note\n1,x\n", *run, "id").exit_code == 0
    assert backfill("rows.csv", "id,note\n1,x\n", *run, "id").exit_code == 0
    result = backfill("rows.csv", "id,note\n1,x\n", *run, "id,note")
    assert result.exit_code == 1
    assert "run spring has staged another plan" in result.stderr
    assert '"args": ["id"]' in result.stderr
    assert '"args": ["id", "note"]' in result.stderr
    query(database_url, "UPDATE bulk_runs SET plan = NULL RETURNING run_id")
    assert backfill("rows.csv", "id,note\n1,x\n", *run, "id,note").exit_code == 0
    assert staged(database_url) == [["1"]]


def test_a_run_that_matched_no_rows_does_not_use_its_id_up(database_url: str, backfill: Backfill) -> None:
    run = ["--run-id", "spring", "--args", "id"]
    result = backfill("rows.csv", "id\n1\n", *run, "--where", "id = '2'")
    assert (result.exit_code, result.stdout[:28]) == (0, "run spring has staged 0 jobs")
    assert backfill("rows.csv", "id\n1\n", *run).exit_code == 0
    assert staged(database_url) == [["1"]]


REJECTED = b"id,note\n1,x\n500\noops,y\n2,\xe9\n,z\n1,x\n"


def test_rejects_are_written_with_their_reasons_and_the_others_are_staged(
    database_url: str, backfill: Backfill, tmp_path: Path
) -> None:
    path = tmp_path / "rejects.jsonl"
    options = ["--args", "id", "--columns", "id bigint", "--reject", str(path), "--max-rejects"]
    result = backfill("rows.csv", REJECTED, *options, "3")
    assert result.exit_code == 1
    assert (
        f"4 rows cannot be staged, in {path}, and --max-rejects is 3; the first: malformed" in result.stderr
    )
    assert staged(database_url) == []
    result = backfill("rows.csv", REJECTED, *options, "4")
    assert result.exit_code == 0, result.output
    assert f"4 rejects in {path}" in result.stderr
    assert staged(database_url) == [[1], [1]]
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [each["record"] for each in found] == [
        "500",
        '{"id":"oops","note":"y"}',
        '{"id":"2","note":"\ufffd"}',
        '{"id":null,"note":"z"}',
    ]
    assert [each["reason"].partition(" ")[0] for each in found] == ["malformed", "column", "bytes", "column"]


def test_a_dry_run_counts_duplicates_and_rejects(
    database_url: str, backfill: Backfill, tmp_path: Path
) -> None:
    options = ["--args", "id", "--columns", "id bigint", "--dry-run", "--reject", str(tmp_path / "rejects")]
    result = backfill("rows.csv", REJECTED, *options, "--max-rejects", "9")
    assert result.stdout.splitlines()[-3:] == [
        "1 duplicate",
        "4 rejects",
        "2 jobs on queue default with priority 100; nothing was staged",
    ]
    assert backfill("rows.csv", REJECTED, *options).exit_code == 1
    assert backfill("rows.csv", REJECTED, "--args", "id", "--max-rejects", "9").exit_code == 2


def test_a_query_uses_the_environment_and_warns_of_passwords_in_options(
    spark: SparkSession, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "backfill",
        "sql:SELECT 1 AS id",
        "--database-url",
        database_url,
        "--job",
        "tests.act",
        "--args",
        "id",
    ]
    monkeypatch.setenv("DRAIN_SOURCE_DATABASE_URL", "postgresql:///nowhere?host=/nowhere")
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 1
    assert "PostgreSQL at /nowhere:5432/nowhere cannot be used" in result.stderr
    option = f"database_url={database_url}&password=secret"
    result = CliRunner().invoke(main, [*words, "--option", option], catch_exceptions=False)
    assert (result.exit_code, staged(database_url)) == (0, [[1]])
    assert "can see the password in --option database_url: set DRAIN_SOURCE_DATABASE_URL" in result.stderr
    assert "secret" not in result.output
    assert "secret" not in str(query(database_url, "SELECT plan FROM bulk_runs"))


def test_the_database_of_a_query_can_come_from_a_service_file(database_url: str, tmp_path: Path) -> None:
    given = conninfo_to_dict(database_url)
    entries = "".join(f"{name}={value}\n" for name, value in given.items())
    (tmp_path / "services").write_text(f"[warehouse]\n{entries}")
    program = [sys.executable, "-c", "from drain.__main__ import main; main()"]
    words = ["backfill", "sql:SELECT current_database() AS name", "--job", "tests.act", "--args", "name"]
    environment = {
        "DRAIN_DATABASE_URL": database_url,
        "DRAIN_SOURCE_DATABASE_URL": "postgresql:///?service=warehouse",
        "PGSERVICEFILE": str(tmp_path / "services"),
    }
    done = subprocess.run(
        [*program, *words, "--master", "local[1]"],
        env=os.environ | in_a_hurry() | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert staged(database_url) == [[given["dbname"]]]
