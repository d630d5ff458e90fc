"""Thin deliveries: where only `drain work` listens on a queue, Redis holds ids without hashes, and nothing is lost."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest
from redis import Redis
from rq import Worker
from rq.command import send_stop_job_command
from rq.job import Job
from rq.registry import FailedJobRegistry
from rq.suspension import resume, suspend

from drain import cancel
from drain.enqueuer import lost_deliveries, redelivery, thin_queues
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.redelivery import LOST_AFTER_SECONDS, Redelivery
from drain.enqueuer.thin_queues import ThinQueues
from drain.tables import claims
from drain.wire import Consumer, Producer, QueueReader, is_thin
from tests import jobs_in_batches as jobs
from tests.helpers import (
    NAMESPACE,
    PATIENCE_SECONDS,
    RQ,
    drain_command,
    ids_in,
    impatient,
    leading,
    new_enqueuer,
    pushed,
    pushed_jobs,
    query,
    rq_worker,
    stage_jobs,
    wait_until,
)
from tests.worker_processes import Yard


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (lost_deliveries, redelivery, thin_queues):
        monkeypatch.setattr(module, "monotonic", clock)
    return clock


def register(client: Redis, name: str, *, namespace: str | None = NAMESPACE, queue: str = "default") -> None:
    """Enter a worker into RQ's lists, as `drain work` does; without a namespace as a stock `rq worker` does."""
    key = f"rq:worker:{name}"
    client.hset(key, "birth", "now")
    if namespace:
        client.hset(key, "drain", namespace)
    client.sadd(f"rq:workers:{queue}", key)


def hashes(client: Redis) -> list[str]:
    keys: Any = client.keys("rq:job:*")
    return sorted(key.decode() for key in keys)


def forget_memory(client: Redis) -> None:
    """Redis loses its data. A process of `drain work` registers again, a stock `rq worker` does not."""
    client.flushdb()
    register(client, "one.tracked")
    client.hset("rq:worker:stock", "last_heartbeat", "now")


def push_more(enqueuer: Enqueuer, database_url: str, redis_url: str, queue: str = "default") -> list[str]:
    """Push jobs until the leader has looked who listens, and then three more; returns the ids of these."""
    for _ in range(2):
        before = len(pushed(redis_url, queue))
        stage_jobs(database_url, 3, queue=queue)
        enqueuer.drain()
    return pushed(redis_url, queue)[before:]


@contextmanager
def thin_leader(database_url: str, redis_url: str) -> Iterator[tuple[Enqueuer, Redelivery]]:
    """A leader that pushes all jobs thin."""
    with (
        closing(Producer(redis_url, NAMESPACE)) as looks,
        new_enqueuer(database_url, redis_url, thin_queues=ThinQueues(looks, {"*"})) as enqueuer,
    ):
        redelivery = Redelivery(enqueuer)
        redelivery.recover()
        enqueuer.drain()
        yield enqueuer, redelivery


# --- which queues


def test_where_only_drain_work_listens_ids_have_no_hashes(
    database_url: str, redis_url: str, client: Redis
) -> None:
    register(client, "one.tracked")
    # Its companion pops nothing.
    register(client, "one", namespace=None)
    register(client, "two.tracked")
    with new_enqueuer(database_url, redis_url) as enqueuer:
        thin = push_more(enqueuer, database_url, redis_url)

    assert len(thin) == 3
    assert all(map(is_thin, thin))
    assert len(hashes(client)) == 3  # of the batch before the first look


@pytest.mark.parametrize(
    "workers",
    [
        {},
        {"stock": None},
        {"one.tracked": NAMESPACE, "stock": None},
        {"one.tracked": NAMESPACE, "two.tracked": "another"},
        {"one.tracked": NAMESPACE, "two": None, "two.tracked": None},
    ],
    ids=["nobody", "a stock worker", "both", "another database", "an older version"],
)
def test_ids_have_hashes_where_other_workers_or_none_listen(
    workers: dict[str, str | None], database_url: str, redis_url: str, client: Redis
) -> None:
    for name, namespace in workers.items():
        register(client, name, namespace=namespace)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        whole = push_more(enqueuer, database_url, redis_url)

    assert not any(map(is_thin, whole))
    assert client.exists(*(f"rq:job:{rq_id}" for rq_id in whole)) == 3


def test_a_dead_worker_and_those_of_other_queues_do_not_count(
    database_url: str, redis_url: str, client: Redis
) -> None:
    register(client, "one.tracked")
    client.sadd("rq:workers:default", "rq:worker:dead")
    register(client, "stock", namespace=None, queue="mail")
    with new_enqueuer(database_url, redis_url) as enqueuer:
        assert all(map(is_thin, push_more(enqueuer, database_url, redis_url)))
        assert not any(map(is_thin, push_more(enqueuer, database_url, redis_url, "mail")))


def test_a_new_stock_worker_is_noticed_within_a_second(
    database_url: str, redis_url: str, client: Redis, clock: Clock
) -> None:
    register(client, "one.tracked")
    with new_enqueuer(database_url, redis_url) as enqueuer:
        assert all(map(is_thin, push_more(enqueuer, database_url, redis_url)))
        clock.now += 3600
        stage_jobs(database_url)
        enqueuer.drain()
        assert not is_thin(pushed(redis_url)[-1])
        register(client, "stock", namespace=None)
        clock.now += 1
        assert not any(map(is_thin, push_more(enqueuer, database_url, redis_url)))


@pytest.mark.parametrize(
    ("always", "never", "queue", "thin"),
    [
        ({"default"}, set(), "default", True),
        ({"*"}, set(), "default", True),
        ({"*"}, {"default"}, "default", False),
        (set(), {"*"}, "registered", False),
        ({"registered"}, {"*"}, "registered", True),
        (set(), {"registered"}, "registered", False),
        ({"default"}, set(), "mail", False),
    ],
)
def test_a_manual_setting_overrides_the_registry(
    always: set[str], never: set[str], queue: str, *, thin: bool, redis_url: str, client: Redis
) -> None:
    register(client, "one.tracked", queue="registered")
    with closing(Producer(redis_url, NAMESPACE)) as producer:
        queues = ThinQueues(producer, always, never)
        queues.choose({queue})
        queues.look_when_due()
        assert queues.choose({queue}) == ({queue} if thin else set())


def test_a_mixed_batch_keeps_the_order_of_each_queue(
    database_url: str, redis_url: str, client: Redis
) -> None:
    with (
        closing(Producer(redis_url, NAMESPACE)) as looks,
        new_enqueuer(database_url, redis_url, thin_queues=ThinQueues(looks, {"mail"})) as enqueuer,
    ):
        ids: dict[str, list[int]] = {"default": [], "mail": []}
        for _ in range(3):
            for queue in ids:
                ids[queue] += stage_jobs(database_url, queue=queue)
        enqueuer.drain()
        assert enqueuer.delivered == 6

    assert {queue: pushed_jobs(redis_url, queue) for queue in ids} == ids
    assert [is_thin(rq_id) for rq_id in pushed(redis_url, "mail")] == [True] * 3
    assert {key.removeprefix("rq:job:") for key in hashes(client)} == set(pushed(redis_url))


def test_thin_ids_are_refused_for_another_databases_queue_too(
    database_url: str, redis_url: str, client: Redis
) -> None:
    client.hset("drain:owners:queues", "mail", "00000000-0000-0000-0000-000000000001 another")
    client.set("rq:queue:default", "no list")
    stage_jobs(database_url, 2)
    stage_jobs(database_url, 2, queue="mail")
    with thin_leader(database_url, redis_url) as (enqueuer, _):
        assert (enqueuer.refused, enqueuer.delivered) == (4, 0)

    assert pushed(redis_url, "mail") == []


# --- what is lost


def test_ids_dropped_one_after_another_are_pushed_whole_after_the_grace(
    database_url: str, redis_url: str, client: Redis, clock: Clock
) -> None:
    ids = stage_jobs(database_url, 6)
    with thin_leader(database_url, redis_url) as (_, redelivery):
        client.lpop("rq:queue:default", 5)
        with psycopg.connect(database_url) as connection:
            for job_id in (ids[1], ids[3]):
                assert claims.claim(connection, job_id, worker="test", limits={})
        assert redelivery.run_once() == 0
        clock.now += LOST_AFTER_SECONDS
        assert redelivery.run_once() == 3

        again = pushed(redis_url)[1:]
        assert pushed_jobs(redis_url) == [ids[5], ids[0], ids[2], ids[4]]
        assert not any(map(is_thin, again))
        assert client.exists(*(f"rq:job:{rq_id}" for rq_id in again)) == 3


def test_whole_jobs_are_pushed_after_redis_lost_its_data_or_the_leader_changed(
    database_url: str, redis_url: str, client: Redis
) -> None:
    ids = stage_jobs(database_url, 3)
    with thin_leader(database_url, redis_url) as (_, redelivery):
        assert hashes(client) == []
        client.flushall()
        assert redelivery.run_once() == 3
        assert len(hashes(client)) == 3
        # As if it had died between the commit and the push.
        query(database_url, "SELECT setval('drain_pushed_up_to', 0)")
    with thin_leader(database_url, redis_url):
        assert pushed_jobs(redis_url) == 2 * ids
        assert not any(map(is_thin, pushed(redis_url)))


def test_thin_ids_of_a_removed_database_are_deleted_from_its_lists(
    database_url: str, redis_url: str, client: Redis
) -> None:
    stage_jobs(database_url, 3)
    with thin_leader(database_url, redis_url) as (enqueuer, _):
        client.rpush("rq:queue:default", "plain-7-07x")
        assert sum(enqueuer.redis.remove_ids_of(enqueuer.redis.installation)) == 3

    assert pushed(redis_url) == ["plain-7-07x"]


def test_the_place_of_a_thin_delivery_is_found(database_url: str, redis_url: str) -> None:
    ids = stage_jobs(database_url, 3)
    with thin_leader(database_url, redis_url), closing(QueueReader(redis_url, NAMESPACE)) as reader:
        assert reader.ids_before("default", ids[2], 3, within=100) == 2
        assert reader.ids_before("default", ids[2], 4, within=100) is None


def test_a_thin_id_is_recognised_as_ours_by_its_number(database_url: str, redis_url: str) -> None:
    (job_id,) = stage_jobs(database_url)
    with thin_leader(database_url, redis_url):
        pass
    with closing(Consumer(redis_url, NAMESPACE, ["default"])) as consumer:
        (popped,) = consumer.pop(10) or []
        assert (popped.job_id, popped.delivery, is_thin(popped.rq_id)) == (job_id, 1, True)
        consumer.give_back([(popped.queue, popped.rq_id)])

    assert pushed(redis_url) == [popped.rq_id]


# --- stock workers that RQ's registry does not name


def test_after_redis_lost_its_data_jobs_have_hashes_for_an_hour(
    database_url: str, redis_url: str, client: Redis
) -> None:
    register(client, "one.tracked")
    with new_enqueuer(database_url, redis_url) as enqueuer:
        redelivery = Redelivery(enqueuer)
        # A Redis that nothing was ever pushed to has lost nothing.
        redelivery.recover()
        assert all(map(is_thin, push_more(enqueuer, database_url, redis_url)))
        forget_memory(client)
        redelivery.run_once()
        stage_jobs(database_url)
        # Without another look at the registry.
        enqueuer.drain()
        assert not is_thin(pushed(redis_url)[-1])
        assert not any(map(is_thin, push_more(enqueuer, database_url, redis_url)))
    for _ in range(2):
        with new_enqueuer(database_url, redis_url) as successor:
            Redelivery(successor).recover()
            assert not any(map(is_thin, push_more(successor, database_url, redis_url)))
        forget_memory(client)
    with new_enqueuer(database_url, redis_url) as successor:
        Redelivery(successor).recover()
        (key,) = client.scan_iter("drain:whole:*")
        assert 3590 < client.ttl(key) <= 3600
        client.delete(key)
        assert all(map(is_thin, push_more(successor, database_url, redis_url)))


def test_a_queue_that_lost_deliveries_has_hashes_for_an_hour(
    database_url: str, redis_url: str, client: Redis, clock: Clock
) -> None:
    for queue in ("default", "mail"):
        register(client, "one.tracked", queue=queue)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        redelivery = Redelivery(enqueuer)
        redelivery.recover()
        assert all(map(is_thin, push_more(enqueuer, database_url, redis_url)))
        client.lpop("rq:queue:default", 1)
        redelivery.run_once()
        clock.now += LOST_AFTER_SECONDS
        push_more(enqueuer, database_url, redis_url)
        assert redelivery.run_once() == 1
        stage_jobs(database_url)
        enqueuer.drain()
        assert not is_thin(pushed(redis_url)[-1])
        clock.now += 1
        assert all(map(is_thin, push_more(enqueuer, database_url, redis_url, "mail")))
    with new_enqueuer(database_url, redis_url) as successor:
        assert not any(map(is_thin, push_more(successor, database_url, redis_url)))
        clock.now += 1
        assert all(map(is_thin, push_more(successor, database_url, redis_url, "mail")))
        (key,) = client.scan_iter("drain:whole:*")
        assert 3590 < client.ttl(key) <= 3600


# --- with real workers


def test_drain_run_pushes_thin_or_whole_as_its_settings_say(yard: Yard, client: Redis) -> None:
    with leading(yard.env(DRAIN_THIN_QUEUES="*", DRAIN_WHOLE_QUEUES="mail")):
        yard.stage(jobs.note, "thin")
        yard.stage(jobs.note, "whole", queue="mail")
        wait_until(lambda: pushed(yard.redis_url) and pushed(yard.redis_url, "mail"), PATIENCE_SECONDS)
    assert list(map(is_thin, pushed(yard.redis_url) + pushed(yard.redis_url, "mail"))) == [True, False]


def test_jobs_served_only_by_drain_work_keep_no_hash(yard: Yard, client: Redis) -> None:
    with yard.working("--processes", "1"), leading(yard.env()):
        wait_until(lambda: client.keys("rq:worker:*.tracked"), PATIENCE_SECONDS)
        suspend(client)
        ids: list[int] = []

        def waiting() -> list[str]:
            ids.extend(yard.stage(jobs.note, "one"))
            wait_until(lambda: len(pushed(yard.redis_url)) == len(ids), PATIENCE_SECONDS)
            return pushed(yard.redis_url)

        wait_until(lambda: len(list(filter(is_thin, waiting()))) > 1, PATIENCE_SECONDS)
        whole = [f"rq:job:{rq_id}" for rq_id in pushed(yard.redis_url) if not is_thin(rq_id)]
        assert hashes(client) == sorted(whole)
        with psycopg.connect(yard.database_url) as connection:
            cancel(connection, ids[-1])
        resume(client)
        yard.wait_for("finished_jobs", ids[:-1])
        wait_until(lambda: not hashes(client), PATIENCE_SECONDS)
    assert yard.place(ids[-1]) == "dead_jobs"
    assert yard.effects() == ["one"] * (len(ids) - 1)


def thin(yard: Yard, *labels: str, job: object = jobs.note) -> list[int]:
    """Stage jobs, and let a leader push them thin."""
    ids = yard.stage(job, *labels)
    with thin_leader(yard.database_url, yard.redis_url):
        assert all(map(is_thin, pushed(yard.redis_url)))
    return ids


def test_a_new_stock_worker_drops_thin_ids_and_later_runs_each_job_once(yard: Yard, client: Redis) -> None:
    ids = thin(yard, "a", "b", "c")

    def run_stock() -> str:
        return rq_worker(yard.redis_url, "--config", "drain.rq_settings", "default", env=yard.env())

    assert "Traceback" not in run_stock()
    assert (pushed(yard.redis_url), yard.effects()) == ([], [])
    yard.redeliver()
    run_stock()
    assert ids_in(yard.database_url, "finished_jobs") == ids
    assert sorted(yard.effects()) == ["a", "b", "c"]


def test_a_dead_thin_job_is_in_rqs_registry_of_failed_jobs(yard: Yard, client: Redis) -> None:
    (job_id,) = thin(yard, "luck", job=jobs.fail)
    (rq_id,) = pushed(yard.redis_url)
    registry = FailedJobRegistry("default", connection=client)
    with yard.working():
        yard.wait_for("dead_jobs", [job_id])
        wait_until(lambda: registry.get_job_ids(cleanup=False) == [rq_id], PATIENCE_SECONDS)
    shown = Job.fetch(rq_id, connection=client)
    assert shown.description == f"tests.jobs_in_batches.fail #{job_id}"
    assert 0 < client.ttl(f"rq:job:{rq_id}") <= 86_400
    result = shown.latest_result()
    assert result is not None
    assert "no luck" in str(result.exc_string)


def test_rqs_tools_can_show_and_stop_a_long_thin_job(yard: Yard, client: Redis) -> None:
    (job_id,) = thin(yard, "running", job=jobs.wait_for_go)
    (rq_id,) = pushed(yard.redis_url)
    with yard.working():
        wait_until(lambda: client.hget(f"rq:job:{rq_id}", "worker_name"), PATIENCE_SECONDS)
        assert 0 < client.ttl(f"rq:job:{rq_id}") <= 120
        (worker,) = [each for each in Worker.all(connection=client) if each.name.endswith(".tracked")]
        assert worker.get_current_job_id() == rq_id
        send_stop_job_command(client, rq_id)
        yard.wait_for("dead_jobs", [job_id])
    assert yard.row(job_id)["explanation"] == "stopped by RQ's stop-job command"


def test_no_job_waits_for_a_stock_worker_that_redis_forgot(yard: Yard, client: Redis) -> None:
    def registered() -> set[str]:
        members: Any = client.smembers("rq:workers:default")
        return {key.decode() for key in members}

    def run_one() -> None:
        yard.wait_for("finished_jobs", yard.stage(jobs.note, "one"))

    def stock_is_registered_after_another_job() -> bool:
        run_one()
        return "rq:worker:stock" in registered()

    soon = impatient({"drain.workers.process.rq_presence._HEARTBEAT_SECONDS": 0.5})
    stock = ["worker", "--config", "drain.rq_settings", "--name", "stock", "--url", yard.redis_url, "default"]
    with (
        drain_command(*stock, env=yard.env(), program=RQ),
        yard.working("--processes", "1", **soon),
        leading(yard.env()) as leader,
    ):
        wait_until(lambda: "rq:worker:stock" in registered() and len(registered()) > 1, PATIENCE_SECONDS)
        run_one()
        client.flushdb()
        wait_until(lambda: leader.events("redis_lost"), PATIENCE_SECONDS)
        wait_until(lambda: client.get(f"drain:{NAMESPACE}"), PATIENCE_SECONDS)
        wait_until(lambda: any(".tracked" in key for key in registered()), PATIENCE_SECONDS)
        assert "rq:worker:stock" not in registered()
        wait_until(stock_is_registered_after_another_job, PATIENCE_SECONDS)
        assert leader.events("redelivered") == []
