"""What anybody may have written into Redis or into a row: a line for each, and the work goes on."""

import json
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from redis import Redis
from rq import Queue
from rq.command import send_shutdown_command
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry

from drain.__main__ import main
from tests import jobs_in_batches as jobs
from tests.helpers import (
    DRAIN,
    PATIENCE_SECONDS,
    ROOT,
    Command,
    new_enqueuer,
    only_rq_worker,
    query,
    stage_jobs,
    wait_until,
)
from tests.worker_processes import Yard

COMMANDED = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
ESCAPES = "\x1b]0;owned\x07 \x9b31m \x7f \u202egnp.exe \u2066x\u2069"
FIELDS = ["timeout", "created_at", "status", "result_ttl", "failure_ttl", "dependency_ids", "retry_intervals"]
PAYLOADS = [
    b"",
    b"no JSON",
    b"\xff\xfe",
    b"[]",
    b"null",
    b"5",
    b'"shutdown"',
    b'{"no command": "shutdown"}',
    b'{"command": "frobnicate"}',
    b'{"command": ["shutdown"]}',
    b"[" * 100_000,
]


def lines_with(command: Command, text: str) -> list[dict[str, Any]]:
    """Its log lines whose message holds this text; whatever is no log line fails the test."""
    # The last line may be half written.
    lines = [json.loads(line) for line in command.output.rpartition("\n")[0].splitlines()]
    return [line for line in lines if text in line["message"]]


# --- Redis


@pytest.mark.parametrize(
    "is_tracked", [True, False], ids=["the worker of tracked jobs", "that of plain ones"]
)
def test_garbage_on_the_command_channel_is_logged_and_ignored(
    yard: Yard, client: Redis, *, is_tracked: bool
) -> None:
    with yard.working() as command:
        name = only_rq_worker(client, tracked=is_tracked).name
        channel = f"rq:pubsub:{name}"
        wait_until(lambda: client.pubsub_numsub(channel)[0][1], PATIENCE_SECONDS)
        for payload in PAYLOADS:
            client.publish(channel, payload)
        wait_until(lambda: len(lines_with(command, "cannot be read")) == len(PAYLOADS), PATIENCE_SECONDS)
        send_shutdown_command(client, name)
        assert command.wait(PATIENCE_SECONDS) == 0


def test_a_plain_job_that_rq_cannot_read_fails_and_the_worker_continues(yard: Yard, client: Redis) -> None:
    queue = Queue("default", connection=client)
    unreadable = {}
    for field in FIELDS:
        job = queue.enqueue(jobs.plain, field)
        client.hset(job.key, field, b"abc \xff")
        unreadable[field] = job.id
    without_origin = queue.enqueue(jobs.plain, "without origin")
    client.hdel(without_origin.key, "origin")
    last = queue.enqueue(jobs.plain, "last")
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        assert len(lines_with(command, "cannot be read, and has failed")) == len(FIELDS)
        assert len(command.events("started")) == 1
    assert yard.effects() == ["without origin", "last"]
    assert last.get_status() is JobStatus.FINISHED
    failed = FailedJobRegistry(queue=queue).get_job_ids()
    assert set(failed) == set(unreadable.values())
    # RQ's tools can read them now.
    assert {job.get_status() for job in Job.fetch_many(failed, connection=client) if job} == {"failed"}
    assert not list(client.scan_iter("*:intermediate"))


def test_an_id_without_a_readable_job_is_logged_and_dropped(yard: Yard, client: Redis) -> None:
    queue = Queue("default", connection=client)
    without_data = queue.enqueue(jobs.plain, "never")
    client.hdel(without_data.key, "data")
    client.set("rq:job:no-hash", "text")
    client.rpush(queue.key, "no-hash", f"{queue.enqueue(jobs.plain, 'once').id}:cut", "\x1b[31m", b"\xff")
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        assert len(lines_with(command, "RQ knows no job")) == 5
        assert len(command.events("started")) == 1
    assert yard.effects() == ["once"]
    assert not list(client.scan_iter("*:intermediate"))


def test_plain_jobs_whose_call_cannot_be_read_fail(yard: Yard, client: Redis) -> None:
    queue = Queue("default", connection=client)
    texts = [b"no pickle", *map(pickle.dumps, (5, (42, None, (), {}), ("m.f", None, 5, 5)))]
    ids = []
    for text in texts:
        job = queue.enqueue(jobs.plain, "never")
        client.hset(job.key, "data", text)
        ids.append(job.id)
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        assert len(command.events("started")) == 1
    assert set(FailedJobRegistry(queue=queue).get_job_ids()) == set(ids)


# --- rows


@pytest.fixture
def env(database_url: str, redis_url: str) -> Iterator[dict[str, str]]:
    """A database in which one job of each state, its queue and the leader are called by escapes."""
    stage_jobs(database_url, job=f"x{ESCAPES}", tag=ESCAPES)
    with new_enqueuer(database_url, redis_url, batch_size=1) as enqueuer:
        enqueuer.drain()
    life = {ESCAPES: ESCAPES, "last_error": {"type": ESCAPES, "message": ESCAPES, "traceback": ESCAPES}}
    row = {
        "name": f"x{ESCAPES}",
        "text": ESCAPES,
        "life": json.dumps([life]),
        "error": json.dumps(life["last_error"]),
    }
    row["arguments"] = json.dumps([ESCAPES, {ESCAPES: 1}])
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "UPDATE inflight_jobs SET queue = %(text)s, job_args = %(arguments)s, claimed_by = %(text)s, "
            "history = %(life)s, last_error = %(error)s",
            row,
        )
        connection.execute(
            """
            INSERT INTO dead_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag, staged_at,
                history, last_error, reason, explanation)
            VALUES (1000, %(name)s, %(arguments)s, '{}', %(text)s, 0, now(), %(text)s, now(),
                %(life)s, %(error)s, %(text)s, %(text)s)
            """,
            row,
        )
        connection.execute(
            """
            INSERT INTO finished_jobs (id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, tag,
                staged_at, moved_at, claimed_at, finished_at, finished_by, attempts, fencing_token)
            VALUES (1001, %(name)s, '[1e400, 1.5e400]', '{}', %(text)s, 0, now(), %(text)s,
                now(), now(), now(), now(), %(text)s, 1, 1)
            """,
            row,
        )
        connection.execute("UPDATE drain_state SET leader = %(text)s, leader_since = now()", row)
    stage_jobs(database_url, job=f"x{ESCAPES}", tag=ESCAPES)
    with psycopg.connect(database_url) as leading:
        leading.execute("SELECT pg_advisory_lock(1785684580, 1)")
        yield {"DRAIN_DATABASE_URL": database_url, "DRAIN_REDIS_URL": redis_url}


def test_text_from_the_database_cannot_control_the_terminal(env: dict[str, str]) -> None:
    ids = [id_ for (id_,) in query(env["DRAIN_DATABASE_URL"], "SELECT id FROM inflight_jobs")]
    states = ["staged", "inflight", "finished", "dead"]
    commands = [
        "status",
        "audit --patience-seconds 0",
        "dead list",
        "list dead --queue nobody",
        "dead show 1000",
    ]
    commands += [f"list {state}" for state in states] + [f"show {id_}" for id_ in (*ids, 1000, 1001)]
    for words in commands:
        for width in ("20", "80", "200"):
            result = CliRunner().invoke(main, words.split(), env=env | {"COLUMNS": width})
            assert isinstance(result.exception, SystemExit | None), (words, result.exception)
            assert not COMMANDED.search(result.output), words
            if words.startswith(("list ", "dead list")):
                assert max(map(len, result.stdout.splitlines()), default=0) <= int(width)
        shown = CliRunner().invoke(main, [*words.split(), "--json"], env=env).stdout
        assert not COMMANDED.search(shown.replace("\x7f", "")), words
        assert isinstance(json.loads(shown, parse_constant=pytest.fail), dict | list), words


# --- streams


def drain_with(yard: Yard, words: str, streams: str) -> subprocess.CompletedProcess[str]:
    """Run `drain` as a shell does that was told to close or to redirect these streams."""
    script = f'exec "$@" {streams}'
    return subprocess.run(
        ["sh", "-c", script, "sh", sys.executable, "-c", DRAIN, *words.split()],
        check=False,
        env=yard.env(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


@pytest.mark.parametrize(
    ("words", "streams", "code"),
    [
        ("run --once", "<&- >&- 2>&-", 0),
        ("work --burst", "2>&-", 0),
        ("work --burst", "<&- >&- 2>&-", 0),
        ("status", ">&-", 0),
        ("status", "2>&-", 0),
        ("show 4711", "2>&-", 1),
        ("status", ">/dev/full", 1),
        ("show 1", ">/dev/full", 1),
        ("run --once", "2>/dev/full", 0),
    ],
)
def test_a_closed_or_full_stream_does_not_crash_a_command(
    yard: Yard, words: str, streams: str, code: int
) -> None:
    if "/dev/full" in streams and not Path("/dev/full").exists():
        pytest.skip("there is no full device on this machine")
    assert stage_jobs(yard.database_url) == [1]

    done = drain_with(yard, words, streams)

    assert done.returncode == code
    if ">/dev/full" in streams and code:
        assert done.stderr == "Error: the operating system reports: No space left on device\n"
    assert "Traceback" not in done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr


def test_the_leader_keeps_working_without_standard_error(yard: Yard) -> None:
    script = 'exec "$@" 2>&-'
    words = [sys.executable, "-c", DRAIN, "run", "--metrics-port", "0"]
    with subprocess.Popen(["sh", "-c", script, "sh", *words], env=yard.env(), cwd=ROOT) as leader:
        try:
            ids = stage_jobs(yard.database_url)
            yard.wait_for("inflight_jobs", ids)
            leader.terminate()
            assert leader.wait(PATIENCE_SECONDS) == 0
        finally:
            leader.kill()
