"""Archive on an object store: written and read through PyArrow, with no package for Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from pyarrow.fs import S3FileSystem

from drain.__main__ import main
from drain.pipeline import archive as work, follow, hours
from drain.pipeline.lake import files as archive
from tests.helpers import ROOT, environment, stage_jobs
from tests.object_store import object_store
from tests.spark.test_archive import finish, make_day, not_called

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Commands, one after the other on one session of Spark; prints what each has answered.
PROGRAM = """
import json, sys
from click.testing import CliRunner
from drain.__main__ import main
from drain.pipeline.session import session
with session("local[1]", {"spark.sql.shuffle.partitions": "1"}):
    for words in json.loads(sys.argv[1]):
        result = CliRunner().invoke(main, [*words, "--json"])
        print(json.dumps([result.exit_code, result.stdout, result.stderr]))
"""


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    with object_store() as variables:
        address = variables["AWS_ENDPOINT_URL"].removeprefix("http://")
        lake = S3FileSystem(
            access_key="key",
            secret_key="secret",
            endpoint_override=address,
            scheme="http",
            region="us-east-1",
            allow_bucket_creation=True,
        )
        lake.create_dir("lake")
        yield variables


@pytest.fixture
def variables(store: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    for name, value in store.items():
        monkeypatch.setenv(name, value)
    return store


def test_days_are_archived_and_read_under_both_url_schemes(
    database_url: str, redis_url: str, variables: dict[str, str]
) -> None:
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    make_day(database_url, yesterday)
    # As files of hours that are replaced.
    with work.exclusive(database_url) as lock:
        follower = follow.Follower(follow.Plan(database_url, "s3://lake/jobs"), lock, not_called)
        for queue, first in (("mail", 1), ("007", 11)):
            finish(database_url, first, first + 9, yesterday, queue=queue)
            follower.run_once()
        follower.close()
    finish(database_url, 21, 25, yesterday)
    stage_jobs(database_url, 1, queue="mail")
    commands = [
        ["archive", "s3a://lake/jobs", "--keep-days", "0", "--dry-run"],
        ["archive", "s3://lake/jobs", "--keep-days", "0"],
        ["archive", "s3a://lake/jobs", "--keep-days", "0"],
        ["stats", "--archive", "s3a://lake/jobs"],
        [
            "replay",
            "--job",
            "tests.act",
            "--dry-run",
            "--where",
            "queue = '007'",
            "--archive",
            "s3://lake/jobs",
        ],
    ]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(commands)],
        cwd=ROOT,
        env=environment(database_url, redis_url, **variables),
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(code, error) for code, _, error in answers] == [(0, "")] * len(commands)
    dry, archived, again, stats, replay = (json.loads(out or "null") for _, out, _ in answers)
    assert dry == [{"day": str(yesterday), "rows": 25}]
    assert (archived["rows"], archived["problem"], again) == (25, None, None)
    assert stats["total"]["finished"] == 25
    assert len(list(archive.rows("s3://lake/jobs", ["id"], queue="mail"))) == 15
    assert replay["jobs"] == 10
    place = archive.Archive("s3a://lake/jobs")
    (file,) = place.all_files(yesterday)
    assert file.name.startswith("whole-000001-1-1-")


def test_hours_are_merged(
    database_url: str, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hours, "_QUIET_SECONDS", 0.0)
    yesterday = datetime.now(UTC).date() - timedelta(days=1)
    make_day(database_url, yesterday)
    with work.exclusive(database_url) as lock:
        follower = follow.Follower(follow.Plan(database_url, "s3://lake/hours"), lock, not_called)
        for first in (1, 11):
            finish(database_url, first, first + 9, yesterday)
            follower.run_once()
        follower.merge(float("inf"))
        follower.close()
    assert len(archive.Archive("s3://lake/hours").all_files(yesterday)) == 1
    assert {row["id"] for row in archive.rows("s3://lake/hours", ["id"])} == set(range(1, 21))


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ("s3://nowhere/jobs", "s3://nowhere/jobs cannot be used: the bucket does not exist: "),
        (
            "s3a://key:hidden@nowhere/jobs",
            "s3://key@nowhere/jobs cannot be used: the bucket does not exist: ",
        ),
        (
            "s3://key:hidden@lake/jobs?endpoint_override=127.0.0.1:1&scheme=http",
            "s3://key@lake/jobs cannot be used: the store cannot be reached: ",
        ),
    ],
)
def test_an_unusable_store_is_reported_in_one_line_without_keys(
    spark: SparkSession,
    database_url: str,
    redis_url: str,
    variables: dict[str, str],
    place: str,
    problem: str,
) -> None:
    env = environment(database_url, redis_url)
    make_day(database_url, datetime.now(UTC).date() - timedelta(days=1))
    for words in (
        ["archive", place, "--keep-days", "0"],
        ["archive", place, "--follow"],
        ["stats", "--archive", place],
    ):
        result = CliRunner().invoke(main, words, env=env)
        assert result.exit_code == 1, words
        (line,) = result.stderr.splitlines()
        assert line.startswith(f"Error: the archive at {problem}")
        assert "hidden" not in line
