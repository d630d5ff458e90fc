"""What anybody may have written into Redis or into a row: a line for each, and the work goes on."""

import json
import pickle
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from redis import Redis
from rq import Queue, Worker
from rq.command import send_shutdown_command
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry

from cli import main
from tests import jobs_in_batches as jobs
from tests.support import (
    DRAIN,
    PATIENCE_SECONDS,
    ROOT,
    Command,
    end,
    environment,
    new_enqueuer,
    query,
    stage_jobs,
    wait_until,
)
from tests.yard import Yard

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


@pytest.fixture
def yard(database_url: str, redis_url: str) -> Yard:
    jobs.create_effects(database_url)
    return Yard(database_url, redis_url)


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


def lines_with(command: Command, text: str) -> list[dict[str, Any]]:
    """Its log lines whose message holds this text; whatever is no log line fails the test."""
    lines = [json.loads(line) for line in command.output.splitlines()]
    return [line for line in lines if text in line["message"]]


# --- Redis


def test_garbage_on_the_command_channel_is_a_line_each_and_the_next_command_is_heard(
    yard: Yard, client: Redis
) -> None:
    with yard.working() as command:
        (worker,) = wait_until(lambda: Worker.all(connection=client), PATIENCE_SECONDS)
        channel = f"rq:pubsub:{worker.name}"
        wait_until(lambda: client.pubsub_numsub(channel)[0][1], PATIENCE_SECONDS)  # type: ignore[index]
        for payload in PAYLOADS:
            client.publish(channel, payload)
        wait_until(lambda: len(lines_with(command, "cannot be read")) == len(PAYLOADS), PATIENCE_SECONDS)
        send_shutdown_command(client, worker.name)
        assert command.wait(PATIENCE_SECONDS) == 0


def test_a_plain_job_that_rq_cannot_read_is_a_failed_one_and_the_worker_goes_on(
    yard: Yard, client: Redis
) -> None:
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


def test_an_id_without_a_readable_job_is_forgotten_with_a_line(yard: Yard, client: Redis) -> None:
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
