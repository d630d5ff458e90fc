"""`drain stack`: a worker process tells where the job is that it runs, and nobody else is disturbed."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner
from redis import Redis

from drain.__main__ import main
from drain.database import postgres
from drain.read.explain.stack import JobStack, NoStackError, read_stack, running_claim
from drain.wire.keys import commands_channel
from tests import jobs_that_hang as jobs
from tests.database.contrib.test_questions_of_pages import CLAIMS
from tests.helpers import (
    NAMESPACE,
    PATIENCE_SECONDS,
    RQ_PATIENCE_SECONDS,
    end,
    environment,
    listening_rq_worker,
    query,
    wait_until,
)
from tests.worker_processes import Yard, kill_worker


def stack_of(yard: Yard, job_id: int, seconds: float = PATIENCE_SECONDS) -> JobStack:
    with postgres.connect(yard.database_url, "test") as connection:
        claim = running_claim(connection, job_id)
    return read_stack(yard.redis_url, NAMESPACE, claim, seconds=seconds)


def functions(stack: JobStack) -> list[str]:
    return [call.function for call in stack.calls]


def refusal(yard: Yard, job_id: int, seconds: float = PATIENCE_SECONDS) -> str:
    with pytest.raises(NoStackError) as caught:
        stack_of(yard, job_id, seconds)
    return str(caught.value)


def has_begun(yard: Yard, *labels: str) -> bool:
    return wait_until(lambda: set(labels) <= set(yard.effects()), PATIENCE_SECONDS)


@pytest.mark.parametrize(
    ("job", "options", "place", "path"),
    [
        (jobs.hang, (), "main thread", ["hang", "_deep_inside", "_wait_for"]),
        (jobs.hang, ("--threads", "2"), "thread 'job ", ["hang", "_deep_inside", "_wait_for"]),
        (jobs.hang_async, (), "event loop", ["hang_async", "_deep_in_the_loop"]),
        (jobs.hang_isolated, (), "process ", ["hang_isolated", "hang", "_deep_inside"]),
    ],
)
def test_the_stack_of_each_kind_of_job_is_read_without_disturbing_it(
    yard: Yard, client: Redis, job: Any, options: tuple[str, ...], place: str, path: list[str]
) -> None:
    (job_id,) = yard.pushed(job, "secret")
    with yard.working(*options, DRAIN_JOBS=jobs.MODULE) as command:
        listening_rq_worker(client, tracked=True)
        has_begun(yard, "secret")
        wait_until(lambda: set(path) <= set(functions(stack_of(yard, job_id))))
        for _ in range(2):
            found = stack_of(yard, job_id)
            assert found.place.startswith(place)
            names = functions(found)
            places = [names.index(name) for name in path]
            assert places == sorted(places)
            (call,) = [call for call in found.calls if call.function == path[0]]
            assert call.file.endswith("tests/jobs_that_hang.py")
            assert call.line > 1
        text = invoked(yard, str(job_id)).stdout
        assert "workers/" not in text
        assert all(f"  {name} " in text for name in path)
        assert "workers/" in invoked(yard, str(job_id), "--all").stdout or found.outer == 0
        assert "secret" not in json.dumps(found.as_json(), default=str)
        assert not client.keys("drain:stack:*")
        yard.say("go")
        yard.wait_for("finished_jobs", [job_id])
        assert end(command) == 0
    assert yard.row(job_id)["attempts"] == 1


def test_the_code_blocking_the_event_loop_is_shown_with_the_waiting_job(yard: Yard, client: Redis) -> None:
    waiting, blocking = yard.pushed(jobs.hang_async, "waits")[0], 0
    with yard.working(DRAIN_JOBS=jobs.MODULE):
        listening_rq_worker(client, tracked=True)
        has_begun(yard, "waits")
        assert not stack_of(yard, waiting).beside
        (blocking,) = yard.pushed(jobs.block_the_loop, "blocks")
        has_begun(yard, "blocks")
        # It has left its mark, and blocks a moment later.
        wait_until(lambda: "block_the_loop" in [call.function for call in stack_of(yard, waiting).beside])
        assert "_deep_in_the_loop" in functions(stack_of(yard, waiting))
        # The one that blocks is no coroutine that waits.
        wait_until(lambda: "_wait_for" in functions(stack_of(yard, blocking)))
        yard.say("go")
        yard.wait_for("finished_jobs", [waiting, blocking])


def test_a_job_waiting_in_its_worker_has_not_started(yard: Yard, client: Redis) -> None:
    first, second = yard.pushed(jobs.hang, "first", "second")
    with yard.working("--prefetch", "2", DRAIN_JOBS=jobs.MODULE):
        listening_rq_worker(client, tracked=True)
        has_begun(yard, "first")
        # It is claimed for half a second, and given back then.
        assert "has not started" in (text := refusal(yard, second)) or "is waiting" in text
        yard.say("go")
        yard.wait_for("finished_jobs", [first, second])
    assert "is finished, not running" in refusal(yard, first)


def test_a_lost_process_is_reported_with_the_lease_expiry(yard: Yard, client: Redis) -> None:
    (job_id,) = yard.pushed(jobs.hang, "a")
    with yard.working(DRAIN_JOBS=jobs.MODULE) as command:
        listening_rq_worker(client, tracked=True)
        has_begun(yard, "a")
        claimed_by = yard.row(job_id)["claimed_by"]
        # Else the supervisor starts a process that recovers the job.
        os.kill(command.pid, signal.SIGSTOP)
        channel = channel_of(client)
        pid = kill_worker(command)
        wait_until(lambda: not client.pubsub_numsub(channel)[0][1], PATIENCE_SECONDS)
        text = refusal(yard, job_id)
        assert f"process {pid} on {claimed_by.split(':')[0]}" in text
        assert "has exited" in text
        assert "its lease lasts until" in text
        query(yard.database_url, "UPDATE inflight_jobs SET lease_expires_at = now() - interval '1 s'")
        assert "its lease expired at" in refusal(yard, job_id)


def channel_of(client: Redis) -> str:
    found: Any = client.keys("rq:worker:*.tracked")
    (key,) = [key.decode() for key in found]
    return commands_channel(key.removeprefix("rq:worker:"))


def test_a_job_that_holds_the_interpreter_gets_advice_instead_of_a_stack(yard: Yard, client: Redis) -> None:
    with yard.working(DRAIN_JOBS=jobs.MODULE):
        worker = listening_rq_worker(client, tracked=True)
        # Pushed last: the worker cannot start to listen once the job holds the interpreter.
        (job_id,) = yard.pushed(jobs.hold_the_interpreter, "a")
        has_begun(yard, "a")
        text = refusal(yard, job_id, seconds=0.5)
    assert "holds the interpreter in C code" in text
    assert f"py-spy dump --pid {worker.pid}" in text


def test_a_stock_worker_cannot_report_a_stack(yard: Yard, client: Redis) -> None:
    (job_id,) = yard.pushed(jobs.return_at_go, "a")
    words = [sys.executable, "-m", "rq.cli", "worker", "default", "--burst", "--url", yard.redis_url]
    env = environment(yard.database_url, yard.redis_url, DRAIN_JOBS=jobs.MODULE, PYTHONPATH=".")
    with subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as worker:
        has_begun(yard, "a")
        assert "stock `rq worker`" in refusal(yard, job_id)
        yard.say("go")
        assert worker.wait(RQ_PATIENCE_SECONDS) == 0


@pytest.mark.parametrize(
    "fields", [{}, {"job_id": "1"}, {"word": "../x"}, {"word": "a" * 32 + "\n"}, {"token": -1}]
)
def test_a_malformed_request_is_ignored_and_the_next_one_answered(
    yard: Yard, client: Redis, fields: dict[str, Any]
) -> None:
    (job_id,) = yard.pushed(jobs.hang, "a")
    with yard.working(DRAIN_JOBS=jobs.MODULE) as command:
        listening_rq_worker(client, tracked=True)
        has_begun(yard, "a")
        asked = {"command": "drain-stack", "job_id": job_id, "token": 1, "word": "a" * 32, **fields}
        if not fields:
            del asked["word"]
        client.publish(channel_of(client), json.dumps(asked))
        assert "hang" in functions(stack_of(yard, job_id))
        assert not client.keys("drain:stack:*")
        assert "cannot be read" in command.output
        yard.say("go")
        yard.wait_for("finished_jobs", [job_id])


def test_forged_answers_are_shown_as_plain_text(yard: Yard, client: Redis, monkeypatch: Any) -> None:
    (job_id,) = yard.pushed(jobs.hang, "a")
    monkeypatch.setattr("secrets.token_hex", lambda _: "b" * 32)
    hostile = {
        "state": "running",
        "process": 7,
        "place": "\x1b[2J",
        "frames": [["<b>", 1, "\x1b]0;x"], 3, [1, 2, 3]],
    }
    with yard.working(DRAIN_JOBS=jobs.MODULE):
        listening_rq_worker(client, tracked=True)
        has_begun(yard, "a")
        client.rpush(f"drain:stack:{NAMESPACE}:{'b' * 32}", json.dumps(hostile))
        shown = invoked(yard, str(job_id))
        assert shown.exit_code == 0
        assert "\x1b" not in shown.output
        assert "<b>:1" in shown.output
        yard.say("go")
        yard.wait_for("finished_jobs", [job_id])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"state": "silent", "place": "process 7"}, "process 7 on"),
        ({"state": "waiting"}, "has not started"),
        ({"state": "ended"}, "has just ended"),
        ({"state": "unknown"}, "has just ended"),
        ({"state": ["unhashable"]}, "has just ended"),
        ({}, "has just ended"),
    ],
)
def test_each_answer_without_a_stack_is_reported_in_one_line(
    yard: Yard, client: Redis, monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], says: str
) -> None:
    query(yard.database_url, CLAIMS.format(number=1))
    monkeypatch.setattr("secrets.token_hex", lambda _: "b" * 32)
    client.hset("rq:worker:w", mapping={"hostname": "host-1", "pid": "1", "drain": NAMESPACE})
    client.sadd("rq:workers:mail", "rq:worker:w")
    client.rpush(f"drain:stack:{NAMESPACE}:{'b' * 32}", json.dumps(answer))
    with client.pubsub() as listening:  # type: ignore[no-untyped-call]
        listening.subscribe(commands_channel("w"))
        assert listening.get_message(timeout=PATIENCE_SECONDS)
        text = refusal(yard, 1)
    assert says in text
    assert "\n" not in text


def test_the_command_fits_its_width_and_prints_json(yard: Yard, client: Redis) -> None:
    (job_id,) = yard.pushed(jobs.hang, "a")
    with yard.working(DRAIN_JOBS=jobs.MODULE):
        listening_rq_worker(client, tracked=True)
        has_begun(yard, "a")
        shown = invoked(yard, str(job_id))
        assert shown.exit_code == 0, shown.output
        assert max(map(len, shown.output.splitlines())) <= 80
        assert "_deep_inside" in shown.output
        assert f"tests/jobs_that_hang.py:{jobs._deep_inside.__code__.co_firstlineno + 2}" in shown.output
        found = json.loads(invoked(yard, str(job_id), "--json").output)
        assert (found["id"], found["attempt"], found["beside"]) == (job_id, 1, [])
        yard.say("go")
        yard.wait_for("finished_jobs", [job_id])
    ended = invoked(yard, str(job_id))
    assert (ended.exit_code, ended.output.count("\n")) == (1, 1)
    assert invoked(yard, "999999").exit_code == 1


def invoked(yard: Yard, *words: str) -> Any:
    env = {
        "DRAIN_DATABASE_URL": yard.database_url,
        "DRAIN_REDIS_URL": yard.redis_url,
        "DRAIN_NAMESPACE": NAMESPACE,
        "COLUMNS": "80",
    }
    return CliRunner().invoke(main, ["stack", *words], env=env)
