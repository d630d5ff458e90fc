"""`drain work --only-tracked`: what is not ours is refused without a byte of it being unpickled."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from redis import Redis
from rq import Queue
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry

from drain import stage
from drain.config import Settings
from drain.enqueuer.redelivery import Redelivery
from drain.errors import ConfigError
from drain.wire import Consumer, pop
from drain.wire.foreign_jobs import REFUSAL
from tests import jobs_for_tests as jobs
from tests.helpers import (
    NAMESPACE,
    PATIENCE_SECONDS,
    ROOT,
    drain_command,
    environment,
    ids_in,
    new_enqueuer,
    pushed,
    stage_jobs,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("processes")

GARBAGE = b"\xff\x1b[2Jgarbage"


class Canary:
    """Whoever unpickles it leaves a file behind."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.file,)


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as connected:
        yield connected


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    return tmp_path / "canary"


@pytest.fixture
def env(database_url: str, redis_url: str) -> dict[str, str]:
    jobs.create_effects(database_url)
    return environment(database_url, redis_url, DRAIN_JOBS=jobs.MODULE, PYTHONPATH=str(ROOT))


def push_canary(client: Redis, canary: Path, rq_id: str, queue: str = "default") -> None:
    """A plain RQ job each field of which is dangerous to read."""
    poison = pickle.dumps(Canary(canary))
    fields: dict[Any, Any] = {
        "data": poison,
        "meta": poison,
        "result": poison,
        "origin": queue,
        "status": "queued",
        "timeout": "180",
        "created_at": "2026-01-01T00:00:00.000000Z",
        "failure_callback_name": "os.abort",
    }
    client.hset(f"rq:job:{rq_id}", mapping=fields)
    client.sadd("rq:queues", f"rq:queue:{queue}")
    client.rpush(f"rq:queue:{queue}", rq_id)


def deliver(database_url: str, redis_url: str, label: str = "done") -> int:
    with psycopg.connect(database_url) as connection:
        job_id = stage(connection, jobs.record, [label])
    with new_enqueuer(database_url, redis_url) as enqueuer:
        Redelivery(enqueuer).recover()
        enqueuer.drain()
    return job_id


@pytest.mark.contrib
def test_the_canary_sings_for_a_worker_that_runs_plain_jobs(
    client: Redis, canary: Path, env: dict[str, str]
) -> None:
    push_canary(client, canary, "evil")
    with drain_command("work", "--burst", env=env) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert canary.exists()


@pytest.mark.parametrize("by_setting", [False, True], ids=["option", "setting"])
def test_plain_jobs_are_refused_unread_and_later_tracked_jobs_run(
    database_url: str, redis_url: str, client: Redis, canary: Path, env: dict[str, str], *, by_setting: bool
) -> None:
    for number in range(1200):
        push_canary(client, canary, f"evil-{number}")
    client.rpush("rq:queue:default", GARBAGE, "no-such-job")
    job_id = deliver(database_url, redis_url)
    push_canary(client, canary, "last")

    more = {"DRAIN_ONLY_TRACKED_QUEUES": "letters, default"} if by_setting else {}
    words = [] if by_setting else ["--only-tracked"]
    with drain_command("work", "--burst", *words, env=env | more) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        assert len(command.events("untracked_refused")) == 10
        assert "\x1b" not in command.output

    assert not canary.exists()
    assert ids_in(database_url, "finished_jobs") == [job_id]
    assert pushed(redis_url) == []
    assert client.keys("*intermediate*") == []
    failed = FailedJobRegistry("default", connection=client)
    assert len(failed.get_job_ids(cleanup=False)) == 1201


def test_rqs_tools_show_a_refused_job_as_failed_with_the_reason(
    client: Redis, redis_url: str, env: dict[str, str]
) -> None:
    queue = Queue("default", connection=client)
    job = queue.enqueue("os.getpid")
    with drain_command("work", "--burst", "--only-tracked", env=env) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        (line,) = command.events("untracked_refused")
    assert job.id in line["message"]
    found = Job.fetch(job.id, connection=client)
    assert found.get_status() == JobStatus.FAILED
    assert found._exc_info == REFUSAL
    assert queue.failed_job_registry.get_job_ids() == [job.id]
    assert found.ended_at is not None


def test_a_waiting_worker_refuses_plain_jobs_and_names_dropped_ids_as_text(
    database_url: str, redis_url: str, client: Redis, canary: Path, env: dict[str, str]
) -> None:
    with drain_command("work", "mail", "default", "--only-tracked", env=env) as command:
        wait_until(lambda: client.smembers("rq:workers"), PATIENCE_SECONDS)
        push_canary(client, canary, "evil")
        wait_until(lambda: command.events("untracked_refused"), PATIENCE_SECONDS)
        client.rpush("rq:queue:mail", GARBAGE)
        (line,) = wait_until(lambda: command.events("untracked_dropped"), PATIENCE_SECONDS)
        job_id = deliver(database_url, redis_url)
        wait_until(lambda: ids_in(database_url, "finished_jobs") == [job_id], PATIENCE_SECONDS)
    assert "\\x1b[2Jgarbage" in line["message"]
    assert not canary.exists()


@pytest.mark.contrib
def test_plain_jobs_of_other_queues_run_next_to_a_tracked_only_queue(
    database_url: str, redis_url: str, client: Redis, canary: Path, env: dict[str, str]
) -> None:
    push_canary(client, canary, "evil", "mail")
    job = Queue("default", connection=client).enqueue("os.getpid")
    words = ("work", "mail", "default", "--burst", "--only-tracked-queues", "mail")
    with drain_command(*words, env=env) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert job.get_status() == JobStatus.FINISHED
    assert not canary.exists()


@pytest.mark.contrib
@pytest.mark.parametrize("only_tracked", ["default", ""], ids=["of tracked ones", "of all"])
def test_rqs_maintenance_reads_no_job_of_a_tracked_only_queue(
    client: Redis, canary: Path, env: dict[str, str], only_tracked: str
) -> None:
    push_canary(client, canary, "evil")
    client.delete("rq:queue:default")
    client.rpush("rq:queue:default:intermediate", "evil")
    client.zadd("rq:wip:default", {"evil:execution": 1})
    told = env | {"DRAIN_ONLY_TRACKED_QUEUES": only_tracked}
    with drain_command("work", "default", "mail", "--burst", "--with-scheduler", env=told) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert canary.exists() is not bool(only_tracked)


def test_a_queue_cannot_be_both_forwarded_and_tracked_only() -> None:
    with pytest.raises(ConfigError, match=r"'mail'.*DRAIN_ONLY_TRACKED_QUEUES"):
        Settings(
            database_url="postgresql://localhost/shop",
            forward_queues=frozenset({"mail"}),
            only_tracked_queues=frozenset({"mail"}),
        )


def test_a_tracked_id_with_a_poisoned_hash_runs_without_reading_it(
    database_url: str, redis_url: str, client: Redis, canary: Path, env: dict[str, str]
) -> None:
    job_id = deliver(database_url, redis_url)
    (rq_id,) = pushed(redis_url)
    client.hset(f"rq:job:{rq_id}", "data", pickle.dumps(Canary(canary)))
    with drain_command("work", "--burst", "--only-tracked", env=env) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert ids_in(database_url, "finished_jobs") == [job_id]
    assert not canary.exists()


def test_a_classifying_intake_leaves_jobs_of_another_database_in_their_list(
    database_url: str, other_database_url: str, redis_url: str
) -> None:
    with new_enqueuer(other_database_url, redis_url, namespace="other") as enqueuer:
        stage_jobs(other_database_url, 2)
        enqueuer.drain()
    before = pushed(redis_url)
    consumer = Consumer(
        redis_url, NAMESPACE, ["default"], installation=lambda: "another", only_tracked=["default"]
    )
    with closing(consumer):
        assert consumer.pop(10) == []
        assert consumer.skips_lists
        assert consumer.wait(0.01) is None
    assert pushed(redis_url) == before


def test_copies_of_one_id_are_dropped_together(redis_url: str, client: Redis) -> None:
    client.rpush("rq:queue:default", *[GARBAGE] * 5000, f"{NAMESPACE}-1-1")
    consumer = Consumer(
        redis_url, NAMESPACE, ["default"], installation=lambda: "ours", only_tracked=["default"]
    )
    with closing(consumer):
        assert [taken.job_id for taken in consumer.pop(1) or []] == [1]
    assert pushed(redis_url) == []


def test_a_list_that_is_slow_to_clear_does_not_block_other_queues(
    redis_url: str, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop, "_MOST_ROUNDS", 2)
    client.rpush("rq:queue:default", *[GARBAGE] * 5000)
    client.rpush("rq:queue:mail", f"{NAMESPACE}-1-1")
    consumer = Consumer(
        redis_url, NAMESPACE, ["default", "mail"], installation=lambda: "ours", only_tracked=["default"]
    )
    with closing(consumer):
        assert consumer.pop(1) == []
        assert consumer.more_to_classify
        assert [taken.job_id for taken in consumer.pop(1) or []] == [1]
