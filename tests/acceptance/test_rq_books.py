"""What RQ's own workers and tools see of tracked jobs that die, wait, are stopped or cannot be read."""

import base64
import pickle
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import closing, nullcontext
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import redis
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from rq import Queue, SimpleWorker, Worker, requeue_job
from rq.command import send_stop_job_command
from rq.job import Job, JobStatus
from rq.registry import DeferredJobRegistry, FailedJobRegistry
from rq.serializers import DefaultSerializer, JSONSerializer

from drain import wire
from drain.enqueuer import rq_verdicts
from drain.enqueuer.redelivery import Redelivery
from drain.enqueuer.rq_verdicts import RQVerdicts
from drain.tables import dead, redeliveries
from drain.tables.redeliveries import Redelivered
from drain.wire import FAILED_TTL_SECONDS, Consumer, RQVerdict
from drain.wire.superseded_deliveries import EarlierDeliveries
from drain.wire.workers import forget_worker
from drain.workers import entry
from drain.workers.execution import rq_books
from drain.workers.execution.death import Death
from drain.workers.execution.rq_books import RQBooks
from tests import jobs_in_batches as jobs
from tests.helpers import (
    DRAIN,
    NAMESPACE,
    PATIENCE_SECONDS,
    RQ_PROGRAM,
    drain_command,
    new_enqueuer,
    pushed,
    query,
    wait_until,
)
from tests.worker_processes import Yard

pytestmark = pytest.mark.every_python

UNREADABLE = b"rq.exceptions.DeserializationError"


@pytest.fixture
def yard(
    processes: None, database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Yard]:
    jobs.create_effects(database_url)
    for name, text in Yard(database_url, redis_url).env().items():
        monkeypatch.setenv(name, text)
    entry.load.cache_clear()
    entry._workers.clear()
    yield Yard(database_url, redis_url)
    for worker in entry._workers.values():
        worker.close()
    entry._workers.clear()
    entry.load.cache_clear()


@pytest.fixture
def client(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


def run_under_rq(client: Redis, serializer: Any = None, handlers: Any = None) -> None:
    """What `rq worker` does with all that is in the queue, in this process."""
    queue = Queue("default", connection=client, serializer=serializer)
    worker = SimpleWorker([queue], connection=client, serializer=serializer, exception_handlers=handlers)
    while isinstance(rq_id := client.lpop(queue.key), bytes):
        worker.execute_job(Job.fetch(rq_id.decode(), connection=client, serializer=serializer), queue)


def run_under_drain(yard: Yard) -> None:
    with yard.working("--burst") as command:
        assert command.wait(PATIENCE_SECONDS) == 0


def run(yard: Yard, client: Redis, program: str) -> None:
    if program == "rq worker":
        run_under_rq(client)
    else:
        run_under_drain(yard)


PROGRAMS = pytest.mark.parametrize("program", ["rq worker", "drain work"])


@PROGRAMS
def test_only_a_dead_job_is_failed_in_rq_with_its_exception(yard: Yard, client: Redis, program: str) -> None:
    (job_id,) = yard.pushed(jobs.fail, "luck")
    (failed,) = pushed(yard.redis_url)
    yard.pushed(jobs.note, "fine")
    (repeated,) = yard.pushed(jobs.fail_first, "again")
    run(yard, client, program)
    assert yard.row(repeated)["last_error"]["type"] == "ValueError"

    job = Job.fetch(failed, connection=client)
    told = str(job.latest_result().exc_string)  # type: ignore[union-attr]
    assert job.get_status() is JobStatus.FAILED
    assert "ValueError: no luck" in told
    assert "in fail" in told
    assert "is dead: failed 1 time;" in told
    assert FailedJobRegistry("default", connection=client).get_job_ids() == [failed]
    assert 0 < client.ttl(job.key) <= FAILED_TTL_SECONDS

    # RQ's requeue runs nothing, and leaves nothing.
    requeue_job(failed, connection=client)
    run(yard, client, program)
    assert query(yard.database_url, "SELECT attempts FROM dead_jobs WHERE id = %s", job_id) == [(1,)]
    assert client.ttl(job.key) != -1
    assert FailedJobRegistry("default", connection=client).get_job_ids() == []


@pytest.mark.parametrize(
    "job",
    [jobs.isolated_exit, jobs.kill_the_process, "tests.unheard.of"],
    ids=["isolated", "killed", "unknown"],
)
def test_drain_work_reports_every_kind_of_death_to_rq(yard: Yard, client: Redis, job: Any) -> None:
    (job_id,) = yard.pushed(job, 1, max_attempts=1)
    (rq_id,) = pushed(yard.redis_url)
    run_under_drain(yard)

    assert yard.place(job_id) == "dead_jobs"
    shown = Job.fetch(rq_id, connection=client)
    assert shown.get_status() is JobStatus.FAILED
    assert yard.row(job_id)["explanation"] in str(shown.latest_result().exc_string)  # type: ignore[union-attr]


def test_exception_handlers_are_called_only_for_dead_jobs_under_rq_worker(yard: Yard, client: Redis) -> None:
    heard: list[tuple[str, type]] = []

    def handler(job: Job, kind: type, *_: object) -> None:
        heard.append((str(job.func_name), kind))

    yard.pushed(jobs.fail, "luck")
    yard.pushed(jobs.fail_first, "again")
    run_under_rq(client, handlers=[handler])
    assert heard == [("drain.rq.jobs_in_batches.fail", ValueError)]


class LuckError(Exception):
    pass


def test_exception_handlers_and_sentrys_patch_run_under_drain_work(
    client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    handle_exception = Worker.handle_exception

    def patched(self: Worker, job: Job, *exc_info: Any) -> None:
        heard.append(("sentry", job._status, exc_info[1]))
        handle_exception(self, job, *exc_info)

    def fails(_job: Job, *_: object) -> None:
        raise RuntimeError("no handler is perfect")

    def hears(job: Job, *exc_info: Any) -> bool:
        heard.append((job.id, exc_info[1]))
        return False

    monkeypatch.setattr(Worker, "handle_exception", patched)
    worker = SimpleWorker([], connection=client, exception_handlers=[hears, fails])
    client.hset("rq:job:shop-7-8", mapping={"data": b"N.", "origin": "default", "status": "queued"})
    error = LuckError("none")
    books = RQBooks()
    books.died("shop-7-8", Death(7, "default", "it was told so", cause=error))
    # Redis has lost this one.
    books.died("shop-8-9", Death(8, "default", "its worker died", "Traceback"))
    books.write(worker)

    assert heard[:2] == [("sentry", JobStatus.FAILED, error), ("shop-7-8", error)]
    assert [str(told) for _, told in (heard[3],)] == ["job 8 is dead: its worker died\n\nTraceback"]
    assert Job.fetch("shop-7-8", connection=client).get_status() is JobStatus.FAILED
    assert not client.exists("rq:job:shop-8-9")
    assert not books.waits


# --- plain RQ jobs that depend on tracked ones


def statuses(*dependents: Job) -> list[JobStatus]:
    return [job.get_status() for job in dependents]


@PROGRAMS
def test_a_plain_job_is_released_when_its_tracked_dependency_finishes(
    yard: Yard, client: Redis, program: str
) -> None:
    (first,) = pushed(yard.redis_url) if yard.pushed(jobs.fail_first, "parent") else []
    plain, other = Queue("default", connection=client), Queue("other", connection=client)
    children = [queue.enqueue(jobs.plain, "child", depends_on=first) for queue in (plain, other)]
    # Which of two that it waits for comes first makes no difference.
    both = other.enqueue(jobs.plain, "both", depends_on=[first, children[0].id])
    run(yard, client, program)
    assert statuses(*children, both) == [JobStatus.DEFERRED] * 3

    query(yard.database_url, "UPDATE inflight_jobs SET next_run_at = now()")
    yard.redeliver()
    (second,) = pushed(yard.redis_url)
    assert first != second
    assert Job.fetch(children[0].id, connection=client).dependency.id == second  # type: ignore[union-attr]
    run(yard, client, program)
    wait_until(lambda: statuses(*children) != [JobStatus.DEFERRED] * 2, PATIENCE_SECONDS)
    run(yard, client, program)
    assert statuses(*children, both) == [JobStatus.FINISHED, JobStatus.QUEUED, JobStatus.QUEUED]
    assert all(client.ttl(key) > 0 for key in client.scan_iter("*:dependents*"))


def test_a_plain_job_waits_for_its_redelivered_dependency(yard: Yard, client: Redis) -> None:
    """RQ takes a dependency that it knows nothing of, such as the earlier delivery, for met."""
    yard.pushed(jobs.note, "tracked")
    (earlier,) = pushed(yard.redis_url)
    first, then = Queue("first", connection=client), Queue("then", connection=client)
    plain = first.enqueue(jobs.plain, "plain")
    both = then.enqueue(jobs.plain, "both", depends_on=[earlier, plain.id])
    client.delete("rq:queue:default")
    yard.redeliver()
    SimpleWorker([first], connection=client).work(burst=True)
    assert statuses(plain, both) == [JobStatus.FINISHED, JobStatus.DEFERRED]
    run_under_drain(yard)
    wait_until(lambda: both.get_status() is JobStatus.QUEUED, PATIENCE_SECONDS)


@PROGRAMS
def test_a_dependent_of_a_dead_job_waits_unless_it_allows_failures(
    yard: Yard, client: Redis, program: str
) -> None:
    yard.pushed(jobs.fail, "luck")
    (parent,) = pushed(yard.redis_url)
    queue = Queue("other", connection=client)
    strict = queue.enqueue(jobs.plain, "strict", depends_on=parent)
    lenient = queue.enqueue(jobs.plain, "lenient", depends_on=[Job.fetch(parent, connection=client)])
    lenient.allow_dependency_failures = True
    lenient.save()
    run(yard, client, program)
    assert statuses(strict, lenient) == [JobStatus.DEFERRED, JobStatus.QUEUED]
    assert DeferredJobRegistry("other", connection=client).get_job_ids() == [strict.id]


def test_a_plain_job_with_a_finished_dependency_does_not_wait(yard: Yard, client: Redis) -> None:
    yard.pushed(jobs.note, "parent")
    (parent,) = pushed(yard.redis_url)
    with closing(Consumer(yard.redis_url, NAMESPACE, ["default"])) as consumer:
        assert consumer.clear([parent]) == []
    child = Queue("other", connection=client).enqueue(jobs.plain, "child", depends_on=parent)
    assert child.get_status() is JobStatus.QUEUED


# --- what the enqueuer does not deliver again


def test_a_job_that_is_stopped_under_rq_worker_is_dead(yard: Yard, client: Redis) -> None:
    (job_id,) = yard.pushed(jobs.wait_for_go, "running")
    (rq_id,) = pushed(yard.redis_url)
    program = [RQ_PROGRAM, "worker", "--url", yard.redis_url, "--quiet", "default"]
    with subprocess.Popen(program, env=yard.env(), stderr=subprocess.DEVNULL) as worker:
        try:
            wait_until(yard.effects, PATIENCE_SECONDS)
            send_stop_job_command(client, rq_id)
            wait_until(
                lambda: Job.fetch(rq_id, connection=client).get_status() is JobStatus.STOPPED,
                PATIENCE_SECONDS,
            )
        finally:
            worker.terminate()
    assert yard.place(job_id) == "inflight_jobs"
    query(yard.database_url, "UPDATE inflight_jobs SET lease_expires_at = now() - interval '1 s'")
    yard.redeliver()
    buried = yard.row(job_id)
    assert (buried["place"], buried["reason"], buried["explanation"]) == (
        "dead_jobs",
        "gave up",
        "stopped by RQ's stop-job command",
    )
    assert pushed(yard.redis_url) == []


def test_a_job_that_no_worker_can_deserialize_ends_as_dead(
    yard: Yard, client: Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(rq_verdicts, "MOST_UNREADABLE", 3)
    unread, lost = yard.pushed(jobs.note, "unread", "lost")
    with new_enqueuer(yard.database_url, yard.redis_url) as enqueuer:
        redelivery = Redelivery(enqueuer, lost_after_seconds=0)
        redelivery.recover()
        for _ in range(3):
            assert yard.place(unread) == "inflight_jobs"
            # This one is lost on its way each time, which says nothing about it.
            client.lrem(
                "rq:queue:default", 1, next(id_ for id_ in pushed(yard.redis_url) if f"-{lost}-" in id_)
            )
            run_under_rq(client, JSONSerializer)
            redelivery.run_once()
            redelivery.run_once()
            # From the first delivery on, and once.
            (line,) = [each for each in caplog.records if getattr(each, "event", "") == "unread_by_rq"]
            assert f"on queue default cannot read tracked jobs, such as {unread}" in line.message
    buried = yard.row(unread)
    assert (buried["place"], buried["reason"], buried["attempts"]) == ("dead_jobs", "unreadable", 0)
    assert "--serializer" in buried["explanation"]
    assert yard.place(lost) == "inflight_jobs"
    assert FailedJobRegistry("default", connection=client).get_job_ids() == [
        rq_id
        for rq_id in FailedJobRegistry("default", connection=client).get_job_ids()
        if rq_id.startswith(f"{NAMESPACE}-{unread}-")
    ]


def test_a_role_without_the_right_to_bury_jobs_continues(
    yard: Yard, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(connection: psycopg.Connection, *_: object, **__: object) -> None:
        # By the server, which takes nothing more in a transaction in which it has refused something.
        connection.execute("DO $$ BEGIN RAISE insufficient_privilege; END $$")

    monkeypatch.setattr(redeliveries, "bury_redelivered", refuse)
    (job_id,) = yard.pushed(jobs.note, "stopped")
    (rq_id,) = pushed(yard.redis_url)
    client.hset(f"rq:job:{rq_id}", "status", "stopped")
    client.delete("rq:queue:default")
    yard.redeliver()
    assert yard.place(job_id) == "inflight_jobs"
    assert pushed(yard.redis_url) != []


def test_deliveries_that_rq_failed_for_another_reason_are_repeated(
    yard: Yard, client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rq_verdicts, "MOST_UNREADABLE", 1)
    (job_id,) = yard.pushed(jobs.note, "later")
    (rq_id,) = pushed(yard.redis_url)
    with monkeypatch.context() as patch:
        # As under a worker without job-drain.
        patch.setitem(sys.modules, "drain.rq", None)
        run_under_rq(client)
    assert Job.fetch(rq_id, connection=client).get_status() is JobStatus.FAILED
    yard.redeliver()
    assert FailedJobRegistry("default", connection=client).get_job_ids() == []
    run_under_rq(client)
    assert yard.place(job_id) == "finished_jobs"


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('os')._exit(3)",)


def test_reporting_an_end_to_rq_unpickles_nothing(client: Redis) -> None:
    bomb = pickle.dumps(Bomb())
    call = wire.tracked("shop", 7, "default", "a.b", None, 8).data
    waiting = Queue("other", connection=client).enqueue(jobs.plain, "x", depends_on=None, meta={"kept": 1})
    client.delete("rq:queue:other")
    client.hset(waiting.key, mapping={"status": "deferred", "result": bomb, "dependency_ids": '["shop-7-8"]'})
    client.sadd(waiting.dependencies_key, "shop-7-8")
    for data in (call, bomb):
        client.hset(
            "rq:job:shop-7-8", mapping={"data": data, "origin": "default", "result": bomb, "meta": bomb}
        )
        client.sadd("rq:job:shop-7-8:dependents", waiting.id)
        books = RQBooks()
        books.died("shop-7-8", Death(7, "default", "it was told so"))
        books.finished("shop-7-8", "default")
        books.write(SimpleWorker([], connection=client))
    assert client.hget("rq:job:shop-7-8", "status") == b"failed"
    assert client.hget("rq:job:shop-7-8", "meta") == bomb
    assert client.lrange("rq:queue:other", 0, -1)[0] == waiting.id.encode()
    client.hdel(waiting.key, "result")
    assert Job.fetch(waiting.id, connection=client).meta == {"kept": 1}


def test_reports_to_rq_do_not_depend_on_the_workers_serializer(client: Redis) -> None:
    books = RQBooks()
    call = wire.tracked("shop", 7, "default", "a.b", None, 8, "0f3c1a2b-1111-2222-3333-444455556666").data
    client.hset("rq:job:shop-7-8", mapping={"data": call, "origin": "default", "status": "queued"})
    books.died("shop-7-8", Death(7, "default", "it was told so"))
    books.write(SimpleWorker([], connection=client, serializer=JSONSerializer))
    job = Job.fetch("shop-7-8", connection=client, serializer=DefaultSerializer)
    assert (job.get_status(), job.func_name) == (JobStatus.FAILED, "drain.rq.a.b")


def test_failed_reports_to_redis_are_retried_and_block_no_others(
    client: Redis,
) -> None:
    """The first of each kind cannot be told at all: somebody has spoilt a key that RQ reads."""
    for number in (2, 4):
        call = wire.tracked("shop", number, "default", "a.b", None, 1).data
        client.hset(
            f"rq:job:shop-{number}-1", mapping={"data": call, "origin": "default", "status": "queued"}
        )
    child = Queue("other", connection=client).enqueue(jobs.plain, "x", depends_on="shop-2-1")
    client.set("rq:job:shop-1-1:dependents", "no set")
    client.set("rq:job:shop-3-1", "no hash")
    books, worker = RQBooks(), SimpleWorker([], connection=client)
    away = Redis(port=1, retry=Retry(NoBackoff(), 0))
    for number in (1, 2):
        books.finished(f"shop-{number}-1", "default")
    write_after_an_outage(books, worker, away)
    for number in (3, 4):
        books.died(f"shop-{number}-1", Death(number, "default", "it was told so"))
    write_after_an_outage(books, worker, away)
    assert not books.waits
    assert client.lrange("rq:queue:other", 0, -1) == [child.id.encode()]
    assert client.hget("rq:job:shop-4-1", "status") == b"failed"


def test_a_worker_is_forgotten_only_by_its_pid_and_without_a_sign_off(
    client: Redis,
) -> None:
    for pid, field, is_left in ((1, "birth", True), (2, "death", True), (2, "birth", False)):
        client.hset("rq:worker:Alice", mapping={"pid": 2, field: "some time"})
        forget_worker(client, "Alice", pid, ["default"])
        assert bool(client.exists("rq:worker:Alice")) is is_left
        client.delete("rq:worker:Alice")


def test_the_number_of_unreported_deaths_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rq_books, "_MOST_WAITING", 1)
    books, death = RQBooks(), Death(3, "default", "it was told so")
    assert [books.died("shop-3-1", death) for _ in range(2)] == [True, False]


def write_after_an_outage(books: RQBooks, worker: SimpleWorker, away: Redis) -> None:
    here, worker.connection = worker.connection, away
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            books.write(worker)
    worker.connection = here
    books.write(worker)


@pytest.mark.parametrize(
    "told",
    [
        b"no base64",
        base64.b64encode(b"no zlib"),
        base64.b64encode(zlib.compress(bytes(2_000_000) + UNREADABLE)),
    ],
    ids=["text", "bytes", "more than anybody reads"],
)
def test_corrupted_keys_give_no_verdict_and_hide_no_other_delivery(client: Redis, told: bytes) -> None:
    client.set("rq:job:a", "no hash")
    for rq_id in ("b", "c", "d"):
        client.hset(f"rq:job:{rq_id}", "status", "failed")
    client.set("rq:results:b", "no stream")
    client.xadd("rq:results:c", {"exc_string": told})
    client.xadd("rq:results:d", {"exc_string": base64.b64encode(zlib.compress(UNREADABLE))})
    looked = EarlierDeliveries(client).verdicts(["a", "b", "c", "d"])
    assert looked == [RQVerdict.UNKNOWN, RQVerdict.UNKNOWN, RQVerdict.UNKNOWN, RQVerdict.UNREADABLE]
    client.sadd("rq:job:d:dependents", "a")
    client.set("rq:job::a:dependencies", "no set")
    assert EarlierDeliveries(client).move_dependents([("d", "e")]) == 1


def test_only_consecutive_unreadable_deliveries_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rq_verdicts, "MOST_UNREADABLE", 3)
    monkeypatch.setattr(rq_verdicts, "_MOST_COUNTED", 2)
    buried: list[int] = []
    monkeypatch.setattr(redeliveries, "bury_redelivered", lambda _, ids, **__: buried.extend(ids))
    said: list[RQVerdict] = []
    redis: Any = SimpleNamespace(namespace="shop", rq_verdicts=lambda _: said)
    connection: Any = SimpleNamespace(transaction=nullcontext)
    verdicts = RQVerdicts(connection, redis)

    def look(job_id: int, verdict: RQVerdict) -> None:
        said[:] = [verdict]
        verdicts.bury([Redelivered(job_id, "default", "a.b", None, 2, 1, 0)])

    bad = RQVerdict.UNREADABLE
    for verdict in (bad, bad, RQVerdict.UNKNOWN, bad, bad):
        look(1, verdict)
    assert buried == []
    look(1, bad)
    assert buried == [1]
    # The counts of 2 and 3 leave no room for that of 1.
    for job_id in (1, 1, 2, 3, 1):
        look(job_id, bad)
    assert buried == [1]


def test_a_retried_dead_job_runs_under_a_new_rq_id(yard: Yard, client: Redis) -> None:
    (job_id,) = yard.pushed(jobs.fail, "luck")
    (rq_id,) = pushed(yard.redis_url)
    run_under_rq(client)
    query(yard.database_url, dead.REVIVE % dict.fromkeys(dead.Selection().parameters(), "NULL"))
    yard.push()
    assert pushed(yard.redis_url) != [rq_id]
    run_under_rq(client)
    assert query(yard.database_url, "SELECT id FROM dead_jobs") == [(job_id,)]


def test_a_full_death_report_queue_releases_no_dependents(yard: Yard, client: Redis) -> None:
    (job_id,) = yard.pushed(jobs.fail, "luck")
    (parent,) = pushed(yard.redis_url)
    child = Queue("other", connection=client).enqueue(jobs.plain, "child", depends_on=parent)
    is_full = "from drain.workers.execution.rq_books import RQBooks; RQBooks.died = lambda *_: False\n"
    with drain_command("work", "--burst", env=yard.env(), program=is_full + DRAIN) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.place(job_id) == "dead_jobs"
    assert child.get_status() is JobStatus.DEFERRED


def test_dependents_are_released_if_an_earlier_delivery_finishes(yard: Yard, client: Redis) -> None:
    """A worker that has stood still takes up what it had taken, and the job has been delivered again meanwhile."""
    queue = Queue("default", connection=client)
    (job_id,) = yard.pushed(jobs.note, "tracked")
    (earlier,) = pushed(yard.redis_url)
    waits = queue.enqueue(jobs.plain, "plain", depends_on=earlier)
    client.delete(queue.key)
    yard.redeliver()
    (later,) = pushed(yard.redis_url)
    assert later != earlier
    client.lpush(queue.key, earlier)
    with yard.working("--prefetch", "1"):
        wait_until(lambda: waits.get_status() is JobStatus.FINISHED, PATIENCE_SECONDS)
    assert yard.place(job_id) == "finished_jobs"
