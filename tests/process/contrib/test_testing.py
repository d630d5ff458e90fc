"""`drain.contrib.testing`: jobs in a test's transaction, on each kind of connection that applications have."""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import drain
from drain import Dead, Defer, RateLimited, Retry, current_job, stage
from drain.contrib.testing import Staged
from drain.database import schema
from drain.embedded import CARELESS, EmbeddedPostgres
from drain.jobs import registry
from tests.helpers import query

AN_HOUR = 3600.0


class Base(DeclarativeBase): ...


class Effect(Base):
    __tablename__ = "effects"
    label: Mapped[str] = mapped_column(primary_key=True)
    number: Mapped[int]


TABLES = (
    "staged_jobs",
    "inflight_jobs",
    "finished_jobs",
    "dead_jobs",
    "crons",
    "queue_pauses",
    "stale_finishes",
    "job_waits",
    "job_events",
)


def job(function: Any = None, **options: Any) -> Any:
    """Register a function defined within a test, under a name; its retries come due only after the test."""
    if function is None:
        return lambda function: job(function, **options)
    retries = {"retry_base_seconds": AN_HOUR, "retry_cap_seconds": AN_HOUR}
    return drain.job(**{"name": f"tests.{function.__name__}"} | retries | options)(function)


@pytest.fixture(autouse=True)
def no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_jobs", {})


@pytest.fixture
def url(database_url: str) -> Iterator[str]:
    """A database with a table for effects, in which nothing may be left of a test."""
    query(database_url, "CREATE TABLE effects (label text NOT NULL)")
    yield database_url
    for table in (*TABLES, "effects"):
        assert query(database_url, f"SELECT * FROM {table}") == []


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def staged(connection: psycopg.Connection[Any]) -> Staged:
    return Staged(connection)


def effects(connection: psycopg.Connection[Any]) -> list[str]:
    return [label for (label,) in connection.execute("SELECT label FROM effects ORDER BY ctid")]


def states(results: list[Any]) -> list[str]:
    return [each.state for each in results]


def test_a_staged_job_is_found_and_run(connection: psycopg.Connection[Any], staged: Staged) -> None:
    calls: list[Any] = []

    @job(queue="mail")
    def send(order: int, *, to: Any = ()) -> None:
        calls.append((order, to, current_job().attempt))

    staged.none()
    job_id = stage(connection, send, [42], {"to": ("a", "b")}, tag="shop")
    row = staged.assert_one(send, args=(42,), kwargs={"to": ("a", "b")}, queue="mail", tag="shop")
    assert (row.id, row.args, row.kwargs, row.state) == (job_id, [42], {"to": ["a", "b"]}, "waiting")
    (ran,) = staged.run(check=True)
    assert (ran.id, ran.state, ran.attempt, ran.error) == (job_id, "finished", 1, None)
    assert calls == [(42, ["a", "b"], 1)]
    staged.none()
    assert connection.execute("SELECT id FROM finished_jobs").fetchall() == [(job_id,)]
    assert staged.run() == []


def test_arguments_are_compared_as_json_and_decoded_by_annotation(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    calls: list[Any] = []

    @job
    def ship(order: UUID, *, day: date) -> None:
        calls.append((order, day))

    order, day = uuid4(), date(2026, 11, 23)
    ship.stage(connection, order, day=day)
    staged.assert_one(ship, args=[order], kwargs={"day": day})
    with pytest.raises(AssertionError, match="found none"):
        staged.assert_one(ship, args=[uuid4()])
    staged.run(check=True)
    assert calls == [(order, day)]


def test_a_failed_assertion_lists_the_staged_jobs(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    @job(name="shop.send_receipt")
    def send(order: int) -> None: ...

    send.stage(connection, 42)
    stage(connection, "shop.other", [], {"x": "y"}, run_at=datetime.now(UTC) + timedelta(hours=1), key="ada")
    with pytest.raises(AssertionError) as failure:
        staged.assert_one(send, args=[43], queue="default")
    lines = str(failure.value).splitlines()
    assert lines[0] == (
        "expected one shop.send_receipt with args=[43], queue='default', found none; 2 jobs are staged:"
    )
    assert lines[1].endswith("shop.send_receipt(42), queue default, waiting")
    assert "shop.other(x='y'), queue default, key ada, scheduled until" in lines[2]
    with pytest.raises(AssertionError, match=r"expected no shop.send_receipt; 2 jobs are staged"):
        staged.none(send)
    with pytest.raises(AssertionError, match=r"did you mean 'shop.send_receipt'"):
        staged.assert_one("shop.send_reciept")
    with pytest.raises(drain.DrainError, match=r"did you mean 'shop.send_receipt'"):
        staged.none("shop.send_reciept")
    staged.none("billing.charge")


def test_a_failed_job_is_retried_when_its_time_has_come(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    @job(max_attempts=3, retry_base_seconds=10)
    def fail() -> None:
        raise ValueError("no")

    job_id = fail.stage(connection)
    (ran,) = staged.run()
    assert (ran.state, ran.attempt, type(ran.error)) == ("retrying", 1, ValueError)
    row = staged.assert_one(fail, state="retrying")
    assert row.attempts == 1
    assert row.last_error is not None
    assert row.last_error["message"] == "no"
    assert staged.run() == []
    staged.advance(seconds=4)
    assert staged.run() == []
    staged.advance(seconds=6)
    assert states(staged.run()) == ["retrying"]
    staged.advance(timedelta(minutes=1))
    (ran,) = staged.run()
    assert (ran.state, ran.attempt) == ("dead", 3)
    assert ran.explanation == "failed 3 times; last: ValueError: no"
    staged.none()
    staged.force_retry(job_id)
    assert states(staged.run()) == ["retrying"]
    staged.force_retry(job_id)
    assert states(staged.run()) == ["retrying"]
    staged.force_retry(job_id)
    with pytest.raises(ValueError, match="no"):
        staged.run(check=True)


def test_a_job_that_asks_for_a_retry_runs_again_at_that_time(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    @job(max_attempts=2)
    def fail() -> None:
        raise Retry(after=5) from ValueError("no")

    fail.stage(connection)
    (ran,) = staged.run()
    assert (ran.state, ran.attempt, type(ran.error)) == ("retrying", 1, ValueError)
    staged.advance(seconds=4)
    assert staged.run() == []
    staged.advance(seconds=1)
    (ran,) = staged.run()
    assert (ran.state, ran.attempt, ran.explanation) == ("dead", 2, "failed 2 times; last: ValueError: no")


def test_each_outcome_is_decided_as_by_a_worker(connection: psycopg.Connection[Any], staged: Staged) -> None:
    @job(queue="a")
    def defer() -> None:
        if current_job().fencing_token == 1:
            raise Defer(3600)

    @job(queue="b")
    def give_up() -> None:
        raise Dead("no such order")

    @job(queue="c")
    def slow_down() -> None:
        if current_job().fencing_token == 1:
            raise RateLimited(60)

    @job(queue="d")
    def misfit() -> None: ...

    defer.stage(connection)
    give_up.stage(connection)
    first = stage(connection, slow_down, key="ada")
    second = stage(connection, slow_down, key="ada")
    other = stage(connection, slow_down, key="eve")
    # By SQL, since the arguments of a registered function are checked as they are staged.
    columns = "job_name, job_args, queue, max_attempts"
    connection.execute(f"INSERT INTO staged_jobs ({columns}) VALUES ('tests.misfit', '[1]', 'd', 1)")
    stage(connection, "nobody.knows", queue="e")
    results = {each.id: each for each in staged.run()}
    by_name = {each.job_name.rpartition(".")[2]: each for each in results.values()}
    assert by_name["defer"].state == "deferred"
    assert (by_name["give_up"].state, by_name["give_up"].explanation) == ("dead", "no such order")
    assert results[first].state == "deferred"
    # Called back before it began, by the pause of its key.
    assert second not in results
    assert results[other].state == "deferred"
    assert by_name["misfit"].state == "dead"
    assert "the arguments do not fit" in str(by_name["misfit"].error)
    assert by_name["knows"].state == "retrying"
    assert "no function is registered as 'nobody.knows'" in str(by_name["knows"].error)

    staged.advance(seconds=50)
    assert staged.run(slow_down) == []
    staged.advance(seconds=11)
    assert [(each.id, each.state) for each in staged.run(slow_down)][:1] == [(first, "finished")]
    assert staged.run(defer) == []
    staged.advance(hours=1)
    assert states(staged.run(defer)) == ["finished"]


def test_jobs_staged_by_jobs_are_run_too(
    connection: psycopg.Connection[Any], staged: Staged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drain.contrib.testing.staged._MOST_ATTEMPTS", 20)
    order: list[str] = []

    @job
    def leaf(label: str) -> None:
        order.append(label)

    @job
    def root() -> None:
        with drain.psycopg_transaction() as inner:
            leaf.stage(inner, "first")
            stage(inner, leaf, ["second"], priority=-1)

    @job
    def endless() -> None:
        with drain.psycopg_transaction() as inner:
            endless.stage(inner)

    root.stage(connection)
    assert states(staged.run(check=True)) == ["finished"] * 3
    assert order == ["second", "first"]
    endless.stage(connection)
    assert len(staged.run(limit=7)) == 7
    with pytest.raises(drain.DrainError, match="20 attempts were made"):
        staged.run()
    assert staged.run(limit=0) == []


def test_a_jobs_transaction_is_a_savepoint(connection: psycopg.Connection[Any], staged: Staged) -> None:
    @job
    def write(label: str, *, then: str = "") -> None:
        with drain.psycopg_transaction() as inner:
            inner.execute("INSERT INTO effects VALUES (%s)", [label])
            if then == "raise":
                raise RuntimeError(then)
            if then == "break":
                inner.execute("SELECT 1 / 0")
            if then == "commit":
                inner.commit()
            with inner.transaction():
                inner.execute("INSERT INTO effects VALUES (%s)", [f"{label} too"])
        if then == "after":
            raise RuntimeError(then)

    @job
    def session(label: str, *, fail: bool = False) -> None:
        with drain.transaction() as inner:
            inner.execute(sqlalchemy.text("INSERT INTO effects VALUES (:label)"), {"label": label})
            if fail:
                inner.execute(sqlalchemy.text("SELECT 1 / 0"))

    connection.execute("INSERT INTO effects VALUES ('before')")
    for then in ("", "raise", "break", "commit", "after"):
        write.stage(connection, f"psycopg {then}", then=then)
    session.stage(connection, "session")
    session.stage(connection, "session that fails", fail=True)
    results = staged.run()
    assert states(results) == [
        "finished",
        "retrying",
        "retrying",
        "retrying",
        "finished",
        "finished",
        "retrying",
    ]
    assert type(results[2].error) is psycopg.errors.DivisionByZero
    assert isinstance(results[3].error, drain.TransactionError)
    assert isinstance(results[4].error, RuntimeError)
    assert effects(connection) == [
        "before", "psycopg ", "psycopg  too", "psycopg after", "psycopg after too", "session",
    ]  # fmt: skip


def test_steps_are_savepoints_which_later_attempts_leave_out(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    def write(inner: Any, label: str) -> None:
        inner.execute(sqlalchemy.text(label) if isinstance(inner, Session) else label)

    async def write_async(inner: Any, label: str) -> None:
        await inner.execute(sqlalchemy.text(label) if isinstance(inner, AsyncSession) else label)

    async def charge() -> int:
        return 42

    @job
    def steps() -> None:
        attempt = current_job().attempt
        drain.step_transaction("session", write, f"INSERT INTO effects VALUES ('session {attempt}')")
        drain.psycopg_step_transaction("psycopg", write, f"INSERT INTO effects VALUES ('psycopg {attempt}')")
        assert drain.step("charge", lambda: attempt) == 1
        if attempt == 1:
            raise OSError

    @job
    async def async_steps() -> None:
        attempt = current_job().attempt
        insert = "INSERT INTO effects VALUES ('async {} {}')"
        await drain.async_step_transaction("session", write_async, insert.format("session", attempt))
        await drain.async_psycopg_step_transaction("psycopg", write_async, insert.format("psycopg", attempt))
        assert await drain.async_step("charge", charge) == 42
        if attempt == 1:
            raise OSError

    for each in (steps, async_steps):
        each.stage(connection)
        assert states(staged.run()) == ["retrying"]
        staged.advance(timedelta(hours=1))
        assert states(staged.run()) == ["finished"]
    assert effects(connection) == ["session 1", "psycopg 1", "async session 1", "async psycopg 1"]


def _take_back(inner: psycopg.Connection[Any], label: str) -> None:
    inner.execute("INSERT INTO effects VALUES (%s)", (f"undo {label}",))


def test_a_dead_jobs_steps_are_undone(connection: psycopg.Connection[Any], staged: Staged) -> None:
    def write(inner: Any, label: str) -> str:
        inner.execute("INSERT INTO effects VALUES (%s)", (label,))
        return label

    @job(max_attempts=1)
    def charge(label: str, *, dies: bool) -> None:
        drain.psycopg_step_transaction.options(undo=_take_back)("charge", write, label)
        if dies:
            raise OSError

    for dies, word in ((True, "finished"), (False, "superseded")):
        charge.stage(connection, f"{dies}", dies=dies)
        assert [each.state for each in staged.run() if each.job_name == "drain.undo"] == [word]
    assert effects(connection) == ["True", "undo True", "False"]


def test_jobs_wait_for_events_and_sleep_in_virtual_time(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    caught: list[str] = []

    @job
    def approve() -> None:
        caught.append(drain.wait_for("approval", timeout=timedelta(days=3)))
        drain.sleep(days=7)
        try:
            drain.wait_for("never", timeout=timedelta(days=1))
        except drain.EventTimeoutError as error:
            caught.append(str(error))

    approve.stage(connection)
    assert [ran.state for ran in staged.run()] == ["deferred"]
    staged.advance(days=2)
    assert staged.run() == []
    drain.emit(connection, "approval", "yes")
    assert [ran.state for ran in staged.run(check=True)] == ["deferred"]
    staged.advance(days=6, hours=23)
    assert staged.run() == []
    staged.advance(hours=1)
    assert [ran.state for ran in staged.run()] == ["deferred"]
    staged.advance(days=1)
    assert [ran.state for ran in staged.run()] == ["finished"]
    assert caught == ["yes", "yes", "yes", "event 'never' did not come in time"]
    assert staged.all() == []


def test_retries_of_steps_do_not_wait(connection: psycopg.Connection[Any], staged: Staged) -> None:
    """Writes of failed calls are rolled back to the step's savepoint."""
    calls: list[Any] = []

    def write(inner: Any, label: str) -> int:
        calls.append(label)
        insert = f"INSERT INTO effects VALUES ('{label} {len(calls)}')"
        inner.execute(sqlalchemy.text(insert) if isinstance(inner, Session) else insert)
        if len(calls) % 2:
            raise OSError
        return len(calls)

    async def write_async(inner: Any, label: str) -> int:
        if isinstance(inner, AsyncSession):
            return await inner.run_sync(write, label)
        calls.append(label)
        await inner.execute(f"INSERT INTO effects VALUES ('{label} {len(calls)}')")
        if len(calls) % 2:
            raise OSError
        return len(calls)

    options: Any = {"retries": 1, "backoff": timedelta(minutes=1)}

    @job
    def steps() -> None:
        assert drain.step_transaction.options(**options)("session", write, "session") == 2
        assert drain.psycopg_step_transaction.options(**options)("psycopg", write, "psycopg") == 4

    @job
    async def async_steps() -> None:
        await drain.async_step_transaction.options(**options)("session", write_async, "async session")
        await drain.async_psycopg_step_transaction.options(**options)("psycopg", write_async, "async psycopg")

    began = monotonic()
    for each in (steps, async_steps):
        each.stage(connection)
        staged.run(check=True)
    assert monotonic() - began < 30
    assert effects(connection) == ["session 2", "psycopg 4", "async session 6", "async psycopg 8"]


def test_jobs_read_the_results_of_their_predecessors(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    @job(result="keep")
    def answer() -> int:
        return 42

    @job
    def child() -> None:
        seen.append(current_job().results)

    @job
    def in_transaction() -> None:
        with drain.transaction():
            seen.append(current_job().results)

    @job
    async def in_loop() -> None:
        async with drain.async_psycopg_transaction():
            seen.append(await current_job().aresults())

    seen: list[Any] = []
    parent = answer.stage(connection)
    ids = [each.options(after=parent).stage(connection) for each in (child, in_transaction, in_loop)]
    assert str(staged.assert_one(child, state="blocked")).endswith("queue default, blocked")
    staged.run(check=True)
    connection.execute("UPDATE job_edges SET state = 'met'")
    unblock = "UPDATE staged_jobs SET scheduled_at = now(), matured_at = now() WHERE id = ANY (%s)"
    connection.execute(unblock, [ids])
    staged.run(check=True)
    assert seen == [{parent: 42}] * 3


def test_async_steps_take_turns_on_the_tests_connection(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    async def write(inner: Any, label: str) -> None:
        insert = f"INSERT INTO effects VALUES ('{label}')"
        await inner.execute(sqlalchemy.text(insert) if isinstance(inner, AsyncSession) else insert)
        await asyncio.sleep(0)

    async def charge() -> None:
        await asyncio.sleep(0)

    @job
    async def together() -> None:
        await asyncio.gather(
            drain.async_psycopg_step_transaction("a", write, "a"),
            drain.async_step_transaction("b", write, "b"),
            drain.async_step("c", charge),
            drain.async_psycopg_step_transaction("d", write, "d"),
        )

    together.stage(connection)
    assert states(staged.run(check=True)) == ["finished"]
    together.stage(connection)
    assert states(asyncio.run(staged.arun(check=True))) == ["finished"]
    assert sorted(effects(connection)) == ["a", "a", "b", "b", "d", "d"]


def test_the_fence_refuses_a_job_cancelled_or_reclaimed_while_it_runs(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    @job
    def cancelled() -> None:
        drain.cancel(connection, current_job().id)

    @job
    def cancelled_in_transaction() -> None:
        drain.cancel(connection, current_job().id)
        with drain.psycopg_transaction() as inner:
            inner.execute("INSERT INTO effects VALUES ('never')")

    @job
    def overtaken() -> None:
        connection.execute(
            "UPDATE inflight_jobs SET fencing_token = fencing_token + 1 WHERE id = %s", [current_job().id]
        )
        with drain.transaction() as inner:
            inner.execute(sqlalchemy.text("INSERT INTO effects VALUES ('never')"))

    cancelled.stage(connection)
    assert states(staged.run()) == ["cancelled"]
    cancelled_in_transaction.stage(connection)
    (ran,) = staged.run()
    assert isinstance(ran.error, drain.JobCancelledError)
    assert ran.state == "cancelled"
    overtaken.stage(connection)
    (ran,) = staged.run(overtaken)
    assert isinstance(ran.error, drain.LeaseLostError)
    assert ran.state == "stale"
    assert effects(connection) == []


def test_advancing_time_affects_schedules_expiry_and_scheduled_jobs(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    @job
    def later() -> None: ...

    now = datetime.now(UTC)
    stage(connection, later, run_at=now + timedelta(days=3), tag="in three days")
    stage(
        connection, later, run_at=now + timedelta(days=3), expires_at=now + timedelta(days=4), tag="expires"
    )
    assert staged.run() == []
    assert [row.state for row in staged.all()] == ["scheduled"] * 2
    staged.advance(days=2, hours=23)
    assert staged.run() == []
    staged.advance(hours=1)
    assert [row.state for row in staged.all(later)] == ["waiting"] * 2
    staged.advance(days=2)
    assert sorted(states(staged.run())) == ["dead", "finished"]
    assert connection.execute("SELECT tag, reason FROM dead_jobs").fetchall() == [("expires", "expired")]


def test_a_blocked_job_is_not_due_however_much_time_passes(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    ((first,),) = connection.execute("SELECT drain_stage('m.f')").fetchall()
    connection.execute("SELECT drain_stage('m.g', '[]', %s)", (f'{{"after": [{first}]}}',))
    staged.advance(days=1)
    (blocked,) = staged.all("m.g")
    assert blocked.state == "blocked"
    assert "9999" not in str(blocked)
    assert blocked.run_at < datetime.now(UTC)


def test_schedules_tick_by_virtual_time(connection: psycopg.Connection[Any], staged: Staged) -> None:
    ticks: list[datetime] = []

    @job(cron="30 9 * * 1", timezone="Asia/Tokyo")
    def weekly() -> None:
        context = current_job().context
        assert context is not None
        ticks.append(datetime.fromisoformat(__import__("json").loads(context)["tick"]))

    @job
    def hourly(label: str) -> None: ...

    staged.advance(days=7)
    assert states(staged.run(check=True)) == ["finished"]
    staged.advance(days=1)
    staged.advance(days=13)
    assert states(staged.run(check=True)) == ["finished"] * 2
    assert ticks[0] > datetime.now(UTC)
    assert [tick - ticks[0] for tick in ticks] == [timedelta(days=7 * week) for week in range(3)]
    assert all(tick.weekday() == 0 and tick.minute == 30 for tick in ticks)
    # From now on, in virtual time.
    drain.schedule(connection, "hourly", hourly, cron="0 * * * *", args=["x"])
    staged.advance(hours=3)
    assert len(staged.all(hourly)) == 3
    assert all(row.args == ["x"] and row.state == "waiting" for row in staged.all(hourly))
    assert connection.execute(
        "SELECT count(*) FROM staged_jobs WHERE staged_at > clock_timestamp()"
    ).fetchall() == [(0,)]
    drain.unschedule(connection, "hourly")
    staged.run()
    drain.schedule(connection, "minutes", hourly, cron="* * * * *", args=["x"])
    with pytest.raises(drain.DrainError, match="schedule minutes ticks more than 10,000 times"):
        staged.advance(days=30)


def test_unique_jobs_and_quiet_times_are_respected(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    calls: list[int] = []

    @job(unique_key="one", keep="last")
    def index(number: int) -> None:
        calls.append(number)

    @job(unique_key="quiet", keep="last", quiet=timedelta(minutes=5))
    def debounced(number: int) -> None:
        calls.append(number)

    for number in range(3):
        index.stage(connection, number)
    assert sorted(states(staged.run())) == ["finished", "superseded", "superseded"]
    assert calls == [2]
    debounced.stage(connection, 10)
    staged.advance(minutes=4)
    debounced.stage(connection, 11)
    staged.advance(minutes=4)
    assert [each.state for each in staged.run() if each.state == "finished"] == []
    staged.advance(minutes=2)
    assert "finished" in states(staged.run())
    assert calls == [2, 11]


def test_queue_rules_are_respected(connection: psycopg.Connection[Any], staged: Staged) -> None:
    @job(queue="limited")
    def work() -> None: ...

    drain.queues.pause(connection, "limited")
    work.stage(connection)
    assert staged.run() == []
    drain.queues.resume(connection, "limited")
    assert states(staged.run()) == ["finished"]


def test_an_idempotency_key_expires_after_its_period(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    def once() -> int:
        return stage(connection, "m.f", idempotency_key="k", idempotency_period=timedelta(days=1))

    first = once()
    assert once() == first
    staged.advance(days=1, seconds=1)
    assert once() != first


def test_async_jobs_are_run_inside_and_outside_of_a_loop(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    loops: list[Any] = []

    @job
    async def wait() -> None:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        with drain.psycopg_transaction() as inner:
            inner.execute("INSERT INTO effects VALUES (%s)", [str(current_job().attempt)])

    @job(timeout_seconds=1)
    async def hang() -> None:
        await asyncio.sleep(600)

    wait.stage(connection)
    assert states(staged.run(check=True)) == ["finished"]

    async def test() -> None:
        wait.stage(connection)
        with pytest.raises(drain.DrainError, match=r"await staged\.arun\(\)"):
            staged.run()
        assert states(await staged.arun(check=True)) == ["finished"]
        assert loops[-1] is asyncio.get_running_loop()
        hang.stage(connection)
        (ran,) = await staged.arun()
        assert isinstance(ran.error, drain.JobTimeoutError)

    asyncio.run(test())
    assert effects(connection) == ["1", "1"]


def test_transactions_of_async_jobs_are_savepoints(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    @job
    async def write(label: str, *, fail: bool = False) -> None:
        async with drain.async_psycopg_transaction() as inner:
            await inner.execute("INSERT INTO effects VALUES (%s)", [label])
            async with inner.transaction():
                await drain.astage(inner, "nobody.knows", run_in=3600)
            if fail:
                raise ValueError

    @job
    async def session(label: str, *, fail: bool = False) -> None:
        async with drain.async_transaction() as inner:
            await inner.execute(sqlalchemy.text("INSERT INTO effects VALUES (:label)"), {"label": label})
            if fail:
                await inner.execute(sqlalchemy.text("SELECT 1 / 0"))

    def stage_all() -> None:
        for each in (write, session):
            each.stage(connection, each.job_name)
            each.stage(connection, f"{each.job_name} that fails", fail=True)

    async def in_a_loop() -> list[str]:
        return states(await staged.arun())

    stage_all()
    assert states(staged.run()) == ["finished", "retrying"] * 2
    stage_all()
    assert asyncio.run(in_a_loop()) == ["finished", "retrying"] * 2
    assert effects(connection) == ["tests.write", "tests.session"] * 2
    assert len(staged.all("nobody.knows")) == 2


def test_a_job_that_breaks_the_transaction_of_the_test_is_undone(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    @job
    def spoil() -> None:
        connection.execute("INSERT INTO effects VALUES ('lost')")
        connection.execute("SELECT 1 / 0")

    connection.execute("INSERT INTO effects VALUES ('kept')")
    spoil.stage(connection)
    (ran,) = staged.run()
    assert (ran.state, type(ran.error)) == ("retrying", psycopg.errors.DivisionByZero)
    assert effects(connection) == ["kept"]


def test_a_result_is_kept(connection: psycopg.Connection[Any], staged: Staged) -> None:
    @job(result="keep")
    def add(a: int, b: int) -> int:
        return a + b

    job_id = add.stage(connection, 1, 2)
    staged.run(check=True)
    assert drain.result(connection, job_id) == 3


def _session(url: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session:
        yield session
        session.rollback()
    engine.dispose()


def _core(url: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        yield connection
        connection.rollback()
    engine.dispose()


def _joined(url: str) -> Iterator[Any]:
    """The recipe of SQLAlchemy's manual for tests of code that commits."""
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            yield session
            session.commit()
        outer.rollback()
    engine.dispose()


def _block(url: str) -> Iterator[Any]:
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction(force_rollback=True):
        yield connection


def _dict_rows(url: str) -> Iterator[Any]:
    with psycopg.connect(
        url, row_factory=psycopg.rows.dict_row, cursor_factory=psycopg.ClientCursor
    ) as connection:
        connection.prepare_threshold = 0
        yield connection
        connection.rollback()


@pytest.mark.parametrize("kind", [_session, _core, _joined, _block, _dict_rows])
def test_every_kind_of_connection_works(url: str, kind: Callable[[str], Iterator[Any]]) -> None:
    @job
    def write() -> None:
        with drain.transaction() as inner:
            inner.execute(sqlalchemy.text("INSERT INTO effects VALUES ('written')"))

    for connection in kind(url):
        # Before anything else has begun the transaction.
        staged = Staged(connection)
        staged.none()
        write.stage(connection)
        staged.assert_one(write)
        staged.run(check=True)
        statement: Any = "SELECT label FROM effects"
        if not isinstance(connection, psycopg.Connection):
            statement = sqlalchemy.text(statement)
        assert len(connection.execute(statement).fetchall()) == 1
        staged.advance(days=1)
    # The fixture looks whether anything is left.


def test_objects_of_a_session_are_flushed_and_read_again(url: str) -> None:
    query(url, "ALTER TABLE effects ADD number int")

    @job
    def count(label: str) -> None:
        with drain.transaction() as inner:
            effect = inner.get(Effect, label)
            assert effect is not None
            effect.number += 1

    for session in _session(url):
        effect = Effect(label="x", number=1)
        session.add(effect)
        count.stage(session, "x")
        Staged(session).run(check=True)
        assert effect.number == 2


def test_an_invalid_connection_is_explained_on_one_line(url: str, empty_database_url: str) -> None:
    def error(connection: Any) -> str:
        with pytest.raises(drain.DrainError) as raised:
            Staged(connection).none()
        text = str(raised.value)
        assert "\n" not in text
        return text

    with psycopg.connect(url, autocommit=True) as connection:
        assert "autocommit" in error(connection)
    assert "closed" in error(connection)
    with psycopg.connect(empty_database_url) as connection:
        assert "run `drain init` first" in error(connection)
    with psycopg.connect(url) as connection:
        with pytest.raises(psycopg.Error):
            connection.execute("SELECT 1 / 0")
        assert "has failed" in error(connection)
        connection.rollback()
        with connection.pipeline():
            assert "pipeline" in error(connection)
    assert "cannot work on a int" in error(7)
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as lite:
        assert "psycopg 3" in error(lite)
    engine.dispose()


def test_an_invalid_call_is_explained_on_one_line(
    connection: psycopg.Connection[Any], staged: Staged
) -> None:
    @job
    def known() -> None: ...

    def error(act: Callable[[], object]) -> str:
        with pytest.raises(drain.DrainError) as raised:
            act()
        assert "\n" not in str(raised.value)
        return str(raised.value)

    assert "no function is registered as 'm.unknown'" in error(lambda: staged.run("m.unknown"))
    assert "a job must be a name" in error(lambda: staged.all(7))  # type: ignore[arg-type]
    assert "no job has the id 99" in error(lambda: staged.force_retry(99))
    assert "whole number" in error(lambda: staged.force_retry("x"))  # type: ignore[arg-type]
    assert "limit is a number" in error(lambda: staged.run(limit=-1))
    assert "say by how much" in error(staged.advance)
    assert "time cannot advance" in error(lambda: staged.advance(fortnights=1))
    assert "not by -1 day" in error(lambda: staged.advance(days=-1))
    job_id = known.stage(connection)
    staged.run()
    assert "is finished" in error(lambda: staged.force_retry(job_id))
    waiting = stage(connection, known, run_at=datetime.now(UTC) + timedelta(days=1))
    staged.force_retry(waiting)
    assert states(staged.run()) == ["finished"]


DEBIAN = Path("/usr/lib/postgresql/15/bin")


@pytest.mark.skipif(not DEBIAN.exists(), reason=f"there is no {DEBIAN}")
@pytest.mark.usefixtures("processes")
def test_an_older_server_from_a_distribution_works_too() -> None:
    @job(max_attempts=2, cron="0 * * * *")
    def write() -> None:
        if current_job().attempt == 1:
            raise ValueError
        with drain.transaction() as inner:
            stage(inner, "nobody.knows")

    with EmbeddedPostgres(settings=CARELESS, bin_directory=DEBIAN) as server:
        schema.install(server.url)
        with psycopg.connect(server.url) as connection:
            staged = Staged(connection)
            write.stage(connection)
            assert states(staged.run()) == ["retrying"]
            staged.advance(hours=1)
            assert len(staged.all(write)) == 2
            assert sorted(states(staged.run(write))) == ["finished", "retrying"]
            staged.assert_one("nobody.knows", state="waiting")
            connection.rollback()
