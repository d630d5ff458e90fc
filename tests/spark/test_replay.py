"""`drain replay`: jobs that have run are staged again, in one commit, once under a run id."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from click.testing import CliRunner, Result

from drain.__main__ import main
from drain.pipeline import copying
from drain.pipeline.lake.files import rows
from drain.tables import bulk
from tests.helpers import query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Replay = Callable[..., Result]

INSERT = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, context, staged_at,
    moved_at, claimed_at, finished_at, attempts, fencing_token, key, superseded_by)
SELECT id, %s, jsonb_build_array(id, 'ż"'), '{"a": {"b": null}}', %s, 7, at, 'tag ' || id, '{"trace": 1}', at, at, at,
    at, 1, 1, 'key ' || id, CASE WHEN id %% 10 = 0 THEN id - 1 END
FROM generate_series(%s::bigint, %s::bigint) AS id,
    LATERAL (SELECT (%s::date + interval '1 hour') AT TIME ZONE 'UTC' + id * interval '1 second' AS at) AS time
"""
JOBS = """
SELECT job_name, job_args, job_kwargs, queue, priority, tag, context, key, unique_key, expires_at, max_attempts,
    scheduled_at <= now(), fencing_token, history
FROM staged_jobs ORDER BY job_args
"""


def of_yesterday() -> date:
    return datetime.now(UTC).date() - timedelta(days=1)


def finish(database_url: str, first: int, last: int, *, name: str = "tests.act", queue: str = "mail") -> None:
    query(database_url, INSERT, name, queue, first, last, of_yesterday())


@pytest.fixture
def archive(spark: SparkSession, database_url: str, tmp_path: Path) -> Path:
    """An archive of yesterday: jobs 1 to 12, of which 10 gave way to 9, and one of another name."""
    day = of_yesterday()
    query(
        database_url,
        f"CREATE TABLE finished_jobs_{day:%Y%m%d} PARTITION OF finished_jobs (PRIMARY KEY (id)) "
        f"FOR VALUES FROM ('{day} 00:00+00') TO ('{day + timedelta(days=1)} 00:00+00')",
    )
    finish(database_url, 1, 12)
    finish(database_url, 101, 101, name="tests.other", queue="007")
    path = tmp_path / "archive"
    words = ["archive", str(path), "--database-url", database_url, "--keep-days", "0"]
    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert query(database_url, "SELECT FROM finished_jobs") == []
    return path


@pytest.fixture
def replay(spark: SparkSession, database_url: str) -> Replay:
    def act(*options: str) -> Result:
        words = ["replay", "--database-url", database_url, *options]
        return CliRunner().invoke(main, words, catch_exceptions=False)

    return act


def test_finished_jobs_are_staged_again_as_new_jobs(database_url: str, archive: Path, replay: Replay) -> None:
    given = ("--archive", str(archive), "--job", "tests.act", "--where", "id <= 2", "--run-id", "again")
    result = replay(*given)
    assert (result.exit_code, result.output.partition(" in ")[0]) == (0, "run again has staged 2 jobs again")
    assert query(database_url, JOBS) == [
        (
            *("tests.act", [number, 'ż"'], {"a": {"b": None}}, "mail", 7, f"tag {number}", {"trace": 1}),
            *(f"key {number}", None, None, None, True, 0, None),
        )
        for number in (1, 2)
    ]
    ids = query(database_url, "SELECT id FROM staged_jobs")
    assert len(ids) == 2

    again = replay(*given)
    assert (again.exit_code, again.output) == (
        0,
        "run again had already staged its 2 jobs; nothing was staged\n",
    )
    answer = json.loads(replay(*given, "--json").output)
    assert {name: answer[name] for name in ("run_id", "jobs", "before")} == {
        "run_id": "again",
        "jobs": 2,
        "before": True,
    }
    assert query(database_url, "SELECT id FROM staged_jobs") == ids


def test_the_archive_is_read_without_spark_too(archive: Path) -> None:
    columns = ("id", "queue", "job_args", "finished_at", "tag", "result")
    found = sorted(rows(str(archive), columns), key=lambda row: row["id"])
    assert [row["id"] for row in found] == [*(number for number in range(1, 13) if number != 10), 101]
    assert (found[0]["queue"], found[0]["tag"], found[-1]["queue"]) == ("mail", "tag 1", "007")
    assert json.loads(found[0]["job_args"]) == [1, 'ż"']
    assert found[0]["finished_at"].isoformat() == f"{of_yesterday()}T01:00:01+00:00"
    assert [row["id"] for row in rows(str(archive), ("id",), queue="007")] == [101]
    assert [row["id"] for row in rows(str(archive), ("id",), job_name="tests.other")] == [101]


def test_superseded_jobs_are_not_replayed_and_options_override_values(
    database_url: str, archive: Path, replay: Replay
) -> None:
    given = ("--archive", str(archive), "--job", "tests.act", "--where", "id >= 9", "--run-id", "r")
    changed = ("--as", "tests.new", "--queue", "bulk", "--priority", "100", "--tag", "replayed")
    assert replay(*given, *changed, "--max-rows-per-second", "1").exit_code == 0
    found = "SELECT job_name, job_args -> 0, queue, priority, tag, key FROM staged_jobs ORDER BY job_args"
    assert query(database_url, found) == [
        ("tests.new", number, "bulk", 100, "replayed", f"key {number}") for number in (9, 11, 12)
    ]
    seconds = "SELECT date_part('second', scheduled_at - staged_at)::int FROM staged_jobs ORDER BY 1"
    assert query(database_url, seconds) == [(0,), (1,), (2,)]


def test_a_dry_run_counts_and_shows_ten_and_stages_nothing(
    database_url: str, archive: Path, replay: Replay
) -> None:
    given = ("--archive", str(archive), "--job", "tests.act", "--dry-run")
    result = replay(*given, "--where", f"finished_date = '{of_yesterday()}'")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("tests.act  [")
    assert lines[0].endswith(', "ż\\""]  {"a": {"b": null}}')
    assert lines[10:] == [
        "...",
        f"finished from {of_yesterday()} 01:00:01Z to {of_yesterday()} 01:00:12Z",
        "11 jobs on queue mail",
        "11 jobs would be staged again; nothing was staged",
    ]
    answer = json.loads(replay(*given, "--where", "false", "--json").stdout)
    assert (answer["jobs"], answer["queues"], answer["first_finished_at"]) == (0, {}, None)
    assert query(database_url, "SELECT FROM staged_jobs") == []
    assert query(database_url, "SELECT FROM bulk_runs") == []


def test_jobs_still_in_postgres_are_replayed_on_request(
    database_url: str, archive: Path, replay: Replay
) -> None:
    finish(database_url, 13, 14)
    today = datetime.now(UTC).date()
    query(database_url, INSERT, "tests.act", "mail", 15, 15, today)
    both = replay(
        *("--archive", str(archive), "--finished", "--job", "tests.act", "--run-id", "both"),
        *("--where", f"finished_date >= '{of_yesterday()}'"),
    )
    assert both.exit_code == 0, both.output
    found = "SELECT (job_args ->> 0)::int FROM staged_jobs ORDER BY 1"
    assert query(database_url, found) == [(number,) for number in range(1, 16) if number != 10]
    query(database_url, "DELETE FROM staged_jobs")
    live = replay(
        "--finished", "--job", "tests.act", "--run-id", "live", "--where", f"finished_date = '{today}'"
    )
    assert live.exit_code == 0, live.output
    assert query(database_url, found) == [(15,)]


def test_a_failed_driver_stages_nothing_and_its_run_can_be_repeated(
    database_url: str, archive: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--archive", str(archive), "--job", "tests.act", "--where", "true", "--run-id", "r")

    def refuse(*_: object, **__: object) -> None:
        raise psycopg.errors.DiskFull("no space is left")

    with monkeypatch.context() as patch:
        patch.setattr(bulk.Copying, "write", refuse)
        assert "no space is left" in replay(*given).output
    assert query(database_url, "SELECT FROM staged_jobs UNION ALL SELECT FROM bulk_runs") == []
    assert replay(*given).exit_code == 0
    assert query(database_url, "SELECT count(*) FROM staged_jobs") == [(11,)]


REFUSED = (
    ("--where true --run-id r", 2, "name the --archive, or --finished"),
    ("--archive {} --run-id r", 2, "Missing option '--where'"),
    ("--archive {} --where true", 2, "name the run by --run-id"),
    # Another run: the server lets go of its lock a moment after the answer.
    ("--archive {}/no --where true --run-id q", 1, "there is no archive at"),
    ("--archive {} --where nope=1 --run-id r", 1, "`nope` cannot be resolved"),
    ("--archive {} --where true --run-id r --queue a,b", 1, "is not a queue name"),
)


def test_an_invalid_replay_is_refused_in_one_line(database_url: str, archive: Path, replay: Replay) -> None:
    for options, code, words in REFUSED:
        result = replay("--job", "tests.act", *options.format(archive).split())
        assert (result.exit_code, "Traceback" in result.output) == (code, False), result.output
        assert words in result.output
    assert query(database_url, "SELECT FROM staged_jobs") == []


def test_a_run_that_is_already_staged_does_not_start_spark(
    database_url: str, archive: Path, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ("--archive", str(archive), "--job", "tests.act", "--where", "true", "--run-id", "r")
    assert replay(*given).exit_code == 0

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(copying, "stage", refuse)
    assert replay(*given).output == "run r had already staged its 11 jobs; nothing was staged\n"
