"""A step runs once, keeps its result for later attempts, and is fenced as the job is."""

import asyncio
import contextvars
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from importlib.util import find_spec
from typing import Any

import psycopg
import pytest
import sqlalchemy
from click.testing import CliRunner
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

import drain
from drain import failpoints
from drain.__main__ import main
from drain.database import schema
from drain.enqueuer.housekeeping import PastSteps
from drain.failpoints import FailurePoint
from drain.tables import cancellations, dead, steps
from drain.tables.claims import Claim
from drain.tables.dead import Selection as DeadSelection
from drain.tables.selections import Selection
from drain.workers import JobTimeoutError, LeaseLostError, StepError, TransactionError, current_job, job
from drain.workers.context import async_connection_cache, connection_cache
from drain.workers.context.async_connection import JobAsyncConnection
from drain.workers.context.connection import JobConnection
from drain.workers.context.current import current_attempt
from tests import jobs_in_batches
from tests.blocks import OfDjango, forget_django, use_django_at
from tests.helpers import ROOT, connected, end, leading, query, rq_worker, wait_until
from tests.inprocess_worker import FOREVER_SECONDS, NAME, Workshop, leave
from tests.process.test_job_transactions import one_event
from tests.worker_processes import Yard


class Name(StrEnum):
    CHARGE = "charge"


class Odd(str):
    __hash__ = None  # type: ignore[assignment]


# Each step transaction, called with its name and a label to leave, as a function of a job.
Way = Callable[[str, str], Any]


def by_sqlalchemy(name: str, label: str) -> Any:
    return drain.step_transaction(name, _leave, label)


def by_psycopg(name: str, label: str) -> Any:
    return drain.psycopg_step_transaction(name, _leave, label)


def by_async_sqlalchemy(name: str, label: str) -> Any:
    return asyncio.run(drain.async_step_transaction(name, _leave_in_session, label))


def by_async_psycopg(name: str, label: str) -> Any:
    return asyncio.run(drain.async_psycopg_step_transaction(name, _leave_by_psycopg, label))


def by_django(name: str, label: str) -> Any:
    from drain.contrib.django import step_transaction

    use_django_at(current_attempt().database_url)
    return step_transaction(name, _leave_by_django, label)


def _leave_by_django(label: str) -> str:
    from django.db import connection

    return _leave(OfDjango(connection), label)


def _leave(handle: Any, label: str) -> str:
    leave(handle, label)
    return label


async def _leave_in_session(session: Any, label: str) -> str:
    await session.execute(text("INSERT INTO effects (label) VALUES (:label)"), {"label": label})
    return label


async def _leave_by_psycopg(connection: Any, label: str) -> str:
    await connection.execute("INSERT INTO effects (label) VALUES (%s)", (label,))
    return label


def outside(name: str, label: str) -> Any:
    """Leave the effect outside of any transaction of the job, as a payment would be."""

    def effect() -> str:
        query(current_attempt().database_url, "INSERT INTO effects (label) VALUES (%s)", label)
        return label

    return drain.step(name, effect)


def outside_async(name: str, label: str) -> Any:
    async def effect() -> str:
        query(current_attempt().database_url, "INSERT INTO effects (label) VALUES (%s)", label)
        return label

    return asyncio.run(drain.async_step(name, effect))


TRANSACTIONS = [by_sqlalchemy, by_psycopg, by_async_sqlalchemy, by_async_psycopg]
if find_spec("drain.contrib"):
    TRANSACTIONS.append(by_django)
OUTSIDE = [outside, outside_async]
ALL = pytest.mark.parametrize("way", [*OUTSIDE, *TRANSACTIONS])
ATOMIC = pytest.mark.parametrize("way", TRANSACTIONS)


@pytest.fixture(autouse=True)
def _without_django() -> Iterator[None]:
    yield
    django = sys.modules.get("django.conf")
    if django and django.settings.configured:
        forget_django()


def recorded(shop: Workshop) -> list[tuple[Any, ...]]:
    return query(
        shop.database_url, "SELECT job_id, name, result, fencing_token FROM job_steps ORDER BY recorded_at"
    )


@ALL
def test_a_later_attempt_leaves_out_a_recorded_step_and_gets_its_result(shop: Workshop, way: Way) -> None:
    results: list[Any] = []

    def act() -> None:
        results.append(way("charge", f"attempt {current_job().attempt}"))
        if current_job().attempt < 3:
            raise OSError("the shipper does not answer")

    job_id = shop.delivered(act)
    assert shop.work_to_the_end(job_id) == ["retrying", "retrying", "finished"]
    assert shop.effects() == ["attempt 1"]
    assert results == ["attempt 1"] * 3
    assert recorded(shop) == [(job_id, "charge", "attempt 1", 1)]


@ALL
def test_a_step_that_raises_records_nothing_and_runs_again(shop: Workshop, way: Way) -> None:
    def act() -> None:
        with suppress(OSError):
            _failing(way)
        way("charge", f"attempt {current_job().attempt}")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["attempt 1"]
    assert recorded(shop) == [(job_id, "charge", "attempt 1", 1)]


def _failing(way: Way) -> None:
    def fail(point: FailurePoint) -> None:
        if point is FailurePoint.STEP_RAN:
            raise OSError

    if way in OUTSIDE:
        drain.step("charge", lambda: (_ for _ in ()).throw(OSError()))
    failpoints.set_hook(fail)
    try:
        way("charge", "rolled back")
    finally:
        failpoints.set_hook(None)


@ALL
def test_a_step_of_a_claim_that_is_lost_is_refused(shop: Workshop, way: Way) -> None:
    """The writes of a transaction are rolled back; an effect outside has happened, but its result is not recorded."""
    refusals: list[str] = []

    def act() -> None:
        shop.take_over(current_job().id)
        try:
            way("charge", "late")
        except LeaseLostError as error:
            refusals.append(str(error))
            raise

    job_id = shop.delivered(act, lease_seconds=30, heartbeat_seconds=10)
    assert shop.work(job_id) == "stale"
    assert refusals == [f"job {job_id} has been claimed by another worker; step 'charge' is not recorded"]
    assert shop.effects() == (["late"] if way in OUTSIDE else [])
    assert recorded(shop) == []


@ATOMIC
def test_a_step_of_an_old_token_is_refused(shop: Workshop, way: Way) -> None:
    """The same process has claimed the job again."""
    _refused_after(shop, way, "fencing_token = fencing_token + 1 WHERE")


@ATOMIC
@pytest.mark.parametrize("change", ["claimed_by = 'another' WHERE", "salt = salt + 1 WHERE"])
def test_a_step_of_a_repeated_token_is_refused(shop: Workshop, way: Way, change: str) -> None:
    """After a failover that lost claims, another claim, or another job, may have the id and the token."""
    _refused_after(shop, way, change)


def _refused_after(shop: Workshop, way: Way, change: str) -> None:
    def act() -> None:
        shop.set(current_job().id, change)
        with pytest.raises(LeaseLostError):
            way("charge", "late")

    shop.work(shop.delivered(act, lease_seconds=60, heartbeat_seconds=20))
    assert shop.effects() == []
    assert recorded(shop) == []


@ALL
@pytest.mark.parametrize(
    "change",
    ["fencing_token = fencing_token + 1", "lease_expires_at = lease_expires_at + interval '1 min'"],
    ids=["claim", "heartbeat"],
)
def test_a_step_waits_for_a_change_of_its_job_under_way(shop: Workshop, way: Way, change: str) -> None:
    """Its lock conflicts with a claim's, so a claim that commits first refuses the step."""
    is_claim = change.startswith("fencing_token")

    def act() -> None:
        with psycopg.connect(shop.database_url) as other, ThreadPoolExecutor(1) as helper:
            other.execute(f"UPDATE inflight_jobs SET {change} WHERE id = %s".encode(), [current_job().id])

            def commit_once_the_step_waits() -> None:
                wait_until(lambda: query(shop.database_url, "SELECT FROM pg_locks WHERE NOT granted"))
                other.commit()

            committed = helper.submit(commit_once_the_step_waits)
            try:
                way("charge", "charged")
            finally:
                committed.result()

    job_id = shop.delivered(act, lease_seconds=60, heartbeat_seconds=20)
    assert shop.work(job_id) == ("stale" if is_claim else "finished")
    assert len(recorded(shop)) == (0 if is_claim else 1)


@ATOMIC
def test_a_step_of_a_cancelled_job_is_rolled_back(shop: Workshop, way: Way) -> None:
    def act() -> None:
        cancellations.cancel_inflight(connected(shop.database_url), Selection(ids=(current_job().id,)))
        way("charge", "late")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "cancelled"
    assert shop.effects() == []
    assert recorded(shop) == []


@ATOMIC
def test_a_step_commits_its_writes_while_the_job_goes_on(shop: Workshop, way: Way) -> None:
    seen: list[tuple[list[str], str]] = []

    def act() -> None:
        way("reserve", "reserved")
        seen.append((shop.effects(), shop.whereabouts(job_id)))
        way("ship", "shipped")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "finished"
    assert seen == [(["reserved"], "inflight_jobs")]
    assert shop.effects() == ["reserved", "shipped"]


def test_steps_then_the_jobs_own_transaction(shop: Workshop) -> None:
    def act() -> None:
        by_sqlalchemy("reserve", "reserved")
        with drain.transaction() as session:
            leave(session, "settled")

    assert shop.work(shop.delivered(act)) == "finished"
    assert shop.effects() == ["reserved", "settled"]


@ALL
def test_a_step_within_or_after_the_jobs_transaction_is_refused(shop: Workshop, way: Way) -> None:
    refusals: list[str] = []

    def act() -> None:
        with drain.transaction() as session:
            leave(session, "settled")
            with suppress(TransactionError):
                way("charge", "within")
        try:
            way("charge", "after")
        except TransactionError as error:
            refusals.append(str(error))

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["settled"]
    (refusal,) = refusals
    assert refusal == (
        f"step 'charge' of job {job_id} comes too late: steps must come before the job's transaction(), "
        "and before its end"
    )


@ALL
def test_a_name_used_twice_kills_the_job(shop: Workshop, way: Way) -> None:
    def act() -> None:
        way("charge", "first")
        way("charge", "second")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "dead"
    assert shop.effects() == ["first"]
    assert shop.row(job_id)["last_error"]["message"] == (
        "two steps of a job are named 'charge': give each its own name, such as 'charge 2'"
    )


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", None, 42])
def test_a_step_needs_a_name(shop: Workshop, name: Any) -> None:
    def act() -> None:
        with pytest.raises(StepError):
            drain.step(name, print)

    assert shop.work(shop.delivered(act)) == "finished"


@pytest.mark.parametrize(
    ("value", "words"),
    [(object(), "cannot be written as JSON"), ("x" * 70_000, "is too large")],
    ids=["object", "large"],
)
def test_a_result_that_cannot_be_kept_kills_the_job_and_rolls_back(
    shop: Workshop, value: object, words: str
) -> None:
    def write(session: Any) -> object:
        leave(session, "rolled back")
        return value

    job_id = shop.delivered(lambda: drain.step_transaction("charge", write))
    assert shop.work(job_id) == "dead"
    message = shop.row(job_id)["last_error"]["message"]
    assert message.startswith(f"the result of step 'charge' of job {job_id} ")
    assert words in message
    assert shop.effects() == []


def test_results_are_the_same_in_each_attempt(shop: Workshop) -> None:
    results: list[Any] = []

    def act() -> None:
        results.append(drain.step("none", lambda: None))
        results.append(drain.step("pair", lambda: (1, {"a": [True]})))
        if current_job().attempt == 1:
            raise OSError

    shop.work_to_the_end(shop.delivered(act))
    assert results == [None, [1, {"a": [True]}]] * 2


def test_async_steps_run_at_the_same_time(shop: Workshop) -> None:
    async def act() -> None:
        both = asyncio.Barrier(2)

        async def meet(label: str) -> str:
            await asyncio.wait_for(both.wait(), FOREVER_SECONDS)
            return label

        async def meet_in_transaction(connection: Any, label: str) -> str:
            await _leave_by_psycopg(connection, label)
            return await meet(label)

        results = await asyncio.gather(
            drain.async_step("left", meet, "left"),
            drain.async_psycopg_step_transaction("right", meet_in_transaction, "right"),
        )
        assert [*results] == ["left", "right"]

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "finished"
    assert sorted(name for _, name, *_ in recorded(shop)) == ["left", "right"]
    assert shop.effects() == ["right"]


def test_jobs_staged_in_a_step_are_committed_with_it(shop: Workshop) -> None:
    def act() -> None:
        drain.step_transaction("next", lambda session: drain.stage(session, "shop.jobs.next", [1]))
        if current_job().attempt == 1:
            raise OSError

    assert shop.work_to_the_end(shop.delivered(act)) == ["retrying", "finished"]
    assert query(shop.database_url, "SELECT job_args FROM staged_jobs") == [([1],)]


@ATOMIC
@pytest.mark.parametrize("point", [FailurePoint.STEP_RAN, FailurePoint.STEP_RECORDED], ids=lambda p: p.name)
def test_a_session_that_the_server_ends_loses_or_keeps_both(
    shop: Workshop, way: Way, point: FailurePoint
) -> None:
    def strike(reached: FailurePoint) -> None:
        if reached is point and current_job().attempt == 1:
            assert wait_until(lambda: shop.terminate("drain job"))

    def act() -> None:
        way("charge", f"attempt {current_job().attempt}")
        if current_job().attempt == 1:
            raise OSError

    failpoints.set_hook(strike)
    try:
        job_id = shop.delivered(act)
        assert shop.work_to_the_end(job_id) == ["retrying", "finished"]
    finally:
        failpoints.set_hook(None)
    attempt = 2 if point is FailurePoint.STEP_RAN else 1
    assert shop.effects() == [f"attempt {attempt}"]
    assert recorded(shop) == [(job_id, "charge", f"attempt {attempt}", attempt)]


@pytest.mark.parametrize("way", OUTSIDE)
def test_an_effect_is_recorded_after_a_lost_connection(shop: Workshop, way: Way) -> None:
    """A payment that was made is not made again because the server restarts in between."""

    def strike(reached: FailurePoint) -> None:
        if reached is FailurePoint.STEP_RAN:
            # One that the step keeps from the first.
            assert wait_until(lambda: shop.terminate("drain job"))

    def act() -> None:
        way("first", "first")
        failpoints.set_hook(strike)
        way("second", "second")

    try:
        job_id = shop.delivered(act)
        assert shop.work(job_id) == "finished"
    finally:
        failpoints.set_hook(None)
    assert shop.effects() == ["first", "second"]
    assert [name for _, name, *_ in recorded(shop)] == ["first", "second"]


@pytest.mark.parametrize("way", OUTSIDE)
def test_an_effect_is_recorded_after_an_outage(
    shop: Workshop, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = "postgresql://127.0.0.1:1/nowhere"
    outages: list[str] = []
    connect, connect_async = connection_cache.connect, async_connection_cache._connect

    def fail_twice(url: str) -> JobConnection:
        outages.append(url)
        return connect(refused if len(outages) <= 2 else url)

    async def fail_twice_async(url: str) -> JobAsyncConnection:
        outages.append(url)
        return await connect_async(refused if len(outages) <= 2 else url)

    connection_cache.close_all()
    async_connection_cache.close_all()
    monkeypatch.setattr(connection_cache, "connect", fail_twice)
    monkeypatch.setattr(async_connection_cache, "_connect", fail_twice_async)
    assert shop.work(shop.delivered(lambda: way("charge", "charged"))) == "finished"
    assert len(outages) == 3
    assert shop.effects() == ["charged"]


def losing_answers(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Raise this after the first step's commit."""
    commits: list[bool] = []
    commit, commit_async = JobConnection.commit, JobAsyncConnection.commit

    def lose(*, is_step: bool) -> None:
        if is_step and not commits:
            commits.append(True)
            raise error

    def lose_first_answer(connection: Any) -> None:
        is_step = connection.step is not None
        commit(connection)
        lose(is_step=is_step)

    async def lose_first_answer_async(connection: Any) -> None:
        is_step = connection.step is not None
        await commit_async(connection)
        lose(is_step=is_step)

    monkeypatch.setattr(JobConnection, "commit", lose_first_answer)
    monkeypatch.setattr(JobAsyncConnection, "commit", lose_first_answer_async)


@pytest.mark.parametrize("way", OUTSIDE)
def test_a_lost_answer_to_a_commit_is_no_second_step(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    losing_answers(monkeypatch, psycopg.OperationalError("the connection is lost"))
    job_id = shop.delivered(lambda: way("charge", "charged"))
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["charged"]
    assert recorded(shop) == [(job_id, "charge", "charged", 1)]


@pytest.mark.parametrize("way", [*OUTSIDE, by_sqlalchemy, by_psycopg, by_async_sqlalchemy, by_async_psycopg])
@pytest.mark.parametrize(
    "error", [psycopg.OperationalError("lost"), JobTimeoutError("late")], ids=["lost", "late"]
)
def test_a_step_is_not_repeated_in_its_attempt_after_an_unanswered_commit(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch, way: Way, error: Exception
) -> None:
    losing_answers(monkeypatch, error)
    results: list[Any] = []

    def act() -> None:
        try:
            results.append(way("charge", "first"))
        except (psycopg.Error, SQLAlchemyError, JobTimeoutError):
            results.append(way("charge", "second"))

    assert shop.work(shop.delivered(act)) == "finished"
    assert results == ["first"]
    assert shop.effects() == ["first"]


def test_a_second_commit_in_a_step_is_refused(shop: Workshop) -> None:
    refusals: list[str] = []

    def write(session: Any) -> None:
        driver = session.connection().connection.driver_connection

        def commit_again(_session: object) -> None:
            with pytest.raises(TransactionError) as error:
                driver.commit()
            refusals.append(str(error.value))

        sqlalchemy.event.listen(session, "after_commit", commit_again)

    def act() -> None:
        drain.step_transaction("write", write)
        assert not current_job().finished
        raise OSError

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    assert len(refusals) == 1
    assert shop.whereabouts(job_id) == "inflight_jobs"


@pytest.mark.parametrize("block", [drain.transaction, None], ids=["transaction", "step"])
def test_a_lent_session_cannot_be_closed(shop: Workshop, block: Any) -> None:
    """`with session:` would roll back what it wrote, and the rest would be committed without it."""

    def write(session: Any) -> None:
        with session:
            leave(session, "lost")

    def act() -> None:
        if block is None:
            drain.step_transaction("write", write)
        else:
            with block() as session:
                write(session)

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "retrying"
    assert shop.row(job_id)["last_error"]["type"] == "drain.workers.errors.TransactionError"
    assert recorded(shop) == []


@pytest.mark.parametrize("way", ["step", "step_transaction"])
def test_the_jobs_transaction_cannot_begin_within_a_step(shop: Workshop, way: str) -> None:
    def settle(*_: Any) -> None:
        with drain.transaction() as session:
            leave(session, "settled")

    job_id = shop.delivered(lambda: getattr(drain, way)("settle", settle))
    assert shop.work(job_id) == "retrying"
    assert shop.row(job_id)["last_error"]["message"] == (
        f"job {job_id} is running step 'settle': begin the job's transaction after its steps"
    )
    assert shop.effects() == []


def test_a_thread_that_outlives_its_attempt_runs_no_step(shop: Workshop) -> None:
    has_ended = threading.Event()
    threads: list[threading.Thread] = []
    refusals: list[str] = []

    def late() -> None:
        has_ended.wait(FOREVER_SECONDS)
        with pytest.raises(TransactionError) as error:
            by_psycopg("late", "late")
        refusals.append(str(error.value))

    def act() -> None:
        threads.append(threading.Thread(target=contextvars.copy_context().run, args=(late,)))
        threads[0].start()
        raise drain.Defer(3600)

    assert shop.work(shop.delivered(act)) == "deferred"
    has_ended.set()
    threads[0].join()
    assert len(refusals) == 1
    assert shop.effects() == []


def test_threads_share_the_steps_of_their_job(shop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        calls = (asyncio.to_thread(drain.step, f"{number}", lambda: 1) for number in range(6))
        assert await asyncio.gather(*calls) == [1] * 6
        if current_job().attempt == 1:
            raise OSError
        twice = (asyncio.to_thread(outside, "twice", "once") for _ in range(2))
        outcomes = await asyncio.gather(*twice, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {str, StepError}

    with caplog.at_level(logging.WARNING):
        assert shop.work_to_the_end(shop.delivered(act)) == ["retrying", "finished"]
    assert not [record for record in caplog.records if getattr(record, "event", "") == "steps_unused"]
    assert shop.effects() == ["once"]


@pytest.mark.parametrize("kind", [Name.CHARGE, Odd("charge")], ids=["enum", "unhashable"])
def test_a_name_is_its_plain_string(shop: Workshop, kind: str) -> None:
    def act() -> None:
        outside(kind, "charged")
        if current_job().attempt == 1:
            raise OSError

    job_id = shop.delivered(act)
    assert shop.work_to_the_end(job_id) == ["retrying", "finished"]
    assert recorded(shop) == [(job_id, "charge", "charged", 1)]


def test_each_function_may_be_plain_in_a_loop_but_not_async_without(shop: Workshop) -> None:
    async def act() -> None:
        plain: Any = lambda: 1  # noqa: E731
        assert await drain.async_step("plain", plain) == 1

        async def coroutine() -> None: ...

        drain.step("async", coroutine)

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "dead"
    assert shop.row(job_id)["last_error"]["message"] == (
        "the function of step 'async' is `async def`: await async_step() or its transactions"
    )


@pytest.mark.parametrize(
    "value", [1e16, -0.0, {"b": 1, "a": 2}, 0.1, "\u20ac", 12345678901234567890123], ids=repr
)
def test_a_result_is_the_same_in_each_attempt(shop: Workshop, value: Any) -> None:
    results: list[Any] = []

    def act() -> None:
        results.append(drain.step("value", lambda: value))
        if current_job().attempt == 1:
            raise OSError

    shop.work_to_the_end(shop.delivered(act))
    assert [repr(result) for result in results] == [repr(value)] * 2


def test_an_upgrade_keeps_the_applications_own_table_of_that_name(empty_database_url: str) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        for version in sorted((ROOT / "migrations").glob("000[1-6]_*.sql")):
            connection.execute(version.read_bytes())
        connection.execute("CREATE TABLE job_steps (job_id bigint); INSERT INTO job_steps VALUES (1)")
    with pytest.raises(drain.DrainError, match="job_steps"):
        schema.install(empty_database_url)
    assert query(empty_database_url, "SELECT job_id FROM job_steps") == [(1,)]


def test_a_job_that_finishes_without_its_recorded_steps_warns(
    shop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    def act() -> None:
        outside("charge" if current_job().attempt == 1 else "bill", "charged")
        if current_job().attempt == 1:
            raise OSError

    with caplog.at_level(logging.WARNING):
        job_id = shop.delivered(act)
        assert shop.work(job_id) == "retrying"
        query(shop.database_url, "UPDATE job_steps SET recorded_at = now() - interval '1 hour'")
        assert shop.work(job_id) == "finished"
    assert one_event(caplog, "steps_unused") == (
        f"job {job_id} (tests.act) finished without its recorded steps 'charge' (1h old): "
        'if the code renamed them, they ran again; options(was="the old name") prevents that'
    )


def test_a_dead_job_that_is_retried_resumes_after_its_steps(shop: Workshop) -> None:
    is_up: list[bool] = []

    def act() -> None:
        outside("charge", "charged")
        if not is_up:
            raise drain.Dead("the shipper is gone")

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "dead"
    is_up.append(True)
    dead.revive(connected(shop.database_url), DeadSelection(ids=(job_id,)))
    shop.move(job_id)
    assert shop.work(job_id) == "finished"
    assert shop.effects() == ["charged"]


def test_a_first_attempt_reads_no_steps(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []

    def read(_connection: object, claim: Claim, *, waits: bool) -> dict[str, str]:
        assert not waits
        reads.append(claim.id)
        return {}

    monkeypatch.setattr(steps, "read", read)

    def act() -> None:
        outside("charge", "charged")
        if current_job().attempt == 1:
            assert reads == []
            raise OSError

    job_id = shop.delivered(act)
    shop.work(job_id)
    shop.work(job_id)
    assert reads == [job_id]


def test_the_leader_deletes_the_steps_of_deleted_jobs_alone(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drain.enqueuer.housekeeping._MOST_JOBS", 2)

    def act(ending: str) -> None:
        outside("charge", "charged")
        if ending == "dead":
            raise drain.Dead
        if ending == "retrying":
            raise OSError

    endings = ("finished", "dead", "dead", "retrying", "finished")
    registered = job(name=NAME)(act)
    jobs = [shop.deliver(registered, ending) for ending in endings]
    assert [shop.work(job_id) for job_id in jobs] == [*endings]
    finished, dead_, discarded, retrying, pruned = jobs
    query(shop.database_url, "DELETE FROM dead_jobs WHERE id = %s", discarded)
    query(shop.database_url, "DELETE FROM finished_jobs WHERE id = %s", pruned)
    chore = PastSteps(connected(shop.database_url))
    # Two jobs a call; the last of these begins again at the lowest id.
    assert [chore._work() for _ in range(5)] == [0, 1, 1, 0, 0]
    assert {job_id for job_id, *_ in recorded(shop)} == {finished, dead_, retrying}


def test_show_and_trace_list_the_steps(shop: Workshop) -> None:
    def act() -> None:
        drain.step("charge\x1b[31m", lambda: {"payment": 42})

    job_id = shop.delivered(act)
    shop.work(job_id)
    shown, traced, as_json = (
        CliRunner().invoke(main, [*words, str(job_id), "--database-url", shop.database_url])
        for words in (["show"], ["trace"], ["show", "--json"])
    )
    assert re.search(r'^steps +charge\\x1b\[31m, \S+, (now|.* ago): {"payment": 42}$', shown.output, re.M)
    assert re.search(r"^step charge\\x1b\[31m  ", traced.output, re.M)
    (step,) = json.loads(as_json.output)["steps"]
    assert (step["name"], step["result"], step["fencing_token"]) == ("charge\x1b[31m", {"payment": 42}, 1)


KINDS: list[Any] = [
    jobs_in_batches.step_and_fail_once,
    jobs_in_batches.step_and_fail_once_in_loop,
    jobs_in_batches.step_and_fail_once_isolated,
    jobs_in_batches.step_and_fail_once_grouped,
]


@pytest.mark.parametrize("options", [(), ("--threads", "2")], ids=["alone", "in threads"])
def test_a_second_process_continues_after_the_steps_of_each_kind_of_job(
    yard: Yard, options: tuple[str, ...]
) -> None:
    ids = [job_id for number, kind in enumerate(KINDS) for job_id in yard.pushed(kind, f"{number}")]
    with leading(yard.env()), yard.working(*options) as command:
        yard.wait_for("finished_jobs", ids)
        assert end(command) == 0
    assert sorted(yard.effects()) == ["0", "1", "2", "3"]
    assert query(yard.database_url, "SELECT DISTINCT attempts FROM finished_jobs") == [(2,)]


def test_an_unmodified_rq_worker_continues_after_the_steps(yard: Yard) -> None:
    (job_id,) = yard.pushed(jobs_in_batches.step_and_fail_once, "a")
    for place in ("inflight_jobs", "finished_jobs"):
        rq_worker(yard.redis_url, "default", env=yard.env())
        assert yard.place(job_id) == place
        yard.redeliver()
    assert yard.effects() == ["a"]
