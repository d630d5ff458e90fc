"""`drain check` says what is wrong in one line, with the exit code of Nagios, and never takes longer than it may."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redis import Redis
from rq import SimpleWorker

from drain.__main__ import main
from tests.flows import flows
from tests.helpers import environment, new_enqueuer, query, stage_jobs
from tests.hostility import Place
from tests.proxy import proxied


@pytest.fixture
def env(database_url: str, redis_url: str) -> dict[str, str]:
    return environment(database_url, redis_url)


def check(env: dict[str, str], *words: str) -> Result:
    return CliRunner().invoke(main, ["check", *words], env=env)


def found(env: dict[str, str], *words: str) -> tuple[int, dict[str, str]]:
    """Exit code, and the level of each finding by its name."""
    result = check(env, "--for", "json", *words)
    told: dict[str, Any] = json.loads(result.stdout)
    assert ["ok", "warning", "critical", "unknown"][result.exit_code] == told["level"]
    return result.exit_code, {finding["name"]: finding["level"] for finding in told["findings"]}


@pytest.fixture
def attended(redis_url: str) -> Iterator[None]:
    """A live worker of the queue `default`."""
    with Redis.from_url(redis_url) as client:
        worker = SimpleWorker(["default"], connection=client)
        worker.register_birth()  # type: ignore[no-untyped-call]
        yield


def waiting_since(database_url: str, seconds: int) -> None:
    query(
        database_url,
        "UPDATE staged_jobs SET staged_at = now() - make_interval(secs => %s), "
        "scheduled_at = now() - make_interval(secs => %s)",
        seconds,
        seconds,
    )


DIE = """
WITH gone AS (DELETE FROM inflight_jobs RETURNING *)
INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, reason,
    explanation)
SELECT id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, 'failed', 'x' FROM gone
"""


def test_a_healthy_system_is_reported_in_one_line_with_numbers(
    database_url: str, redis_url: str, env: dict[str, str], attended: None
) -> None:
    with new_enqueuer(database_url, redis_url) as enqueuer:
        query(database_url, "UPDATE drain_state SET leader = 'me', leader_since = now()")
        stage_jobs(database_url, 3)
        enqueuer.drain()
        result = check(env)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("DRAIN OK - 3 waiting, 0 running, leader present | lag=0s;30;120;0 wait=")
    (line,) = result.stdout.splitlines()
    numbers = dict(re.findall(r"(\w+)=([0-9.]+)s?;", line.partition(" | ")[2]))
    assert (numbers["waiting"], numbers["dead"], numbers["unattended"]) == ("3", "0", "0")


def test_each_problem_has_its_own_level(
    database_url: str, redis_url: str, env: dict[str, str], attended: None
) -> None:
    assert found(env) == (2, {"leader": "critical"})
    with new_enqueuer(database_url, redis_url) as enqueuer:
        query(database_url, "UPDATE drain_state SET leader = 'me', leader_since = now()")
        assert found(env) == (0, {})
        stage_jobs(database_url, 1)
        waiting_since(database_url, 60)
        assert found(env) == (1, {"lag": "warning"})
        assert found(env, "--max-lag", "10s,50s") == (2, {"lag": "critical"})
        assert found(env, "--max-lag", ",", "--max-wait", "50s") == (2, {"wait": "critical"})
        assert found(env, "--max-lag", "2m") == (0, {})
        # What a pause holds back is no lag, and nobody waits for it.
        query(database_url, "INSERT INTO queue_pauses (queue) VALUES ('default')")
        assert found(env, "--max-wait", "50s") == (0, {})
        query(database_url, "DELETE FROM queue_pauses")
        enqueuer.drain()
        query(database_url, DIE)
        assert found(env) == (1, {"dead": "warning"})
        assert found(env, "--max-dead", "0") == (2, {"dead": "critical"})
        assert found(env, "--max-dead", "1,10") == (0, {})
        stage_jobs(database_url, 5, queue="mail")
        quiet = ("--max-dead", ",")
        assert found(env, *quiet) == (2, {"unattended": "critical"})
        assert found(env, *quiet, "--unattended", "ignore") == (0, {})
        enqueuer.drain()
        query(
            database_url,
            "UPDATE inflight_jobs SET failed_at = now(), next_run_at = now() + interval '1 hour', claimed_at = now()",
        )
        assert found(env, *quiet, "--unattended", "warning") == (
            1,
            {"unattended": "warning", "failing": "warning"},
        )
        text = check(env, *quiet).stdout
    assert text.startswith(
        "DRAIN CRITICAL - no worker for queue mail; all attempts are failing in queue mail | "
    )


@pytest.mark.usefixtures("attended")
def test_a_failed_flow_and_an_overdue_wait_are_reported(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    with flows(database_url, redis_url) as jobs:
        query(database_url, "UPDATE drain_state SET leader = 'me', leader_since = now()")
        jobs.look()
        (flow,) = jobs.flow()
        jobs.die(jobs.stage(flow=flow))
        jobs.look()
        quiet = ("--max-dead", ",")
        assert found(env, *quiet) == (1, {"failed_flows": "warning"})
        assert found(env, *quiet, "--max-failed-flows", "0") == (2, {"failed_flows": "critical"})
        query(
            database_url,
            "INSERT INTO job_waits (job_id, name, deadline, fencing_token) VALUES (1, 'a', now() - interval '1 h', 1)",
        )
        text = check(env, *quiet, "--max-failed-flows", "1").stdout
    assert text.startswith("DRAIN CRITICAL - the leader has not ended a wait for 1h | ")


def test_a_database_of_another_version_and_one_without_a_schema_are_critical(
    database_url: str, empty_database_url: str, env: dict[str, str]
) -> None:
    query(database_url, "UPDATE drain_schema SET version = version + 1")
    assert found(env) == (2, {"schema": "critical"})
    result = check(env | {"DRAIN_DATABASE_URL": empty_database_url})
    assert result.exit_code == 2
    assert result.stdout == "DRAIN CRITICAL - the database has no job-drain schema; run `drain init` first\n"


def test_unavailable_stores_are_critical(env: dict[str, str]) -> None:
    assert found(env | {"DRAIN_DATABASE_URL": "postgresql://x:secret@127.0.0.1:1/x"}) == (
        2,
        {"postgres": "critical"},
    )
    away = env | {"DRAIN_REDIS_URL": "redis://:secret@127.0.0.1:1/0"}
    assert found(away) == (2, {"redis": "critical", "leader": "critical"})
    assert "secret" not in check(away).output


def test_a_redis_that_never_answers_times_out(env: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env |= {"DRAIN_REDIS_URL": f"redis://127.0.0.1:{silent.getsockname()[1]}/0"}
        result = check(env, "--timeout", "3")
    assert result.exit_code == 2
    assert "Redis did not answer in time" in result.stdout


def test_a_postgresql_that_never_answers_times_out(database_url: str, env: dict[str, str]) -> None:
    with proxied(database_url) as (proxy, url):
        assert found(env | {"DRAIN_DATABASE_URL": url}) == (2, {"leader": "critical"})
        for at in (None, b"drain_schema"):
            proxy.stalled.clear() if at else proxy.stalled.set()
            proxy.stall_at = at
            result = check(env | {"DRAIN_DATABASE_URL": url}, "--timeout", "1")
            assert result.exit_code == 2
            assert result.stdout.startswith("DRAIN CRITICAL - PostgreSQL ")


def test_invalid_input_exits_with_the_unknown_code(env: dict[str, str]) -> None:
    for words in (["--max-lag", "soon"], ["--max-dead", "9,1"], ["--max-dead", "nan"], ["--no-such-option"]):
        assert check(env, *words).exit_code == 3
    for url in ("", "postgresql://a:b/c@d/e"):
        result = check(env | {"DRAIN_DATABASE_URL": url})
        assert result.exit_code == 3
        assert result.stdout.startswith("DRAIN UNKNOWN - ")


def test_a_hostile_name_cannot_forge_lines_or_numbers(
    database_url: str, env: dict[str, str], attended: None
) -> None:
    query(database_url, "UPDATE drain_state SET leader = 'me | x=1' || chr(10) || 'y', leader_since = now()")
    stage_jobs(database_url, 1, queue="mail")
    (line,) = check(env).stdout.splitlines()
    assert line.count("|") == 1


def test_inspection_rights_suffice_but_application_rights_do_not(place: Place, redis_url: str) -> None:
    stage_jobs(place.url, 2)
    assert found(environment(place.url_of("inspection"), redis_url)) == (
        2,
        {"leader": "critical", "unattended": "critical"},
    )
    result = check(environment(place.url_of("application"), redis_url))
    assert result.exit_code == 3
    assert "`drain roles inspection` prints the required rights" in result.stdout
