"""Jobs that write through Django's ORM: their writes and the finish are one commit, and lost connections are replaced.

The tests of test_job_transactions.py run for `drain.contrib.django.transaction()` too.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import DataError, connection, connections, transaction as of_django
from django.db.transaction import atomic

import drain.contrib.django
from drain.workers import current_job, transaction
from drain.workers.context.current import Attempt
from drain.workers.execution import isolation
from drain.workers.execution.attempt import run_in_loop
from drain.workers.execution.outcome import Finished, Outcome
from drain.workers.lease.heartbeat import Heartbeat
from tests import jobs_of_django
from tests.blocks import forget_django, use_django_at
from tests.helpers import PATIENCE_SECONDS, end, query, wait_until
from tests.inprocess_worker import Workshop, note_how_finishes_commit
from tests.process.test_job_transactions import one_event
from tests.unit.test_attempt import claim
from tests.worker_processes import Yard


@pytest.fixture
def shop(shop: Workshop) -> Iterator[Workshop]:
    """A worker in a process that has configured Django."""
    query(shop.database_url, "ALTER TABLE effects ALTER worker SET DEFAULT 0")
    use_django_at(shop.database_url)
    yield shop
    forget_django()


def leave(label: str) -> None:
    jobs_of_django.model().objects.create(label=label)


def test_orm_writes_and_the_finish_commit_together(shop: Workshop) -> None:
    seen: list[tuple[list[str], str, bool]] = []

    def look() -> None:
        seen.append((shop.effects(), shop.whereabouts(job_id), current_job().finished))

    def act() -> None:
        with drain.contrib.django.transaction():
            leave("written")
            look()
        look()

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "finished"
    assert seen == [([], "inflight_jobs", False), (["written"], "finished_jobs", True)]


def test_atomic_within_the_block_is_a_savepoint(shop: Workshop) -> None:
    def act() -> None:
        with drain.contrib.django.transaction() as its_own:
            leave("before")
            with suppress(DataError), atomic():
                leave("rolled back")
                its_own.cursor().execute("SELECT 1 / 0")
            with atomic():
                leave("nested")

    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["before", "nested"]


def test_jobs_can_be_staged_in_the_block_on_the_underlying_connection(shop: Workshop) -> None:
    def act() -> None:
        with drain.contrib.django.transaction() as its_own:
            drain.stage(its_own.connection, "shop.jobs.next", [current_job().attempt])
            if current_job().attempt == 1:
                raise ValueError("not yet")

    assert shop.work_to_the_end(shop.delivered(act)) == ["retrying", "finished"]
    assert query(shop.database_url, "SELECT job_args FROM staged_jobs") == [([2],)]


# --- what Django or the block refuses


def commit() -> None:
    of_django.commit()


def turn_autocommit_on() -> None:
    of_django.set_autocommit(True)


def begin_a_durable_one() -> None:
    with atomic(durable=True):
        pass


def mark_it_to_be_rolled_back() -> None:
    of_django.set_rollback(True)


def fail_without_savepoint() -> None:
    with suppress(ValueError), atomic(savepoint=False):
        raise ValueError


def leave_a_block_open() -> None:
    atomic().__enter__()


def close_the_connection() -> None:
    connection.close()


def nest() -> None:
    with drain.contrib.django.transaction():
        pass


def nest_another() -> None:
    with transaction():
        pass


REFUSED = {
    commit: "TransactionManagementError",
    turn_autocommit_on: "TransactionManagementError",
    begin_a_durable_one: "durable atomic block",
    mark_it_to_be_rolled_back: "marked to be rolled back",
    fail_without_savepoint: "marked to be rolled back",
    leave_a_block_open: "an atomic() is still open",
    close_the_connection: "its connection was closed",
    nest: "already has its transaction",
    nest_another: "already has its transaction",
}


@pytest.mark.parametrize("misuse", REFUSED)
def test_a_block_that_cannot_commit_with_the_finish_is_rolled_back(
    shop: Workshop, misuse: Callable[[], None]
) -> None:
    def act() -> None:
        with drain.contrib.django.transaction():
            leave("written early")
            misuse()

    def write_more() -> None:
        with drain.contrib.django.transaction():
            leave("the next job")

    job_id = shop.delivered(act, max_attempts=1)
    assert shop.work(job_id) == "dead"
    assert REFUSED[misuse] in shop.row(job_id)["last_error"]["traceback"]
    assert shop.effects() == []
    assert shop.work(shop.delivered(write_more, name="tests.next")) == "finished"
    assert shop.effects() == ["the next job"]


def within_atomic() -> None:
    with atomic(), drain.contrib.django.transaction():
        leave("never")


def without_autocommit() -> None:
    of_django.set_autocommit(False)
    with drain.contrib.django.transaction():
        leave("never")


def on_sqlite() -> None:
    connections.settings["sqlite"] = connections.settings["default"] | {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": ":memory:",
        "OPTIONS": {},
    }
    with drain.contrib.django.transaction("sqlite"):
        pass


def in_an_event_loop() -> None:
    async def write() -> None:
        with drain.contrib.django.transaction():
            leave("never")

    asyncio.run(write())


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (within_atomic, "must be the outermost block"),
        (without_autocommit, "autocommit is off"),
        (on_sqlite, "is SQLite, and the job's is PostgreSQL"),
        (in_an_event_loop, "sync_to_async()"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_block_that_cannot_belong_to_the_job_is_refused(
    shop: Workshop, act: Callable[[], None], told: str
) -> None:
    try:
        job_id = shop.delivered(act, max_attempts=1)
        assert shop.work(job_id) == "dead"
    finally:
        if hasattr(connections._connections, "sqlite"):
            connections["sqlite"].close()
            del connections["sqlite"]
        connections.settings.pop("sqlite", None)
    assert told in shop.row(job_id)["explanation"]
    assert shop.effects() == []
    assert shop.work(shop.delivered(lambda: leave("the next job"), name="tests.next")) == "finished"
    assert shop.effects() == ["the next job"]


@pytest.mark.parametrize("other", ["another installation", "no schema"])
def test_a_database_other_than_the_job_database_is_refused(
    shop: Workshop, other: str, request: pytest.FixtureRequest
) -> None:
    name = "other_database_url" if other == "another installation" else "empty_database_url"
    use_django_at(request.getfixturevalue(name))

    def act() -> None:
        with drain.contrib.django.transaction():
            pass

    job_id = shop.delivered(act, max_attempts=1)
    assert shop.work(job_id) == "dead"
    assert "is not the database of the jobs" in shop.row(job_id)["explanation"]
    forget_django()


def test_a_transaction_outside_a_job_is_refused(shop: Workshop) -> None:
    with pytest.raises(drain.NoCurrentJobError), drain.contrib.django.transaction():
        pass


# --- functions that Django calls after the commit


def test_on_commit_hooks_see_the_job_finished(shop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[bool] = []

    def fail() -> None:
        raise ValueError("the mail server is away")

    def act() -> None:
        with drain.contrib.django.transaction():
            leave("written")
            of_django.on_commit(lambda: seen.append(current_job().finished))
            of_django.on_commit(fail)

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "finished"
    assert seen == [True]
    assert shop.effects() == ["written"]
    assert "the mail server is away" in one_event(caplog, "failed_after_finish")


def test_on_commit_hooks_are_not_called_if_the_lease_is_lost(shop: Workshop) -> None:
    seen: list[str] = []

    def act() -> None:
        with drain.contrib.django.transaction():
            leave("late")
            of_django.on_commit(lambda: seen.append("called"))
            shop.take_over(job_id)

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "stale"
    assert (shop.effects(), seen) == ([], [])


def test_an_async_job_can_open_its_transaction_in_sync_to_async(
    shop: Workshop,
) -> None:
    def write() -> None:
        with drain.contrib.django.transaction():
            leave("written")
        connection.close()

    async def act() -> None:
        await sync_to_async(write)()
        assert current_job().finished

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["written"]


# --- connections of Django's between two jobs


def sessions(shop: Workshop) -> list[int]:
    return shop.backends("drain job")


@pytest.mark.parametrize("health_checks", [False, True])
def test_a_connection_lost_between_two_jobs_fails_neither(shop: Workshop, health_checks: bool) -> None:
    use_django_at(shop.database_url, CONN_HEALTH_CHECKS=health_checks)
    for label in ("first", "second"):
        assert shop.work(shop.delivered(lambda label=label: leave(label), max_attempts=1)) == "finished"
        assert shop.terminate("drain job") == 1
    assert shop.effects() == ["first", "second"]
    use_django_at(shop.database_url, CONN_HEALTH_CHECKS=False)


def test_a_connection_is_kept_for_the_next_job_according_to_conn_max_age(shop: Workshop) -> None:
    for _ in range(2):
        assert shop.work(shop.delivered(lambda: leave("written"))) == "finished"
        first, *more = sessions(shop)
        assert not more
    assert sessions(shop) == [first]

    use_django_at(shop.database_url, CONN_MAX_AGE=0)
    assert shop.work(shop.delivered(lambda: leave("written"))) == "finished"
    wait_until(lambda: not sessions(shop))
    assert shop.effects() == ["written"] * 3
    use_django_at(shop.database_url)


def test_a_statement_is_cancelled_on_the_server_when_its_job_times_out(shop: Workshop) -> None:
    job_id = shop.deliver(drain.job(name="tests.act", max_attempts=1, timeout_seconds=1)(sleep_too_long))
    assert shop.work(job_id) == "dead"
    # The cancel is on its way when the job has ended.
    wait_until(lambda: not shop.backends("drain job", state="active"))
    assert shop.work(shop.delivered(lambda: leave("the next job"), name="tests.next")) == "finished"


def sleep_too_long() -> None:
    connection.cursor().execute("SELECT pg_sleep(600)")


def test_a_block_left_open_does_not_leak_into_the_next_job(shop: Workshop) -> None:
    opened: list[Any] = []

    def act() -> None:
        opened.append(atomic())
        opened[-1].__enter__()
        leave("lost")

    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.work(shop.delivered(lambda: leave("the next job"), name="tests.next")) == "finished"
    assert shop.effects() == ["the next job"]


def test_a_job_does_not_close_the_connection_of_others_in_its_loop(shop: Workshop) -> None:
    """They share it: asgiref has one thread for all of them."""
    query(shop.database_url, "INSERT INTO effects (label) SELECT generate_series(1, 4)::text")
    use_django_at(shop.database_url, CONN_MAX_AGE=0)
    labels: list[str] = []

    async def pause() -> None:
        await asyncio.sleep(0)

    async def read() -> None:
        async for effect in jobs_of_django.model().objects.order_by("id").aiterator(chunk_size=1):
            labels.append(effect.label)
            attempt = Attempt(claim(name="tests.pause"), monotonic(), heartbeat, shop.database_url)
            assert await asyncio.create_task(run_in_loop(attempt)) == Finished()

    drain.job(name="tests.pause")(pause)
    drain.job(name="tests.read")(read)
    heartbeat = Heartbeat(shop.database_url, list)
    attempt = Attempt(claim(name="tests.read"), monotonic(), heartbeat, shop.database_url)
    try:
        assert asyncio.run(run_in_loop(attempt)) == Finished()
    finally:
        heartbeat.stop()
        use_django_at(shop.database_url)
    assert labels == ["1", "2", "3", "4"]


def in_a_child(shop: Workshop, function: Callable[..., Any]) -> Outcome:
    """Run a job in a process of its own, which claims nothing."""
    drain.job(name="tests.isolated")(function)
    heartbeat = Heartbeat(shop.database_url, list)
    attempt = Attempt(claim(name="tests.isolated"), monotonic(), heartbeat, shop.database_url)
    try:
        return isolation.run(attempt)
    finally:
        heartbeat.stop()


def test_a_killed_childs_writes_are_not_in_the_next_jobs_transaction(shop: Workshop) -> None:
    def act() -> None:
        with atomic():
            leave("of the killed")
            os.kill(os.getpid(), signal.SIGKILL)

    assert shop.work(shop.delivered(lambda: leave("first"))) == "finished"
    assert "SIGKILL" in str(in_a_child(shop, act))
    assert shop.work(shop.delivered(lambda: leave("the next job"), name="tests.next")) == "finished"
    assert shop.effects() == ["first", "the next job"]


def test_a_child_process_gets_its_own_asgiref_thread(shop: Workshop) -> None:
    async def act() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await jobs_of_django.model().objects.acreate(label=current_job().name)

    assert shop.work(shop.delivered(act)) == "finished"
    in_a_child(shop, act)
    assert shop.effects() == ["tests.act", "tests.isolated"]


def test_a_test_case_transaction_is_left_open(shop: Workshop) -> None:
    """Django's TestCase runs jobs within a transaction of its own."""
    block = atomic()
    block._from_testcase = True
    with block:
        assert shop.work(shop.delivered(lambda: leave("rolled back"))) == "finished"
        assert jobs_of_django.model().objects.count() == 1
        of_django.set_rollback(True)
    assert shop.effects() == []


def test_within_a_test_case_the_block_is_a_savepoint(shop: Workshop) -> None:
    def act() -> None:
        with drain.contrib.django.transaction():
            leave(f"attempt {current_job().attempt}")
            if current_job().attempt == 1:
                raise ValueError("not yet")

    job_id = shop.delivered(act)
    block = atomic()
    block._from_testcase = True
    assert shop.work(job_id) == "retrying"
    with block:
        assert shop.work(job_id) == "finished"
        labels = jobs_of_django.model().objects.values_list("label", flat=True)
        assert list(labels) == ["attempt 2"]
        of_django.set_rollback(True)
    assert shop.effects() == []


# --- processes of `drain work`


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (jobs_of_django.write, ()),
        (jobs_of_django.write, ("--threads", "2")),
        (jobs_of_django.write_async, ()),
        (jobs_of_django.finish, ()),
        (jobs_of_django.finish_async, ()),
    ],
    ids=["main thread", "threads", "async", "finish", "finish async"],
)
def test_a_worker_survives_the_loss_of_its_connections(yard: Yard, job: Any, words: tuple[str, ...]) -> None:
    def sessions() -> list[tuple[int]]:
        return query(yard.database_url, "SELECT pid FROM pg_stat_activity WHERE application_name = 'django'")

    with yard.working(*words, DRAIN_JOBS=jobs_of_django.MODULE) as command:
        yard.wait_for("finished_jobs", yard.pushed(job, *map(str, range(4))))
        assert sessions()
        for (pid,) in sessions():
            query(yard.database_url, "SELECT pg_terminate_backend(%s, 10000)", pid)
        yard.wait_for("finished_jobs", yard.pushed(job, *map(str, range(4, 8))))
        assert len(command.events("started")) == 1
        assert end(command) == 0
    assert sorted(yard.effects()) == sorted(map(str, range(8)))


def test_commits_through_django_may_be_grouped(yard: Yard) -> None:
    note_how_finishes_commit(yard.database_url)
    ids = yard.pushed(jobs_of_django.finish_grouped, *["written"] * 20)
    with yard.working("--burst", DRAIN_JOBS=jobs_of_django.MODULE) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.all_are("finished_jobs", ids)
    assert Counter(yard.effects()) == {"written": 20, "synchronous_commit off": 20}


@pytest.mark.parametrize("words", [(), ("--threads", "2")], ids=["main thread", "threads"])
def test_a_fork_inside_the_block_loses_none_of_the_jobs_writes(yard: Yard, words: tuple[str, ...]) -> None:
    ids = yard.pushed(jobs_of_django.fork_and_finish, "first", "second")
    with yard.working(*words, "--burst", DRAIN_JOBS=jobs_of_django.MODULE) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.all_are("finished_jobs", ids)
    assert Counter(yard.effects()) == {
        f"{label} {when} the fork": 1 for label in ("first", "second") for when in ("before", "after")
    }
