"""`drain.workers.current_job()`: what a running job can ask of its claim."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import UUID, uuid5

import psycopg
import pytest

from drain import stage
from drain.config import Settings
from drain.database import schema
from drain.tables import dead, staged
from drain.tables.dead import Selection
from drain.workers import NoCurrentJobError, current_job, transaction
from drain.workers.entry import Worker
from tests.helpers import ids_in, query
from tests.inprocess_worker import Workshop, leave


@pytest.fixture
def keys(shop: Workshop) -> list[str]:
    """Registers a job that leaves its key here, and fails as long as its argument says."""
    left: list[str] = []

    def act(failures: int = 0) -> None:
        left.append(current_job().key)
        if len(left) <= failures:
            raise ValueError("not yet")

    shop.worker.execute(shop.delivered(act, name="tests.leave_key", max_attempts=2))
    assert len(left) == 1
    return left


def deliver(shop: Workshop, failures: int = 0) -> int:
    return shop.deliver("tests.leave_key", failures)


def test_the_current_job_exposes_the_fields_of_its_claim(shop: Workshop) -> None:
    told: list[tuple[Any, ...]] = []

    def act() -> None:
        job = current_job()
        told.append((job.id, job.name, job.queue, job.tag, job.context, job.attempt, job.fencing_token))
        told.append((job.finished, job.in_transaction, job.lease_lost))
        raise ValueError("again")

    options = {"queue": "mail", "tag": "shop.order", "context": {"trace": "abc"}}
    job_id = shop.delivered(act, row=options)
    for _ in range(2):
        assert shop.work(job_id) == "retrying"
    what = (job_id, "tests.act", "mail", "shop.order", '{"trace": "abc"}')
    assert told == [(*what, 1, 1), (False,) * 3, (*what, 2, 2), (False,) * 3]


def test_the_lease_expiry_follows_the_database_clock(shop: Workshop) -> None:
    told: list[bool] = []

    def act() -> None:
        told.append(current_job().lease_expires_at == shop.lease_expires_at(job_id))
        told.append(0 < current_job().lease_seconds_left <= 77)

    job_id = shop.delivered(act, lease_seconds=77)
    assert shop.work(job_id) == "finished"
    assert told == [True, True]


def test_a_slow_claim_does_not_overstate_the_lease(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    answer = Worker._claim

    def answer_late(worker: Worker, *given: Any) -> Any:
        claim = answer(worker, *given)
        clock.append(20.0)
        return claim

    clock: list[float] = []
    monkeypatch.setattr("drain.workers.lease.lease.monotonic", lambda: 1000 + sum(clock))
    monkeypatch.setattr("drain.workers.entry.monotonic", lambda: 1000 + sum(clock))
    monkeypatch.setattr(Worker, "_claim", answer_late)
    assert shop.work(shop.delivered(lambda: told.append(current_job().lease_seconds_left))) == "finished"
    assert told == [10]


def test_the_key_is_a_uuid_that_no_other_job_has(shop: Workshop, keys: list[str]) -> None:
    for _ in range(3):
        assert shop.work(deliver(shop)) == "finished"
    assert len({str(UUID(key)) for key in keys}) == 4


def test_the_key_is_the_same_in_each_attempt_and_after_a_revival(shop: Workshop, keys: list[str]) -> None:
    job_id = deliver(shop, failures=3)
    assert shop.work_to_the_end(job_id) == ["retrying", "dead"]
    with psycopg.connect(shop.database_url, autocommit=True) as connection:
        assert dead.revive(connection, Selection((job_id,))) == 1
        staged.move(connection, [job_id], last_delivery=100)
    assert shop.work(job_id) == "finished"
    first, *same = keys
    assert len(same) == 3
    assert set(same).isdisjoint([first])
    assert len(set(same)) == 1


def test_the_key_does_not_depend_on_the_worker_nor_on_its_namespace(shop: Workshop, keys: list[str]) -> None:
    job_id = deliver(shop, failures=2)
    assert shop.work(job_id) == "retrying"
    settings = Settings(database_url=shop.database_url, namespace="another")
    with closing(Worker(settings)) as other:
        assert Workshop(shop.database_url, other).work(job_id) == "finished"
    assert keys[1] == keys[2]


def test_the_same_id_in_another_database_has_a_different_key(
    shop: Workshop, keys: list[str], empty_database_url: str
) -> None:
    schema.install(empty_database_url)
    with closing(Worker(Settings(database_url=empty_database_url))) as worker:
        elsewhere = Workshop(empty_database_url, worker)
        job_id = deliver(elsewhere)
        assert ids_in(shop.database_url, "finished_jobs") == [job_id]
        assert elsewhere.work(job_id) == "finished"
    assert keys[0] != keys[1]


def test_a_job_with_a_reused_id_gets_a_different_key(shop: Workshop, keys: list[str]) -> None:
    """As after a failover to an older replica, or in a restored copy: the sequence gives the same ids again."""
    assert shop.work(deliver(shop)) == "finished"
    query(shop.database_url, "TRUNCATE finished_jobs; ALTER TABLE staged_jobs ALTER id RESTART")
    assert shop.work(deliver(shop)) == "finished"
    ((first,),) = query(shop.database_url, "SELECT id FROM finished_jobs")
    assert first == 1
    assert len(set(keys)) == len(keys) == 3


def test_a_job_without_a_salt_keeps_its_former_key(shop: Workshop, keys: list[str]) -> None:
    job_id = deliver(shop)
    query(shop.database_url, "UPDATE inflight_jobs SET salt = NULL")
    assert shop.work(job_id) == "finished"
    ((installation,),) = query(shop.database_url, "SELECT installation FROM drain_state")
    assert keys[-1] == str(uuid5(installation, str(job_id)))


def test_an_async_job_is_current_in_its_tasks_and_its_loops_threads(shop: Workshop) -> None:
    asked: list[int] = []

    def ask() -> None:
        asked.append(current_job().id)

    async def ask_in_a_task() -> None:
        ask()

    async def act() -> None:
        ask()
        await asyncio.create_task(ask_in_a_task())
        await asyncio.to_thread(ask)

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "finished"
    assert asked == [job_id] * 3


@pytest.mark.parametrize("ask", [current_job, lambda: transaction().__enter__()], ids=["job", "transaction"])
def test_a_thread_started_by_the_job_has_no_current_job(shop: Workshop, ask: Callable[[], Any]) -> None:
    errors: list[type[BaseException]] = []

    def ask_in_a_thread() -> None:
        try:
            ask()
        except RuntimeError as error:
            errors.append(type(error))

    def act() -> None:
        thread = threading.Thread(target=ask_in_a_thread)
        thread.start()
        thread.join(10)

    assert shop.work(shop.delivered(act)) == "finished"
    assert errors == [NoCurrentJobError]


def test_outside_a_job_the_error_says_that_no_job_is_running(shop: Workshop) -> None:
    def act() -> None:
        current_job()

    for outside in (current_job, act, lambda: transaction().__enter__()):
        with pytest.raises(NoCurrentJobError, match="no job is running here"):
            outside()
    assert shop.work(shop.delivered(act)) == "finished"
    with pytest.raises(NoCurrentJobError):
        current_job()


def test_the_repr_contains_no_password(shop: Workshop) -> None:
    shown: list[str] = []

    def act() -> None:
        shown.append(repr(current_job()))

    parts = psycopg.conninfo.conninfo_to_dict(shop.database_url)
    url = f"postgresql://postgres:s3cret@/{parts['dbname']}?host={parts['host']}"
    with closing(Worker(Settings(database_url=url))) as worker:
        job_id = shop.delivered(act)
        assert Workshop(shop.database_url, worker).work(job_id) == "finished"
    assert shown == [f"<job {job_id} (tests.act), attempt 1>"]


def test_the_key_and_the_token_can_be_stored_with_the_finish(shop: Workshop) -> None:
    def act() -> None:
        with transaction() as session:
            leave(session, f"{current_job().key} {current_job().fencing_token}")
            stage(session, "shop.next", [current_job().key])

    assert shop.work(shop.delivered(act)) == "finished"
    ((key, token),) = (effect.split() for effect in shop.effects())
    assert (str(UUID(key)), token) == (key, "1")
