"""Jobs that wait are moved to another queue, priority or time; nothing that runs is touched, and nothing is lost."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from drain import stage
from drain.database import postgres
from drain.database.postgres import Connection
from drain.enqueuer.redelivery import Redelivery
from drain.tables import claims
from tests.helpers import deliveries, ids_in, new_enqueuer, pushed, pushed_jobs, query, stage_jobs
from tests.process.test_cancel import one_of_each
from tests.process.test_cli import drain, one_line_of

TOMORROW = timedelta(days=1)


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with postgres.connect(database_url, "tests") as opened:
        yield opened


@pytest.fixture
def env(database_url: str) -> dict[str, str]:
    return {"DRAIN_DATABASE_URL": database_url}


def of_queue(connection: Connection, queue: str) -> set[int]:
    tables = "SELECT id, queue FROM staged_jobs UNION ALL SELECT id, queue FROM inflight_jobs"
    return {job_id for (job_id, name) in connection.execute(tables) if name == queue}


def test_waiting_jobs_are_moved_and_running_ones_counted(connection: Connection, env: dict[str, str]) -> None:
    ids = one_of_each(connection)
    other = stage(connection, "m.f", queue="sms")
    words = "jobs move --queue mail --to slow"
    dry = drain(f"{words} --dry-run", env)
    assert dry.stdout == "would move: 2 staged, 1 delivered, 1 retrying\n"
    assert dry.stderr == "unchanged: 1 running\n"
    assert of_queue(connection, "slow") == set()
    moved = drain(words, env, answer="y\n")
    assert moved.stdout.endswith("moved: 4 jobs\n")
    assert of_queue(connection, "mail") == {ids.pop("running")}
    assert of_queue(connection, "slow") == set(ids.values())
    assert of_queue(connection, "sms") == {other}


def test_the_json_output_contains_only_the_numbers(connection: Connection, env: dict[str, str]) -> None:
    one_of_each(connection)
    words = "jobs move --queue mail --to slow --json"
    dry = drain(f"{words} --dry-run", env)
    assert json.loads(dry.stdout) == {"dry_run": True, "moved": 4, "left": 1}
    moved = drain(words, env, answer="y\n")
    # The runner of click 8.2 shows the answer.
    assert json.loads(moved.stdout.removeprefix(" y\n")) == {"dry_run": False, "moved": 4, "left": 1}


def test_a_delivered_job_is_called_back_and_delivered_in_its_new_queue(
    database_url: str, redis_url: str, env: dict[str, str]
) -> None:
    (job_id,) = stage_jobs(database_url, queue="mail")
    with new_enqueuer(database_url, redis_url) as enqueuer, psycopg.connect(database_url) as worker:
        worker.autocommit = True
        redelivery = Redelivery(enqueuer)
        redelivery.recover()
        enqueuer.drain()
        old = deliveries(worker, [job_id])
        assert drain(f"jobs move {job_id} --to slow --yes", env).exit_code == 0
        for queue in ("mail", "slow", None):
            assert claims.claim_many(worker, old, worker="w", limits={}, queue=queue) == []
        assert redelivery.run_once() == 1
        assert pushed_jobs(redis_url, "slow") == [job_id]
        assert claims.claim_many(worker, old, worker="w", limits={}) == []
        new = {job_id: int(pushed(redis_url, "slow")[0].rpartition("-")[2])}
        assert [won.id for won in claims.claim_many(worker, new, worker="w", limits={}, queue="slow")] == [
            job_id
        ]


def test_run_at_moves_jobs_to_now_or_to_tomorrow(
    database_url: str, redis_url: str, connection: Connection, env: dict[str, str]
) -> None:
    scheduled = stage(connection, "m.f", run_at=datetime.now(UTC) + TOMORROW)
    ready = stage(connection, "m.f")
    tomorrow = (datetime.now(UTC) + TOMORROW).replace(tzinfo=None, microsecond=0)
    assert drain(f"jobs move {scheduled} --run-at now --yes", env).exit_code == 0
    assert drain(f"jobs move {ready} --run-at {tomorrow.isoformat()} --yes", env).exit_code == 0
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
    assert pushed_jobs(redis_url) == [scheduled]
    rows = "SELECT id, scheduled_at FROM staged_jobs_scheduled"
    assert query(database_url, rows) == [(ready, tomorrow.replace(tzinfo=UTC))]


def test_a_retry_can_be_rescheduled(connection: Connection, env: dict[str, str]) -> None:
    retrying = one_of_each(connection)["retrying"]
    assert drain(f"jobs move {retrying} --run-at 2100-01-01T12:00+01:00 --yes", env).exit_code == 0
    (waits_until,) = postgres.fetch_one(
        connection, "SELECT next_run_at FROM inflight_jobs WHERE id = %s", [retrying]
    )
    assert waits_until == datetime(2100, 1, 1, 11, tzinfo=UTC)


def test_a_priority_applies_only_to_staged_jobs(
    database_url: str, redis_url: str, connection: Connection, env: dict[str, str]
) -> None:
    ids = one_of_each(connection)
    last, first = stage_jobs(database_url, 2, queue="mail")
    done = drain("jobs move --queue mail --priority 7 --yes", env)
    assert (done.stdout, done.stderr) == (
        "moved: 4 jobs\n",
        "unchanged: 1 delivered, 1 retrying, 1 running\n",
    )
    assert drain(f"jobs move {first} --priority -5 --yes", env).exit_code == 0
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
    assert pushed_jobs(redis_url, "mail") == [first, ids["staged"], last]


def test_many_jobs_are_moved_in_slices(
    database_url: str, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drain.tables.selections.SLICE", 3)
    ids = stage_jobs(database_url, 7, queue="mail")
    assert drain("jobs move --queue mail --to slow --yes", env).stdout == "moved: 7 jobs\n"
    assert query(database_url, "SELECT DISTINCT queue FROM staged_jobs") == [("slow",)]
    assert ids_in(database_url, "staged_jobs") == ids


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--to a,b", "'a,b' is not a queue name"),
        ("--run-at soon", "--run-at soon: not a time"),
        ("--run-at 9999-12-31 --dry-run", "the year must be from 1 to 9999"),
        ("--run-at 0001-01-01T00:00+14:00", "the year must be from 1 to 9999"),
    ],
)
def test_an_invalid_move_is_refused_in_one_line_and_changes_nothing(
    database_url: str, env: dict[str, str], words: str, why: str
) -> None:
    stage_jobs(database_url, queue="mail")
    before = query(database_url, "SELECT * FROM staged_jobs")
    assert why in one_line_of(drain(f"jobs move --queue mail {words} --yes", env))
    assert query(database_url, "SELECT * FROM staged_jobs") == before


def test_wrong_usage_is_exit_code_2_and_no_match_is_1(database_url: str, env: dict[str, str]) -> None:
    assert drain("jobs move --queue mail", env).exit_code == 2
    assert drain("jobs move --to slow", env).exit_code == 2
    refused = drain("jobs move --queue mail --to slow --yes", env)
    assert refused.exit_code == 1
    assert refused.stderr.splitlines() == [
        "queue 'mail' is unknown (idle, or misspelt?): it has no job staged, in flight or dead; known: none",
        "Error: no movable job matches; nothing was done",
    ]


def test_ids_that_cannot_be_moved_are_named(connection: Connection, env: dict[str, str]) -> None:
    ids = one_of_each(connection)
    assert drain(f"cancel {ids['delivered']} --yes", env).exit_code == 0
    named = " ".join(map(str, [ids["staged"], ids["delivered"], 4_000_000]))
    unknown = "not moved, unknown (never staged, not committed, forwarded, or archived)"
    moved = drain(f"jobs move {named} --to slow --yes", env)
    assert (moved.exit_code, moved.stdout) == (0, "moved: 1 job\n")
    assert moved.stderr.splitlines() == [
        f"not moved, already dead: {ids['delivered']}",
        f"{unknown}: 4000000",
    ]
    other = drain(f"jobs move {ids['scheduled']} --queue sms --to slow --dry-run", env)
    assert other.stdout == "would move: none\n"
    assert other.stderr.splitlines()[0] == (
        f"{unknown}, or excluded by the other options: {ids['scheduled']}"
    )
