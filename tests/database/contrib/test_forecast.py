"""`drain forecast`: what it reads of the tables, of Redis and of the archive, and what it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result
from redis import Redis
from rq import SimpleWorker

from drain.__main__ import main
from drain.contrib.forecast import throughput
from drain.read.snapshots import snapshot
from drain.tables import staged
from tests.database.contrib.test_rehearsal import archived
from tests.helpers import environment, query, stage_jobs

Forecast = Callable[..., Result]

# Jobs of half a second each, one after the other, claimed ten at a time by one process.
FINISHED = """
INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at,
    claimed_at, finished_at, finished_by, attempts, fencing_token, superseded_by)
SELECT nextval('staged_jobs_id_seq'), %s, '[]', '{}', %s, 0, now() - interval '1 day',
    now() - %s::interval - number * interval '1 ms', now() - interval '100 s' + number * interval '0.5 s',
    now() - interval '100 s' + (number / 10 * 10) * interval '0.5 s',
    now() - interval '100 s' + (number + 1) * interval '0.5 s', 'web-1:1:c0ffee', 1, 1, superseded
FROM generate_series(0, %s) AS ids (number), (SELECT %s::bigint AS superseded) AS way
"""
INFLIGHT = """
INSERT INTO inflight_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, delivery,
    claimed_at, claimed_by, fencing_token, lease_expires_at, next_run_at)
VALUES (nextval('staged_jobs_id_seq'), 'm.f', '[]', '{}', %s, 0, now(), now() - interval '1 day', 0,
    CASE WHEN %s THEN now() - interval '0.1 s' END, CASE WHEN %s THEN 'web-1:1:c0ffee' END, 1,
    CASE WHEN %s THEN now() + interval '1 hour' END, now() + %s::interval)
"""


def finish(url: str, jobs: int, *, queue: str = "mail", name: str = "m.f", staged_ago: str = "1 day") -> None:
    query(url, FINISHED, name, queue, staged_ago, jobs - 1, None)


def inflight(url: str, *, queue: str = "mail", claimed: bool = False, retry_in: str | None = None) -> None:
    query(url, INFLIGHT, queue, claimed, claimed, claimed, retry_in)


def age(url: str) -> None:
    """Let no job look as if it had come lately."""
    for table in ("staged_jobs", "inflight_jobs"):
        query(
            url,
            f"UPDATE {table} SET staged_at = staged_at - interval '1 day', "
            "scheduled_at = scheduled_at - interval '1 day' WHERE scheduled_at <= now()",
        )


@pytest.fixture
def forecast(database_url: str, redis_url: str) -> Forecast:
    env = environment(database_url, redis_url)

    def act(*words: str, **more: str) -> Result:
        return CliRunner().invoke(main, ["forecast", *words], env=env | more, catch_exceptions=False)

    return act


@pytest.fixture
def work(redis_url: str) -> Iterator[Callable[..., None]]:
    """Register workers in Redis that do nothing."""
    with Redis.from_url(redis_url) as client:

        def begin(*queues: str, number: int = 1) -> None:
            for _ in range(number):
                count = client.incr("tests:workers")
                SimpleWorker(queues, name=f"w{count}", connection=client).register_birth()  # type: ignore[no-untyped-call]

        yield begin


def told(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_backlog_ends_when_its_workers_have_run_it(
    database_url: str, forecast: Forecast, work: Callable[..., None]
) -> None:
    finish(database_url, 100)
    stage_jobs(database_url, 30, queue="mail")
    age(database_url)
    work("mail", "other", number=2)
    work("third")
    found = told(forecast("mail", "--json"))
    assert (found["jobs"], found["workers"], found["arrivals_per_second"]) == (30, 2, 0.0)
    assert found["run_seconds"]["median"] == pytest.approx(0.5, rel=0.01)
    assert found["ends"]["seconds"] == pytest.approx(7.5, rel=0.02)
    assert found["ends"]["low"] <= found["ends"]["seconds"] <= found["ends"]["high"]
    assert told(forecast("mail", "--workers", "6", "--json"))["ends"]["seconds"] == pytest.approx(
        2.5, rel=0.02
    )
    assert told(forecast("mail", "--run-seconds", "2", "--json"))["ends"]["seconds"] == 30.0
    query(database_url, "INSERT INTO queues (queue, running) VALUES ('mail', 1)")
    assert told(forecast("mail", "--json"))["ends"]["seconds"] == pytest.approx(15, rel=0.02)


def test_each_state_of_a_job_counts(database_url: str, forecast: Forecast, work: Callable[..., None]) -> None:
    finish(database_url, 100)
    inflight(database_url)
    inflight(database_url, claimed=True)
    inflight(database_url, claimed=True)
    inflight(database_url, retry_in="50 s")
    inflight(database_url, queue="other", claimed=True)
    with psycopg.connect(database_url, autocommit=True) as connection:
        staged.move(connection, stage_jobs(database_url, 2, queue="mail"), last_delivery=9)
    stage_jobs(database_url, 3, queue="mail", priority=5)
    stage_jobs(database_url, 4, queue="mail", run_in=9000)
    age(database_url)
    work("mail")
    found = told(forecast("mail", "--json"))
    # Delivered 1 + 2, claimed 2, retrying 1, staged 3.
    assert (found["jobs"], found["scheduled"]) == (9, 4)
    assert found["ends"]["seconds"] == pytest.approx(50.5, rel=0.02)
    assert found["notes"] == ["4 jobs of the queue are scheduled for later, and not awaited"]


def test_arrivals_are_those_of_lately_without_bulk_runs(
    database_url: str, forecast: Forecast, work: Callable[..., None]
) -> None:
    finish(database_url, 60, staged_ago="2 minutes")
    finish(database_url, 10, queue="other", staged_ago="2 minutes")
    stage_jobs(database_url, throughput.BULK + 1, queue="mail")
    work("mail", "other")
    found = told(forecast("mail", "--json"))
    assert found["arrivals_per_second"] == pytest.approx(59 / 120, rel=0.05)
    assert {each["queue"]: each["arrivals_per_second"] for each in found["waits"]} == {
        "mail": pytest.approx(59 / 120, rel=0.05),
        "other": pytest.approx(9 / 120, rel=0.05),
    }
    (other,) = [each for each in found["waits"] if each["queue"] == "other"]
    assert other["with"]["median"] > 10 * other["without"]["median"]
    assert told(forecast("mail", "--arrivals", "0", "--json"))["arrivals_per_second"] == 0


def test_a_backfill_is_forecast_before_it_is_staged(
    database_url: str, forecast: Forecast, work: Callable[..., None]
) -> None:
    finish(database_url, 100, queue="bulk", name="shop.index")
    finish(database_url, 100, queue="bulk", name="m.f")
    work("bulk", number=4)
    words = ("backfill", "--rows", "1000000", "--job", "shop.index", "--queue", "bulk", "--json")
    found = told(forecast(*words))
    assert (found["jobs"], found["job_name"], found["waiting"]) == (1_000_000, "shop.index", 0)
    assert found["ends"]["seconds"] > 10_000
    slow = told(forecast(*words, "--max-rows-per-second", "2"))
    assert slow["ends"]["seconds"] == pytest.approx(500_000, rel=0.01)
    assert query(database_url, "SELECT FROM staged_jobs") == []
    unknown = forecast("backfill", "--rows", "5", "--job", "shop.new", "--queue", "bulk")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "no job shop.new of queue bulk has finished within 1h: give --run-seconds" in unknown.stderr
    named = ("--rows", "8", "--job", "shop.new", "--queue", "bulk", "--run-seconds", "3", "--json")
    assert told(forecast("backfill", *named))["ends"]["seconds"] == 6.0


def test_a_queue_may_be_called_backfill(
    database_url: str, forecast: Forecast, work: Callable[..., None]
) -> None:
    finish(database_url, 100, queue="backfill")
    work("backfill")
    assert told(forecast("backfill", "--json"))["queue"] == "backfill"


def test_run_times_may_come_from_the_archive(
    database_url: str, forecast: Forecast, work: Callable[..., None], tmp_path: Path
) -> None:
    pytest.importorskip("pyarrow")
    stage_jobs(database_url, 10, queue="mail")
    age(database_url)
    work("mail")
    rows = [
        {"id": number, "job_name": "m.f", "job_args": "[]", "finished_by": f"w{number}"}
        for number in range(5)
    ]
    path = str(archived(tmp_path / "archive", rows))
    found = told(forecast("mail", "--archive", path, "--json"))
    assert (found["run_times"], found["ends"]["seconds"]) == (5, pytest.approx(20.0))
    more = ("--rows", "3", "--job", "m.f", "--queue", "other", "--workers", "1", "--archive", path, "--json")
    assert told(forecast("backfill", *more))["ends"]["seconds"] == pytest.approx(6.0)
    missing = forecast("mail", "--archive", f"{tmp_path}/no")
    assert (missing.exit_code, missing.stderr) == (
        1,
        f"Error: there is no archive at {tmp_path}/no: nothing is there\n",
    )


def test_where_nothing_is_known_it_says_what_to_name(
    database_url: str, forecast: Forecast, work: Callable[..., None]
) -> None:
    nobody = forecast("mail")
    assert nobody.exit_code == 1
    assert "no worker takes jobs of queue mail, so they never end: give --workers" in nobody.stderr
    assert "or --rows and --job for a backfill" in forecast("backfill").stderr
    without = forecast("mail", DRAIN_REDIS_URL="")
    assert (
        "no Redis is named, so the workers are unknown: set DRAIN_REDIS_URL, or give --workers"
        in without.stderr
    )
    work("mail")
    unknown = forecast("mail", "--within", "10m")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "no job of queue mail has finished within 10m: give --run-seconds" in unknown.stderr
    for words in (("mail", "--rows", "3"), ("backfill", "--rows", "3")):
        assert forecast(*words).exit_code == 2


def test_the_answer_fits_a_terminal_and_obeys_nothing(
    database_url: str, forecast: Forecast, work: Callable[..., None]
) -> None:
    name = "q" * 100
    finish(database_url, 60, staged_ago="2 minutes")
    finish(database_url, 10, queue=name, name="evil\x1b[31m", staged_ago="2 minutes")
    stage_jobs(database_url, 30, queue="mail", job="evil\x1b[31m")
    query(database_url, "INSERT INTO queues (queue, running_per_key) VALUES ('mail', 1)")
    work("mail", name)
    shown = forecast("mail", COLUMNS="80")
    assert shown.exit_code == 0
    assert "\x1b" not in shown.output
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("queue mail: 30 jobs to run, 1 worker, ")
    assert "this backlog ends in " in shown.stdout
    assert "queue mail has rules of keys, which are not simulated" in shown.stdout
    assert max(map(len, lines)) <= 80
    empty = forecast(name, "--arrivals", "0")
    assert "nothing waits: there is no backlog" in empty.stdout


def test_a_pause_without_an_end_is_named(
    database_url: str, forecast: Forecast, work: Callable[..., None]
) -> None:
    finish(database_url, 10)
    stage_jobs(database_url, 4, queue="mail")
    age(database_url)
    work("mail")
    query(database_url, "INSERT INTO queue_pauses (queue) VALUES ('mail')")
    found = told(forecast("mail", "--json"))
    assert found["ends"]["seconds"] == pytest.approx(2.0, rel=0.02)
    assert "is paused without an end" in found["notes"][0]
    query(database_url, "UPDATE queue_pauses SET until = now() + interval '100 s'")
    assert told(forecast("mail", "--json"))["ends"]["seconds"] == pytest.approx(102, abs=5)


def test_no_question_reads_a_table_that_has_an_index_for_it(database_url: str) -> None:
    stage_jobs(database_url, 5, queue="mail")
    finish(database_url, 5)
    for question in (
        throughput._FINISHED,
        throughput._DUE,
        throughput._DELIVERED,
        throughput._RETRYING,
        throughput._ARRIVED,
    ):
        with psycopg.connect(database_url, autocommit=True) as connection, snapshot(connection):
            given = {"queue": "mail", "seconds": 60.0, "since": 0.0}
            plan = connection.execute(b"EXPLAIN " + question.encode(), given).fetchall()
        text = "\n".join(line for (line,) in plan)
        assert "Seq Scan" not in text, text
