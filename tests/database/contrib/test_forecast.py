"""`drain forecast`: the estimate, what it is made of, and what it says when something is unknown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redis import Redis
from rq import SimpleWorker

from drain.__main__ import main
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


def finish(url: str, jobs: int, *, queue: str = "mail", name: str = "m.f", staged_ago: str = "1 day") -> None:
    query(url, FINISHED, name, queue, staged_ago, jobs - 1, None)


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


def answered(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_the_end_of_a_backlog_follows_from_workers_and_run_time(
    database_url: str, forecast: Forecast, work: Callable[..., None]
) -> None:
    finish(database_url, 100)
    stage_jobs(database_url, 30, queue="mail")
    stage_jobs(database_url, 4, queue="mail", run_in=9000)
    work("mail", "other", number=2)
    work("third")
    found = answered(forecast("mail", "--json"))
    assert (found["jobs"], found["workers"], found["bound"]) == (30, 2, None)
    assert found["run_seconds"] == pytest.approx(0.5, rel=0.01)
    assert found["ends_seconds"] == pytest.approx(7.5, rel=0.02)
    assert answered(forecast("mail", "--workers", "6", "--json"))["ends_seconds"] == pytest.approx(
        2.5, rel=0.02
    )
    assert answered(forecast("mail", "--run-seconds", "2", "--json"))["ends_seconds"] == 30.0
    assert answered(forecast("mail", "--rows", "70", "--json"))["jobs"] == 100


def test_new_arrivals_postpone_the_end(
    database_url: str, forecast: Forecast, work: Callable[..., None]
) -> None:
    finish(database_url, 100)
    stage_jobs(database_url, 30, queue="mail")
    work("mail", number=2)
    assert answered(forecast("mail", "--json"))["arrivals_per_second"] == pytest.approx(0.5)
    found = answered(forecast("mail", "--arrivals", "2", "--json"))
    assert found["ends_seconds"] == pytest.approx(7.5, rel=0.02)
    assert found["caught_up_seconds"] == pytest.approx(15, rel=0.02)
    assert answered(forecast("mail", "--arrivals", "5", "--json"))["caught_up_seconds"] is None
    assert "never catches up" in forecast("mail", "--arrivals", "5").stdout


@pytest.mark.parametrize(
    ("rules", "bound", "seconds"),
    [("running) VALUES ('mail', 2", "running", 6.0), ("rate) VALUES ('mail', '3/s'", "rate", 8.0)],
)
def test_a_limit_bounds_the_speed(
    database_url: str, forecast: Forecast, work: Callable[..., None], rules: str, bound: str, seconds: float
) -> None:
    stage_jobs(database_url, 24, queue="mail")
    work("mail", number=8)
    query(database_url, f"INSERT INTO queues (queue, {rules})")
    found = answered(forecast("mail", "--run-seconds", "0.5", "--json"))
    assert (found["bound"], found["ends_seconds"]) == (bound, pytest.approx(seconds))
    assert f"limited by {bound}" in forecast("mail", "--run-seconds", "0.5").stdout


def test_a_given_run_time_counts_under_a_limit_too(
    database_url: str, forecast: Forecast, work: Callable[..., None]
) -> None:
    finish(database_url, 100)
    stage_jobs(database_url, 100, queue="mail")
    query(database_url, "INSERT INTO queues (queue, running) VALUES ('mail', 2)")
    work("mail", number=8)
    found = answered(forecast("mail", "--run-seconds", "0.1", "--json"))
    assert (found["bound"], found["ends_seconds"]) == ("running", pytest.approx(5))


def test_a_clock_set_back_is_not_an_error(
    database_url: str, forecast: Forecast, work: Callable[..., None]
) -> None:
    finish(database_url, 3)
    query(database_url, "UPDATE finished_jobs SET finished_at = claimed_at - interval '1 s'")
    stage_jobs(database_url, 3, queue="mail")
    work("mail")
    assert answered(forecast("mail", "--json"))["per_second"] > 0
    assert forecast("mail").exit_code == 0


@pytest.mark.parametrize("column", ["claimed_at", "finished_at"])
@pytest.mark.parametrize("time", ["infinity", "-infinity"])
def test_impossible_times_are_ignored(
    database_url: str, forecast: Forecast, work: Callable[..., None], column: str, time: str
) -> None:
    finish(database_url, 20)
    query(database_url, f"UPDATE finished_jobs SET {column} = %s WHERE id %% 2 = 0", time)
    stage_jobs(database_url, 3, queue="mail")
    work("mail")
    assert answered(forecast("mail", "--json"))["run_seconds"] == pytest.approx(0.5, abs=0.5)


def test_a_backfill_is_forecast_before_it_is_staged(database_url: str, forecast: Forecast) -> None:
    words = ("bulk", "--rows", "1000000", "--workers", "4", "--run-seconds", "0.2")
    assert answered(forecast(*words, "--json"))["ends_seconds"] == 50_000
    assert "queue 'bulk' is unknown" in forecast(*words).stderr
    assert query(database_url, "SELECT FROM staged_jobs") == []


def test_missing_data_is_reported_with_the_option_to_give(
    forecast: Forecast, work: Callable[..., None]
) -> None:
    absent = forecast("mail")
    assert (absent.exit_code, absent.stdout) == (1, "")
    assert "queue mail has no live workers: give --workers" in absent.stderr
    assert "set DRAIN_REDIS_URL, or give --workers" in forecast("mail", DRAIN_REDIS_URL="").stderr
    work("mail")
    unknown = forecast("mail")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "no job in queue mail finished in the last day: give --run-seconds" in unknown.stderr
    refused = ("--rows -1", "--workers 0", "--arrivals nan", "--run-seconds 0", "--run-seconds 5e-324")
    for words in map(str.split, refused):
        assert forecast("mail", *words).exit_code == 2


def test_a_pause_and_a_hostile_name_are_shown(
    database_url: str, forecast: Forecast, work: Callable[..., None]
) -> None:
    name = "q\x1b[31m"
    finish(database_url, 3, queue=name)
    query(database_url, "INSERT INTO queue_pauses (queue) VALUES (%s)", name)
    work(name)
    shown = forecast(name)
    assert shown.exit_code == 0
    assert "\x1b" not in shown.output
    assert "paused: assumes that the queue resumes now" in shown.stdout
