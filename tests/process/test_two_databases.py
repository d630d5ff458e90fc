"""Two databases on one Redis: each namespace and queue belongs to one of them, and workers harm neither."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from uuid import UUID

import psycopg
import pytest
from redis import Redis
from rq import SimpleWorker
from rq.job import Job

from drain import audit, stage
from drain.database import postgres
from drain.enqueuer.redelivery import Redelivery
from drain.errors import OwnedByAnotherError
from drain.wire import Consumer, Producer
from drain.workers import entry
from drain.workers.execution import rq_calls
from tests import jobs_for_tests as jobs
from tests.helpers import (
    NAMESPACE,
    PATIENCE_SECONDS,
    ROOT,
    drain_command,
    effects,
    environment,
    ids_in,
    leading,
    new_enqueuer,
    pushed,
    pushed_jobs,
    query,
    stage_jobs,
    wait_until,
)

OTHER = "other"
OWNERS = "drain:owners:queues"
FORWARD = frozenset({"mail"})


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as connected:
        yield connected


def installation(database_url: str) -> str:
    ((found,),) = query(database_url, "SELECT installation::text FROM drain_state")
    return str(found)


def stage_record(database_url: str, label: str = "done") -> int:
    with psycopg.connect(database_url) as connection:
        return stage(connection, jobs.record, [label])


def drain(database_url: str, redis_url: str, namespace: str = NAMESPACE, **options: frozenset[str]) -> None:
    with new_enqueuer(database_url, redis_url, namespace=namespace, **options) as enqueuer:
        Redelivery(enqueuer).recover()
        enqueuer.drain()


def env_of(database_url: str, redis_url: str, namespace: str = NAMESPACE) -> dict[str, str]:
    more = {"DRAIN_NAMESPACE": namespace, "DRAIN_JOBS": jobs.MODULE, "PYTHONPATH": str(ROOT)}
    return environment(database_url, redis_url) | more


# --- one namespace


def test_forwarding_from_two_databases_in_one_namespace_loses_and_duplicates_nothing(
    database_url: str, other_database_url: str, redis_url: str
) -> None:
    ours = stage_jobs(database_url, 100, queue="mail")
    theirs = stage_jobs(other_database_url, 100, queue="mail")
    drain(database_url, redis_url, forward_queues=FORWARD)

    with pytest.raises(OwnedByAnotherError, match=f"namespace {NAMESPACE} .* {installation(database_url)}"):
        drain(other_database_url, redis_url, forward_queues=FORWARD)

    assert pushed_jobs(redis_url, "mail") == ours
    assert ids_in(other_database_url, "staged_jobs") == theirs


def test_a_push_in_progress_is_refused_when_another_database_takes_the_namespace(
    database_url: str, other_database_url: str, redis_url: str, client: Redis
) -> None:
    (forwarded,) = stage_jobs(database_url, queue="mail")
    with new_enqueuer(database_url, redis_url, forward_queues=FORWARD) as enqueuer:
        drain(other_database_url, redis_url)
        with pytest.raises(OwnedByAnotherError):
            enqueuer.drain()
        with pytest.raises(OwnedByAnotherError):
            Redelivery(enqueuer).run_once()
        with pytest.raises(OwnedByAnotherError):
            enqueuer.redis.mark()
    assert ids_in(database_url, "staged_jobs") == [forwarded]
    assert client.keys("rq:*") == []


@pytest.mark.parametrize("words", [("--once",), ("--metrics-port", "0")], ids=["once", "daemon"])
@pytest.mark.usefixtures("processes")
def test_drain_run_refuses_a_namespace_fed_by_another_database(
    database_url: str, other_database_url: str, redis_url: str, words: tuple[str, ...]
) -> None:
    drain(other_database_url, redis_url)
    with drain_command("run", *words, env=env_of(database_url, redis_url)) as command:
        assert command.wait(PATIENCE_SECONDS) == 1
        (line,) = command.output.splitlines()
    assert line.startswith(f"Error: namespace {NAMESPACE} on Redis at ")
    assert "DRAIN_NAMESPACE" in line
    assert f"drain run --take-over {installation(other_database_url)}" in line
    assert postgres.connect(other_database_url, "test").info.dbname in line
    assert "installation" in line


@pytest.mark.usefixtures("processes")
def test_a_leader_that_loses_its_namespace_to_another_database_ends(
    database_url: str, other_database_url: str, redis_url: str, client: Redis
) -> None:
    with leading(env_of(database_url, redis_url)) as command:
        client.delete(f"drain:{NAMESPACE}")
        with closing(Producer(redis_url, NAMESPACE)) as producer:
            producer.identify(installation(other_database_url), "another one")
            # The leader may put its own back in between.
            wait_until(lambda: _marked(producer, client), PATIENCE_SECONDS)
        assert command.wait(PATIENCE_SECONDS) == 1
        assert "belongs to another database, another one (installation" in command.output


def _marked(producer: Producer, client: Redis) -> bool:
    client.delete(f"drain:{NAMESPACE}")
    try:
        producer.mark()
    except OwnedByAnotherError:
        return False
    return True


@pytest.mark.usefixtures("processes")
def test_a_removed_databases_namespace_is_taken_over_with_its_queues(
    database_url: str, other_database_url: str, redis_url: str
) -> None:
    stage_jobs(other_database_url)
    drain(other_database_url, redis_url)
    ids = stage_jobs(database_url, 2)
    words = ("run", "--once", "--take-over", installation(other_database_url))
    with drain_command(*words, env=env_of(database_url, redis_url)) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert ids_in(database_url, "inflight_jobs") == ids
    assert pushed_jobs(redis_url)[-2:] == ids
    with pytest.raises(OwnedByAnotherError):
        drain(other_database_url, redis_url)


@pytest.mark.usefixtures("processes")
def test_a_takeover_removes_only_the_old_ids_and_pushes_refused_jobs(
    database_url: str, other_database_url: str, redis_url: str, client: Redis
) -> None:
    stage_jobs(other_database_url, 1200)
    drain(other_database_url, redis_url, OTHER)
    copy, *_ = pushed(redis_url)
    refused = stage_jobs(database_url, 2)
    drain(database_url, redis_url)
    client.rpush("rq:queue:default", "somebody-else", copy)
    client.lpush("rq:queue:default", "no-such-job", copy)
    client.rpush("rq:queue:mail", copy)
    hashes = len(client.keys("rq:job:*"))

    words = ("run", "--once", "--take-over", installation(other_database_url))
    with drain_command(*words, env=env_of(database_url, redis_url)) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        (line,) = command.events("taken_over")

    assert "removed 1202 job ids" in line["message"]
    strangers, ours = pushed(redis_url)[:2], pushed_jobs(redis_url)
    assert (strangers, ours) == (["no-such-job", "somebody-else"], refused)
    assert pushed(redis_url, "mail") == [copy]
    assert len(client.keys("rq:job:*")) == hashes + 2


def test_a_takeover_does_not_touch_a_namespace_fed_by_a_third_database(redis_url: str, client: Redis) -> None:
    client.hset(OWNERS, "mail", f"{UUID(int=1)} gone")
    third = f"{UUID(int=3)} remembers third"
    client.set(f"drain:{NAMESPACE}", third)
    with closing(Producer(redis_url, NAMESPACE)) as producer:
        producer.identify(str(UUID(int=2)), "ours")
        assert producer.take_over(str(UUID(int=1))) == 1
    assert client.get(f"drain:{NAMESPACE}") == third.encode()


def test_an_older_versions_mark_is_replaced_without_a_push(
    database_url: str, redis_url: str, client: Redis
) -> None:
    stage_jobs(database_url)
    drain(database_url, redis_url)
    client.set(f"drain:{NAMESPACE}", "what was pushed is remembered as long as this is")
    drain(database_url, redis_url)
    assert len(pushed(redis_url)) == 1
    mark = client.get(f"drain:{NAMESPACE}")
    assert isinstance(mark, bytes)
    assert mark.startswith(installation(database_url).encode())


def test_a_redis_that_lost_its_data_belongs_to_the_first_pusher(
    database_url: str, other_database_url: str, redis_url: str, client: Redis
) -> None:
    stage_jobs(database_url)
    drain(database_url, redis_url)
    client.flushall()
    stage_jobs(other_database_url)
    drain(other_database_url, redis_url)
    with pytest.raises(OwnedByAnotherError):
        drain(database_url, redis_url)


# --- one queue


def test_a_queue_that_another_database_feeds_gets_nothing_and_other_queues_go_on(
    database_url: str, other_database_url: str, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = stage_jobs(other_database_url)
    drain(other_database_url, redis_url, OTHER)
    waiting = stage_jobs(database_url, 3)
    mail = stage_jobs(database_url, queue="mail")
    with new_enqueuer(database_url, redis_url) as enqueuer, caplog.at_level(logging.ERROR):
        Redelivery(enqueuer).recover()
        for _ in range(2):
            enqueuer.drain()
            waiting += stage_jobs(database_url)
        enqueuer.drain()

    assert pushed_jobs(redis_url, namespace=OTHER) == theirs
    assert (pushed_jobs(redis_url), pushed_jobs(redis_url, "mail")) == ([], mail)
    assert ids_in(database_url, "inflight_jobs") == sorted(waiting + mail)
    (line,) = caplog.messages
    assert line.startswith("queue default belongs to another database")
    assert installation(other_database_url) in line


@pytest.mark.usefixtures("processes")
def test_once_does_not_count_jobs_refused_by_redis(
    database_url: str, other_database_url: str, redis_url: str
) -> None:
    stage_jobs(other_database_url)
    drain(other_database_url, redis_url, OTHER)
    stage_jobs(database_url, 3)
    stage_jobs(database_url, queue="mail")

    with drain_command("run", "--once", env=env_of(database_url, redis_url)) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        assert "1 job went to Redis" in command.output
        assert "3 jobs refused by Redis" in command.output


def test_forwarded_jobs_of_a_queue_that_another_database_feeds_stay_staged(
    database_url: str, other_database_url: str, redis_url: str
) -> None:
    stage_jobs(other_database_url, queue="mail")
    drain(other_database_url, redis_url, OTHER)
    staged = stage_jobs(database_url, 2, queue="mail")
    (free,) = stage_jobs(database_url, queue="letters")
    drain(database_url, redis_url, forward_queues=frozenset({"mail", "letters"}))
    assert ids_in(database_url, "staged_jobs") == staged
    assert pushed_jobs(redis_url, "letters") == [free]
    assert len(pushed(redis_url, "mail")) == 1


def test_refused_jobs_are_pushed_once_their_queue_is_free(
    database_url: str, other_database_url: str, redis_url: str, client: Redis
) -> None:
    stage_jobs(other_database_url)
    drain(other_database_url, redis_url, OTHER)
    ids = stage_jobs(database_url, 3)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        redelivery = Redelivery(enqueuer, lost_after_seconds=0)
        redelivery.recover()
        enqueuer.drain()
        assert redelivery.run_once() + redelivery.run_once() == 0
        client.hdel(OWNERS, "default")
        assert redelivery.run_once() == 3
    assert pushed_jobs(redis_url) == ids


def test_a_new_leader_pushes_jobs_refused_before_the_queue_was_free(
    database_url: str, other_database_url: str, redis_url: str, client: Redis
) -> None:
    stage_jobs(other_database_url, 60)
    drain(other_database_url, redis_url, OTHER)
    ids = stage_jobs(database_url, 3)
    drain(database_url, redis_url)
    client.hdel(OWNERS, "default")
    with new_enqueuer(database_url, redis_url) as enqueuer:
        redelivery = Redelivery(enqueuer, lost_after_seconds=0)
        redelivery.recover()
        assert redelivery.run_once() + redelivery.run_once() == 3
    assert pushed_jobs(redis_url) == ids


def test_the_audit_names_the_database_that_feeds_a_queue(
    database_url: str, other_database_url: str, redis_url: str
) -> None:
    stage_jobs(other_database_url)
    drain(other_database_url, redis_url, OTHER)
    stage_jobs(database_url)
    drain(database_url, redis_url)
    with (
        postgres.connect(database_url, "test") as connection,
        closing(Producer(redis_url, NAMESPACE)) as producer,
    ):
        breaches = audit.audit(connection, producer, patience_seconds=0).breaches
    assert any(installation(other_database_url) in breach.explanation for breach in breaches)


# --- workers


@pytest.mark.usefixtures("processes")
def test_jobs_of_two_databases_in_one_queue_each_run_once_in_theirs(
    database_url: str, other_database_url: str, redis_url: str, client: Redis
) -> None:
    """Lists as two enqueuers of an older version left them: ids of both, in turn."""
    for url in (database_url, other_database_url):
        jobs.create_effects(url)
    for number in range(3):
        stage_record(database_url)
        drain(database_url, redis_url)
        stage_record(other_database_url)
        client.hdel(OWNERS, "default")
        drain(other_database_url, redis_url, OTHER)
        client.hdel(OWNERS, "default")
        assert len(pushed(redis_url)) == 2 * (number + 1)

    with drain_command("work", "--burst", env=env_of(database_url, redis_url)) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        (line,) = command.events("foreign_job")
    assert "are left to its own workers" in line["message"]
    assert len(ids_in(database_url, "finished_jobs")) == 3
    assert ids_in(other_database_url, "finished_jobs") == []
    assert len(pushed(redis_url)) == len(client.keys("rq:job:*")) == 3

    with drain_command("work", "--burst", env=env_of(other_database_url, redis_url, OTHER)) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert len(ids_in(other_database_url, "finished_jobs")) == 3
    assert [effects(url) for url in (database_url, other_database_url)] == [["done"] * 3] * 2


@pytest.mark.usefixtures("processes")
def test_a_waiting_worker_finds_its_jobs_among_those_of_another_database(
    database_url: str, other_database_url: str, redis_url: str, client: Redis
) -> None:
    jobs.create_effects(database_url)
    theirs = stage_jobs(other_database_url, 3)
    drain(other_database_url, redis_url, OTHER)
    with drain_command("work", env=env_of(database_url, redis_url)) as command:
        wait_until(lambda: command.events("foreign_job"), PATIENCE_SECONDS)
        client.delete(OWNERS)
        job_id = stage_record(database_url)
        drain(database_url, redis_url)
        wait_until(lambda: ids_in(database_url, "finished_jobs") == [job_id], PATIENCE_SECONDS)
        # The worker has one of them in hand for a moment, each time that it waits for the list.
        wait_until(lambda: pushed_jobs(redis_url, namespace=OTHER) == theirs)


@pytest.mark.parametrize(("jobs_of_theirs", "copies"), [(1, 2), (600, 1), (1100, 1)])
def test_another_databases_ids_block_neither_other_queues_nor_later_jobs(
    database_url: str,
    other_database_url: str,
    redis_url: str,
    client: Redis,
    jobs_of_theirs: int,
    copies: int,
) -> None:
    (ours, *_), letter = stage_jobs(database_url, queue="mail"), stage_jobs(database_url, queue="letters")
    drain(database_url, redis_url)
    stage_jobs(other_database_url, jobs_of_theirs, queue="mail")
    client.delete(OWNERS)
    drain(other_database_url, redis_url, OTHER)
    for _ in range(1, copies):
        client.rpush("rq:queue:mail", *pushed(redis_url, "mail")[1:])
    behind = pushed(redis_url, "mail")[0]
    client.lpop("rq:queue:mail")
    client.rpush("rq:queue:mail", behind)
    before = sorted(pushed(redis_url, "mail"))

    consumer = Consumer(
        redis_url, NAMESPACE, ["mail", "letters"], installation=lambda: installation(database_url)
    )
    with closing(consumer):
        assert [taken.job_id for _ in range(2) for taken in consumer.pop(1) or []] == [ours, *letter]
        assert consumer.pop(1) == []
        assert not consumer.more_to_classify
        assert consumer.skips_lists
    assert sorted([*pushed(redis_url, "mail"), behind]) == before


@pytest.mark.usefixtures("processes")
def test_deliveries_under_a_namespace_that_the_database_had_before_are_claimed(
    database_url: str, redis_url: str, client: Redis
) -> None:
    jobs.create_effects(database_url)
    ids = [stage_record(database_url) for _ in range(2)]
    drain(database_url, redis_url, "before")
    with drain_command("work", "--burst", env=env_of(database_url, redis_url)) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
        assert not command.events("foreign_job")
    assert ids_in(database_url, "finished_jobs") == ids
    assert client.keys("rq:job:*") == []


def test_an_rq_worker_returns_the_jobs_of_another_database(
    database_url: str,
    other_database_url: str,
    redis_url: str,
    client: Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("DRAIN_DATABASE_URL", database_url)
    monkeypatch.setenv("DRAIN_JOBS", jobs.MODULE)
    monkeypatch.setattr(rq_calls, "_FOREIGN_PAUSE_SECONDS", 0)
    monkeypatch.setattr(entry, "_workers", {})
    monkeypatch.setattr(SimpleWorker, "_install_signal_handlers", lambda _worker: None)
    (ours,) = stage_jobs(database_url)
    drain(database_url, redis_url)
    client.flushall()
    (theirs,) = stage_jobs(other_database_url)
    drain(other_database_url, redis_url, OTHER)
    assert ours == theirs

    with caplog.at_level(logging.ERROR):
        SimpleWorker(["default"], connection=client).work(burst=True, max_jobs=2, logging_level="ERROR")

    assert query(database_url, "SELECT id FROM inflight_jobs WHERE claimed_at IS NOT NULL") == []
    (rq_id,) = pushed(redis_url)
    assert pushed_jobs(redis_url, namespace=OTHER) == [theirs]
    assert Job.fetch(rq_id, connection=client).args == (
        theirs,
        UUID(installation(other_database_url)).bytes,
    )
    assert any("holds jobs of another database" in message for message in caplog.messages)


@pytest.mark.usefixtures("processes")
def test_an_id_in_the_list_of_another_queue_claims_nothing(
    database_url: str, redis_url: str, client: Redis
) -> None:
    jobs.create_effects(database_url)
    job_id = stage_record(database_url)
    drain(database_url, redis_url)
    (rq_id,) = pushed(redis_url)
    client.rpush("rq:queue:reports", rq_id)
    env = env_of(database_url, redis_url)
    with drain_command("work", "--burst", "reports", env=env) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert pushed(redis_url, "reports") == []
    assert client.exists(f"rq:job:{rq_id}")
    assert query(database_url, "SELECT id FROM inflight_jobs WHERE claimed_at IS NULL") == [(job_id,)]
    with drain_command("work", "--burst", env=env) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert ids_in(database_url, "finished_jobs") == [job_id]


@pytest.mark.usefixtures("processes")
def test_a_takeover_from_the_same_database_is_refused_on_one_line(database_url: str, redis_url: str) -> None:
    words = ("run", "--once", "--take-over", installation(database_url))
    with drain_command(*words, env=env_of(database_url, redis_url)) as command:
        assert command.wait(PATIENCE_SECONDS) == 1
        assert command.output.splitlines()[-1].startswith(
            "Error: --take-over names this database's own installation"
        )
