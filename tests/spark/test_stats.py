"""`drain stats`: what it says of archived and live jobs, in numbers, on a terminal and on a page."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import psycopg
import pytest
from click.testing import CliRunner, Result

from drain.pipeline import history
from drain.pipeline.commands.stats import stats
from drain.pipeline.datasources import columns
from drain.terminal.commandline import Group
from tests.helpers import BOUNDS, query, stage_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)
HOSTILE = "<script>document.title = 'taken over'</script><b>'\\n' & \"co\""

INSERT = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, attempts, fencing_token, history)
VALUES (%(id)s, %(job)s, '[]', '{}', %(queue)s, 0, %(due)s, %(staged)s, %(staged)s, %(claimed)s, %(finished)s,
    %(attempts)s, %(token)s, %(history)s)
"""
DIE = """
INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, attempts,
    died_at, reason, explanation, last_error)
SELECT nextval('staged_jobs_id_seq'), %s, '[]', '{}', %s, 0, now(), now(), %s, %s, %s, 'a test', %s RETURNING id
"""

pytestmark = pytest.mark.usefixtures("spark")


class Job(NamedTuple):
    """One that has finished."""

    id: int
    waited: float
    ran: float
    finished: datetime = NOON
    queue: str = "mail"
    job: str = "shop.send"
    attempts: int = 1
    token: int = 1
    history: str | None = None
    # How long before it was due it had been staged.
    ahead: float = 0


def finish(database_url: str, jobs: Sequence[Job]) -> None:
    with psycopg.connect(database_url, options=BOUNDS) as connection, connection.cursor() as cursor:
        cursor.executemany(INSERT, [_row(job) for job in jobs])


def _row(job: Job) -> dict[str, Any]:
    claimed = job.finished - timedelta(seconds=job.ran)
    due = claimed - timedelta(seconds=job.waited)
    staged = due - timedelta(seconds=job.ahead)
    return job._asdict() | {"claimed": claimed, "due": due, "staged": staged}


def die(
    database_url: str,
    *,
    job: str = "shop.send",
    queue: str = "mail",
    attempts: int = 3,
    at: datetime = NOON,
    reason: str = "failed",
    error: tuple[str, str] | None = None,
) -> None:
    last_error = json.dumps({"type": error[0], "message": error[1]}) if error else None
    query(database_url, DIE, job, queue, attempts, at, reason, last_error)


def archive_all(spark: SparkSession, database_url: str, path: Path) -> str:
    """Move what has finished so far to an archive."""
    with history.instant(database_url) as instant:
        rows = instant.table(spark, "finished_jobs", list(columns.TABLES["finished_jobs"]))
        dated = rows.selectExpr("*", f"date_format(finished_at, 'yyyy-MM-dd') AS {history.DATE}")
        dated.coalesce(1).write.partitionBy(history.DATE, "queue").mode("append").parquet(str(path))
    query(database_url, "TRUNCATE finished_jobs")
    return str(path)


def run(database_url: str, *words: str) -> Result:
    main = Group(commands=[stats])
    return CliRunner().invoke(main, ["stats", "--database-url", database_url, *words])


def report(database_url: str, *words: str) -> dict[str, Any]:
    result = run(database_url, *words, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def some_jobs(number: int, first: int = 1) -> list[Job]:
    """Jobs of some days, queues and names, with times from microseconds to hours."""
    dice = random.Random(first)
    return [
        Job(
            id_,
            waited=round(dice.lognormvariate(-2, 3), 6),
            ran=round(dice.lognormvariate(0, 2), 6),
            finished=NOON + timedelta(hours=dice.randrange(-40, 40), seconds=dice.randrange(3600)),
            queue=(queue := dice.choice(["mail", "mail", "007"])),
            job=dice.choice([f"{queue}.one", f"{queue}.two", "shop.both"]),
            attempts=(attempts := dice.choice([1, 1, 1, 1, 2, 4])),
            token=attempts,
        )
        for id_ in range(first, first + number)
    ]


def named(jobs: Sequence[Job], found: dict[str, Any]) -> list[Job]:
    return [job for job in jobs if (job.queue, job.job) == (found["queue"], found["job_name"])]


def in_the_hour(jobs: Sequence[Job], found: dict[str, Any]) -> list[Job]:
    start = datetime.fromisoformat(found["start"])
    return [job for job in jobs if timedelta(0) <= job.finished - start < timedelta(hours=1)]


def agrees(found: dict[str, Any], jobs: Sequence[Job]) -> None:
    assert found["finished"] == len(jobs)
    assert found["retried"] == sum(job.attempts > 1 for job in jobs)
    assert found["retried_share"] == pytest.approx(found["retried"] / len(jobs))
    assert found["attempts_per_job"] == pytest.approx(sum(job.attempts for job in jobs) / len(jobs))


def times_agree(found: dict[str, Any] | None, times: Sequence[float]) -> None:
    if not times:
        assert found is None
        return
    assert found is not None
    assert found["jobs"] == len(times)
    exact = {"avg": np.mean(times), "min": min(times), "max": max(times)}
    assert {name: found[name] for name in exact} == pytest.approx(exact, abs=1e-6)
    for name, share in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        assert found[name] == pytest.approx(np.percentile(times, share), rel=0.0101, abs=1e-6)


def test_the_numbers_match_a_plain_calculation_over_all_jobs(
    spark: SparkSession, database_url: str, tmp_path: Path
) -> None:
    archived, live = some_jobs(700), some_jobs(500, first=701)
    finish(database_url, archived)
    archive = archive_all(spark, database_url, tmp_path / "archive")
    # The first one came late, and is in both for a while.
    finish(database_url, [archived[0], *live])
    jobs = archived + live
    found = report(database_url, "--archive", archive, "--per", "hour")
    groups = [(found["total"], jobs)]
    assert {(one["queue"], one["job_name"]) for one in found["jobs"]} == {
        (job.queue, job.job) for job in jobs
    }
    groups += [(one, named(jobs, one)) for one in found["jobs"]]
    assert sum(one["finished"] for one in found["periods"]) == len(jobs)
    groups += [(one, in_the_hour(jobs, one)) for one in found["periods"]]
    for one, expected in groups:
        agrees(one, expected)
        times_agree(one["waiting"], [job.waited for job in expected if job.attempts == 1])
        times_agree(one["processing"], [job.ran for job in expected])
        assert one["slowest_id"] == max(expected, key=lambda job: job.ran).id
    assert len(found["details"]) > len(found["periods"])
    for one in found["details"]:
        agrees(one, named(in_the_hour(jobs, one), one))


def test_waiting_starts_at_the_due_time_and_covers_single_claims_only(database_url: str) -> None:
    finish(
        database_url,
        [
            Job(1, waited=2, ran=1, ahead=3600),
            # Two clocks.
            Job(2, waited=-5, ran=-1),
            Job(3, waited=1000, ran=1, attempts=2, token=2),
            # Put off, and claimed again.
            Job(4, waited=1000, ran=1, attempts=1, token=2),
            # It was dead for a while.
            Job(5, waited=1000, ran=1, history='[{"reason": "expired"}]'),
        ],
    )
    total = report(database_url)["total"]
    times_agree(total["waiting"], [2, 0])
    times_agree(total["processing"], [1, 0, 1, 1, 1])
    assert (total["retried"], total["failed_attempts"]) == (1, 1)


def test_dead_staged_and_inflight_jobs_are_counted_too(database_url: str) -> None:
    finish(database_url, [Job(1, 0.1, 0.1), Job(2, 0.1, 0.1, job="shop.slow", attempts=3, token=3)])
    die(database_url, reason="failed", attempts=5)
    die(database_url, reason="failed", attempts=5, at=NOON + timedelta(days=1))
    die(database_url, reason="expired", attempts=0)
    stage_jobs(database_url, 3, job="shop.later", queue="bulk")
    query(
        database_url,
        "INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, "
        "delivery) SELECT 99, 'shop.send', '[]', '{}', 'mail', 0, now(), now(), 1 RETURNING id",
    )
    found = report(database_url)
    total, jobs = found["total"], {one["job_name"]: one for one in found["jobs"]}
    assert total["dead"] == jobs["shop.send"]["dead"] == {"expired": 1, "failed": 2}
    assert (total["staged"], jobs["shop.later"]["staged"], total["inflight"]) == (3, 3, 1)
    assert [one["dead"] for one in found["periods"]] == [{"expired": 1, "failed": 1}, {"failed": 1}]
    assert [one["finished"] for one in found["periods"]] == [2, 0]
    assert (total["failed_attempts"], jobs["shop.slow"]["failed_attempts"]) == (12, 2)
    assert [one["job_name"] for one in found["most_failing"]] == ["shop.send", "shop.slow"]


def test_the_slowest_jobs_are_those_with_the_longest_p95(database_url: str) -> None:
    slow = [Job(id_, 0, 5, job="shop.slow") for id_ in range(1, 20)]
    outlier = [
        Job(100, 0, 500, job="shop.fast"),
        *(Job(100 + id_, 0, 1, job="shop.fast") for id_ in range(1, 40)),
    ]
    finish(database_url, slow + outlier)
    names = [one["job_name"] for one in report(database_url)["slowest"]]
    assert names == ["shop.slow", "shop.fast"]
    assert len(report(database_url, "--top", "1")["slowest"]) == 1


@pytest.mark.parametrize("since", ["0500-01-01", "500000d", "3000d"])
def test_archived_jobs_count_even_long_after_they_finished(
    spark: SparkSession, database_url: str, tmp_path: Path, since: str
) -> None:
    finish(database_url, [Job(1, 0.1, 0.1)])
    archive = archive_all(spark, database_url, tmp_path / "archive")
    found = report(database_url, "--archive", archive, "--since", since)
    assert sum(period["finished"] for period in found["periods"]) == 1


@pytest.mark.parametrize(
    ("archive", "problem"),
    [
        ("bogus://x/y", "bogus://x/y cannot be opened: Unrecognized filesystem type in URI: bogus://x/y"),
        ("", "the path of the archive is empty"),
    ],
)
def test_an_unreadable_archive_is_reported_in_one_line(
    spark: SparkSession, database_url: str, archive: str, problem: str
) -> None:
    result = run(database_url, "--archive", archive)
    assert (result.exit_code, result.stderr) == (1, f"Error: {problem}\n")


@pytest.mark.parametrize("archived", [False, True])
def test_only_the_selected_jobs_count(
    spark: SparkSession, database_url: str, tmp_path: Path, archived: bool
) -> None:
    finish(
        database_url,
        [
            Job(1, 0, 1, finished=NOON - timedelta(microseconds=1)),
            Job(2, 0, 1, finished=NOON),
            Job(3, 0, 1, finished=NOON, queue="bulk"),
            Job(4, 0, 1, finished=NOON, job=HOSTILE),
            Job(5, 0, 1, finished=NOON + timedelta(days=1)),
        ],
    )
    die(database_url, at=NOON - timedelta(microseconds=1))
    die(database_url, at=NOON, job=HOSTILE)
    more = ["--archive", archive_all(spark, database_url, tmp_path / "archive")] if archived else []

    def ended(*words: str) -> tuple[int, int]:
        total = report(database_url, *words, *more)["total"]
        return total["finished"], sum(total["dead"].values())

    assert ended() == (5, 2)
    assert ended("--since", "2026-03-10T13:00+01:00") == (4, 1)
    assert ended("--since", "2026-03-11") == (1, 0)
    assert ended("--queue", "bulk") == (1, 0)
    assert ended("--job", HOSTILE, "--queue", "mail") == (1, 1)


def test_relative_times_follow_the_clock_of_the_database(database_url: str) -> None:
    ((now,),) = query(database_url, "SELECT now()")
    finish(
        database_url,
        [Job(1, 0, 1, finished=now - timedelta(hours=1)), Job(2, 0, 1, finished=now - timedelta(hours=3))],
    )
    assert report(database_url, "--since", "2h")["total"]["finished"] == 1
    assert report(database_url, "--since", "1d")["total"]["finished"] == 2


def test_the_report_says_when_nothing_has_finished(database_url: str, tmp_path: Path) -> None:
    stage_jobs(database_url, 2)
    result = run(database_url, "--html", str(tmp_path / "page.html"))
    assert result.exit_code == 0, result.output
    assert "nothing has finished (all queues; all jobs that are kept" in result.stdout
    assert "2 staged and 0 in flight" in result.stdout
    assert "How the jobs went" in (tmp_path / "page.html").read_text()
    found = report(database_url)
    assert (found["total"]["finished"], found["total"]["waiting"], found["periods"]) == (0, None, [])


def test_a_missing_archive_is_mentioned(database_url: str, tmp_path: Path) -> None:
    result = run(database_url, "--archive", str(tmp_path / "nothing"), "--json")
    assert result.exit_code == 0
    assert f"there is no archive at {tmp_path / 'nothing'}" in result.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--since", "yesterday"], "'yesterday' is not a time; give 2026-11-01"),
        (["--html", "/nowhere/page.html"], "there is no directory /nowhere"),
        (["--html", "/tmp"], "/tmp is a directory"),
        # Of all directories, the one that root cannot write to either.
        (["--html", "/proc/page.html"], "/proc cannot be written to"),
    ],
)
def test_invalid_options_are_refused_before_anything_is_read(words: list[str], line: str) -> None:
    result = run("postgresql://nowhere.invalid/x", *words)
    assert result.exit_code == 1
    assert line in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_tables_fit_a_narrow_terminal(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "shop.jobs.of.a.module.with.a.long.path.send_receipt"
    finish(database_url, [Job(id_, 1234.5 * id_, 0.0123 * id_, job=name) for id_ in range(1, 9)])
    for reason in ("failed", "gave up", "expired"):
        die(database_url, job=name, reason=reason)
    result = run(database_url, "--per", "hour")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in result.stdout
    rows = [line for line in lines if "send_receipt" in line or "…" in line]
    assert len(rows) == 5
    assert all("receipt" in row for row in rows)
    assert any(re.search(r"2\.74h$", row.rstrip()) for row in rows)
    assert re.search(r"2026-03-10 12:00 +8 +– +3 +", result.stdout)


def test_a_page_that_cannot_be_written_leaves_the_old_one(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.html"
    page.write_text("the old one")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "replace", full)
    result = run(database_url, "--html", str(page))
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert [path.read_text() for path in tmp_path.iterdir()] == ["the old one"]


def test_this_week_is_compared_with_last_week(database_url: str, tmp_path: Path) -> None:
    ((now,),) = query(database_url, "SELECT now()")
    day = timedelta(days=1)
    this, last = now - day, now - 8 * day
    finish(
        database_url,
        [
            *(Job(number, waited=2, ran=4, finished=this) for number in range(1, 4)),
            *(Job(number, waited=1, ran=8, finished=last) for number in range(11, 13)),
            # Within seconds of the ends of both weeks, in days of which one half belongs to each.
            Job(21, waited=1, ran=8, finished=now - 7 * day - timedelta(seconds=60), queue="bulk"),
            Job(22, waited=2, ran=4, finished=now - 7 * day + timedelta(hours=1), queue="bulk"),
            Job(23, waited=50, ran=50, finished=now - 14 * day - timedelta(seconds=60)),
        ],
    )
    for at, reason in ((this, "failed"), (last, "failed"), (last, "expired"), (this, "cancelled")):
        die(database_url, at=at, reason=reason)
    die(database_url, at=this, queue="new")
    total, *queues = report(database_url)["weeks"]
    assert total["queue"] is None
    assert total["finished"] == {"this": 4, "last": 3, "change_percent": pytest.approx(100 / 3)}
    assert total["dead"] == {"this": 2, "last": 2, "change_percent": 0}
    assert total["failed_attempts"] == {"this": 6, "last": 6, "change_percent": 0}
    for name, seconds in (("waiting_p50", (2, 1)), ("waiting_p95", (2, 1)), ("processing_p95", (4, 8))):
        assert (total[name]["this"], total[name]["last"]) == pytest.approx(seconds, rel=0.01)
    assert [each["queue"] for each in queues] == ["mail", "bulk", "new"]
    assert [(each["finished"]["this"], each["finished"]["last"]) for each in queues] == [
        (3, 2),
        (1, 1),
        (0, 0),
    ]
    assert queues[2]["dead"] == {"this": 1, "last": 0, "change_percent": None}
    assert queues[2]["waiting_p50"] == {"this": None, "last": None, "change_percent": None}


def test_weeks_are_compared_only_if_all_their_jobs_are_covered(database_url: str) -> None:
    assert report(database_url, "--since", "13d")["weeks"] is None
    (total,) = report(database_url, "--since", "14d")["weeks"]
    assert total["finished"] == {"this": 0, "last": 0, "change_percent": None}


def test_errors_are_grouped_by_their_first_line_without_numbers_and_ids(database_url: str) -> None:
    later = NOON + timedelta(hours=1)
    for number in (17, 18):
        message = f"  order {number} of 0xBEEF{number} at 10:30:{number}\nsecond line {number}"
        for job, at in (("shop.send", NOON), ("shop.send", NOON), ("shop.bill", later)):
            die(database_url, job=job, at=at, error=("ValueError", message))
    for id_ in ("0b0e7c3a-9d1f-4c58-8a53-6f1f0a6a1b2c", "deadbeef00"):
        die(database_url, error=("KeyError", id_))
    die(database_url, reason="expired", error=("ValueError", "of an earlier attempt"))
    die(database_url, reason="cancelled", error=("ValueError", "not a failure"))
    die(database_url, error=("Empty", ""))
    errors = report(database_url)["errors"]
    assert errors[0] == {
        "text": "ValueError: order # of # at #",
        "jobs": 6,
        "job_names": ["shop.send", "shop.bill"],
        "last_seen": later.isoformat(),
    }
    found = {error["text"]: error["jobs"] for error in errors[1:]}
    assert found == {"KeyError: #": 2, "Empty": 1, "a test": 1}


def test_only_the_ten_most_frequent_errors_are_listed(database_url: str) -> None:
    for letter in "abcdefghijklm":
        for _ in range(2 if letter == "m" else 1):
            die(database_url, error=("Error", letter * 3000))
    found = report(database_url)
    assert [error["text"][:8] for error in found["errors"]] == [f"Error: {letter}" for letter in "mabcdefghi"]
    assert {len(error["text"]) for error in found["errors"]} == {200}
    assert found["total"]["dead"] == {"failed": 14}


def test_the_command_writes_the_page(database_url: str, tmp_path: Path) -> None:
    finish(database_url, [Job(1, 0.5, 0.25), Job(2, 1, 1, job=HOSTILE, attempts=2, token=2)])
    die(database_url, job=HOSTILE, error=("<b>", HOSTILE))
    result = run(database_url, "--html", str(tmp_path / "page.html"))
    assert result.exit_code == 0, result.output
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    html = (tmp_path / "page.html").read_text()
    assert "<b>2</b><span>completed</span>" in html
    assert "&lt;b&gt;: &lt;script&gt;document.title" in html
    assert "<script" not in html
