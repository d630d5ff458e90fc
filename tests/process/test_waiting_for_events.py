"""Jobs wait for events and sleep: parked by a worker in this process, and resumed by the statements of the leader."""

import asyncio
import contextvars
import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

import drain
from drain.__main__ import main
from drain.audit import audit
from drain.database import postgres
from drain.database.postgres import Connection
from drain.enqueuer.enqueuer import SESSION
from drain.enqueuer.housekeeping import PastEvents, PastWaits
from drain.enqueuer.matcher import Matcher
from drain.errors import StageError
from drain.read import queues, waiting_by_cause
from drain.tables import cancellations, changes, dead, redeliveries, running, waits
from drain.tables.changes import Change
from drain.tables.columns import PARKED_UNTIL
from drain.tables.dead import Selection as DeadSelection
from drain.tables.selections import Selection
from drain.workers import EventTimeoutError, StepError, TransactionError, current_job
from tests import jobs_in_batches
from tests.helpers import (
    PATIENCE_SECONDS,
    connected,
    drain_command,
    environment,
    is_asleep,
    leading,
    query,
    rq_worker,
    wait_until,
)
from tests.inprocess_worker import Workshop
from tests.worker_processes import Yard, children, kill_worker

EVENT = "approval:42"
DAY = timedelta(days=1)
WAITS: list[Callable[..., Any]] = [
    drain.wait_for,
    lambda *args, **options: asyncio.run(drain.async_wait_for(*args, **options)),
]
BOTH = pytest.mark.parametrize("wait_for", WAITS)


@pytest.fixture
def leader(database_url: str) -> Iterator[Connection]:
    with postgres.connect(database_url, "leader") as connection:
        postgres.limit_session(connection, statement_seconds=30, lock_seconds=1)
        connection.execute("; ".join(SESSION))
        yield connection


def emit(shop: Workshop, payload: Any = None, event: str = EVENT) -> int:
    return drain.emit(connected(shop.database_url), event, payload)


def match(leader: Connection) -> bool:
    """Let a new leader look."""
    return Matcher(leader).run_once()


def open_waits(shop: Workshop) -> list[tuple[Any, ...]]:
    return query(shop.database_url, "SELECT job_id, name, event FROM job_waits ORDER BY job_id")


def outcomes(shop: Workshop) -> list[tuple[Any, ...]]:
    return query(shop.database_url, "SELECT name, result FROM job_steps ORDER BY recorded_at")


def is_parked(shop: Workshop, job_id: int) -> bool:
    row = shop.row(job_id)
    return (row["lease_expires_at"], row["next_run_at"]) == (None, PARKED_UNTIL)


def let_pass(shop: Workshop, job_id: int) -> None:
    """Let the deadline pass."""
    query(
        shop.database_url, "UPDATE job_waits SET deadline = now() - interval '1 ms' WHERE job_id = %s", job_id
    )


@BOTH
def test_a_job_that_waits_holds_nothing_and_gets_the_payload(
    shop: Workshop, leader: Connection, wait_for: Callable[..., Any]
) -> None:
    attempts, payloads = [], []

    def wait() -> None:
        attempts.append(current_job().attempt)
        payloads.append(wait_for(EVENT))

    job_id = shop.delivered(wait)
    assert shop.work(job_id) == "deferred"
    assert is_parked(shop, job_id)
    assert open_waits(shop) == [(job_id, EVENT, EVENT)]
    assert not match(leader)
    emit(shop, {"by": ["ada", None]})
    assert match(leader)
    assert shop.row(job_id)["next_run_at"] < datetime.now(UTC) + DAY
    assert shop.work(job_id) == "finished"
    assert payloads == [{"by": ["ada", None]}]
    # Waiting does not count.
    assert attempts == [1, 1]
    assert (open_waits(shop), outcomes(shop)) == ([], [(EVENT, {"event": {"by": ["ada", None]}})])


def test_an_async_job_waits_for_several_events(shop: Workshop, leader: Connection) -> None:
    got: list[Any] = []

    async def wait() -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(drain.async_wait_for(name)) for name in ("a", "b")]
        got.extend(task.result() for task in tasks)
        await drain.async_sleep(days=1)

    job_id = shop.delivered(wait)
    emit(shop, 2, "b")
    emit(shop, 1, "a")
    for _ in range(2):
        assert shop.work(job_id) == "deferred"
        assert match(leader)
    assert shop.work(job_id) == "deferred"
    assert got == [1, 2]
    assert not match(leader)
    let_pass(shop, job_id)
    assert match(leader)
    assert shop.work(job_id) == "finished"


def test_a_job_sleeps_once_for_each_call(shop: Workshop, leader: Connection) -> None:
    def wait() -> None:
        drain.sleep(timedelta(days=3))
        drain.sleep(hours=2)
        drain.sleep(datetime.now(UTC) + DAY, name="until tomorrow")

    job_id = shop.delivered(wait)
    for days in (3, 2 / 24, 1):
        assert shop.work(job_id) == "deferred"
        ((left,),) = query(shop.database_url, "SELECT deadline - clock_timestamp() FROM job_waits")
        assert timedelta(days=days) - timedelta(minutes=1) < left <= timedelta(days=days)
        let_pass(shop, job_id)
        assert match(leader)
    assert shop.work(job_id) == "finished"
    assert [name for name, _ in outcomes(shop)] == ["sleep 1", "sleep 2", "until tomorrow"]


def test_code_that_catches_exceptions_does_not_stop_a_wait(shop: Workshop) -> None:
    def wait() -> None:
        try:
            drain.wait_for(EVENT)
        except Exception:  # noqa: BLE001
            pytest.fail("caught")

    assert shop.work(shop.delivered(wait)) == "deferred"


def test_a_job_that_catches_its_waits_and_ends_has_not_finished(shop: Workshop, leader: Connection) -> None:
    got: list[Any] = []

    async def wait() -> None:
        each = (drain.async_wait_for("a"), drain.async_wait_for("b"), drain.async_sleep(0))
        got.append(await asyncio.gather(*each, return_exceptions=True))

    job_id = shop.delivered(wait)
    emit(shop, 1, "a")
    emit(shop, 2, "b")
    for _ in range(3):
        assert shop.work(job_id) == "deferred"
        assert match(leader)
    assert shop.work(job_id) == "finished"
    assert got[-1] == [1, 2, None]


def test_a_job_whose_thread_ends_by_a_wait_waits(shop: Workshop) -> None:
    def wait() -> None:
        with ThreadPoolExecutor() as pool:
            pool.submit(contextvars.copy_context().run, drain.wait_for, EVENT)

    job_id = shop.delivered(wait)
    assert shop.work(job_id) == "deferred"
    assert open_waits(shop) == [(job_id, EVENT, EVENT)]


@BOTH
def test_a_timeout_is_the_same_in_each_later_attempt(
    shop: Workshop, leader: Connection, wait_for: Callable[..., Any]
) -> None:
    caught: list[str] = []

    def wait() -> None:
        try:
            wait_for(EVENT, timeout=DAY)
        except EventTimeoutError as error:
            caught.append(str(error))
        if len(caught) < 2:
            raise ValueError

    job_id = shop.delivered(wait)
    assert shop.work(job_id) == "deferred"
    let_pass(shop, job_id)
    assert match(leader)
    assert shop.work(job_id) == "retrying"
    emit(shop)
    assert not match(leader)
    assert shop.work(job_id) == "finished"
    assert caught == ["event 'approval:42' did not come in time"] * 2


def test_a_job_that_does_not_catch_the_timeout_is_dead(shop: Workshop, leader: Connection) -> None:
    job_id = shop.delivered(lambda: drain.wait_for(EVENT, timeout=0))
    assert shop.work(job_id) == "deferred"
    assert match(leader)
    assert shop.work(job_id) == "dead"


def test_an_event_beats_a_deadline_that_has_passed_as_well(shop: Workshop, leader: Connection) -> None:
    job_id = shop.delivered(lambda: drain.wait_for(EVENT, timeout=DAY))
    shop.work(job_id)
    emit(shop, 1)
    let_pass(shop, job_id)
    assert match(leader)
    assert outcomes(shop) == [(EVENT, {"event": 1})]


def test_the_first_event_wins_and_reaches_all_jobs(shop: Workshop, leader: Connection) -> None:
    function = drain.job(name="waits")(lambda: drain.wait_for(EVENT))
    early = shop.deliver(function)
    shop.work(early)
    emit(shop, 1)
    emit(shop, 2)
    assert match(leader)
    late = shop.deliver(function)
    shop.work(late)
    assert match(leader)
    assert outcomes(shop) == [(EVENT, {"event": 1})] * 2


def test_looks_find_what_commits_after_them(shop: Workshop, leader: Connection, database_url: str) -> None:
    """Transactions that began before a look, and commit after it, in either order."""
    function = drain.job(name="waits")(drain.wait_for)
    snapshot = waits.match(leader, None).snapshot
    with psycopg.connect(database_url) as open_one:
        drain.emit(open_one, "early")
        drain.emit(connected(database_url), "other")
        job_ids = [shop.deliver(function, name) for name in ("early", "late", "other")]
        for job_id in job_ids:
            shop.work(job_id)
        found = waits.match(leader, snapshot)
        assert (found.waits, found.found, found.ended, found.resumed) == (True, 1, 1, 1)
        open_one.commit()
    found = waits.match(leader, found.snapshot)
    assert (found.ended, found.is_complete) == (1, True)
    emit(shop, event="late")
    found = waits.match(leader, found.snapshot)
    assert found.ended == 1
    found = waits.match(leader, found.snapshot)
    assert (found.waits, found.found) == (False, 0)


def test_an_event_that_is_rolled_back_reaches_none(shop: Workshop, leader: Connection) -> None:
    job_id = shop.delivered(lambda: drain.wait_for(EVENT))
    shop.work(job_id)
    with connected(shop.database_url).transaction(force_rollback=True):
        emit(shop)
    assert not match(leader)
    assert is_parked(shop, job_id)


def test_a_locked_job_is_found_again(shop: Workshop, leader: Connection, database_url: str) -> None:
    job_id = shop.delivered(lambda: drain.wait_for(EVENT))
    shop.work(job_id)
    snapshot = waits.match(leader, None).snapshot
    emit(shop)
    with psycopg.connect(database_url) as locking:
        locking.execute("SELECT FROM inflight_jobs FOR UPDATE")
        found = waits.match(leader, snapshot)
        assert (found.found, found.ended, found.is_complete) == (1, 0, False)
    assert waits.match(leader, snapshot).resumed == 1


def test_parking_again_after_a_lost_answer_undoes_nothing(shop: Workshop, leader: Connection) -> None:
    job_id = shop.delivered(lambda: drain.wait_for(EVENT))
    claim = shop.claim(job_id)
    assert claim is not None

    def park() -> bool:
        return waits.park(connected(shop.database_url), claim, EVENT, EVENT, None)

    assert park()
    emit(shop)
    assert match(leader)
    assert park()
    assert not is_parked(shop, job_id)
    assert not open_waits(shop)
    shop.redeliver(job_id)
    assert shop.claim(job_id) is not None
    assert not park()


def test_a_worker_that_has_lost_the_job_cannot_park_it(shop: Workshop) -> None:
    def wait() -> None:
        shop.take_over(job_id)
        drain.wait_for(EVENT)

    job_id = shop.delivered(wait)
    assert shop.work(job_id) == "stale"
    assert not open_waits(shop)
    assert shop.row(job_id)["lease_expires_at"]


def test_a_job_moved_to_now_waits_on_until_its_first_deadline(shop: Workshop, leader: Connection) -> None:
    job_id = shop.delivered(lambda: drain.wait_for(EVENT, timeout=DAY))
    shop.work(job_id)
    wait = waits.Wait.read(leader, job_id)
    connection, selection = connected(shop.database_url), Selection(ids=(job_id,))
    assert changes.change_inflight(connection, selection, Change(run_at=datetime.now(UTC))) == [job_id]
    assert shop.work(job_id) == "deferred"
    assert is_parked(shop, job_id)
    assert waits.Wait.read(leader, job_id) == wait


def test_a_cancelled_job_that_is_retried_has_not_missed_the_event(shop: Workshop, leader: Connection) -> None:
    job_id = shop.delivered(lambda: drain.wait_for(EVENT))
    shop.work(job_id)
    connection = connected(shop.database_url)
    assert cancellations.cancel_inflight(connection, Selection(ids=(job_id,))) == [(job_id, False)]
    assert shop.whereabouts(job_id) == "dead_jobs"
    emit(shop)
    assert not match(leader)
    assert not open_waits(shop)
    dead.revive(connection, DeadSelection(ids=(job_id,)))
    shop.move(job_id)
    assert shop.work(job_id) == "finished"


def test_a_waiting_job_is_not_running_and_is_not_redelivered(shop: Workshop, leader: Connection) -> None:
    job_id = shop.delivered(lambda: drain.wait_for(EVENT), key="acme")
    shop.work(job_id)
    assert running.in_flight(leader, "default") == []
    assert redeliveries.redeliver_retries(leader, 10, 10, queue="default") == []
    assert redeliveries.redeliver_unclaimed(leader, 10, 10, queue="default", above=0, up_to=9) == []
    assert redeliveries.redeliver_leases(leader, 10, 10) == []


KINDS: list[Any] = [
    jobs_in_batches.await_event,
    jobs_in_batches.await_event_in_loop,
    jobs_in_batches.await_event_isolated,
]


@pytest.mark.parametrize("options", [(), ("--threads", "2")], ids=["alone", "in threads"])
def test_waiting_jobs_of_each_kind_run_on_within_moments(yard: Yard, options: tuple[str, ...]) -> None:
    with leading(yard.env()), yard.working(*options):
        ids = [job_id for kind in KINDS for job_id in yard.stage(kind, kind.job_name)]
        wait_until(lambda: are_parked(yard, ids), PATIENCE_SECONDS)
        for kind in KINDS:
            drain.emit(connected(yard.database_url), kind.job_name, 1)
        yard.wait_for("finished_jobs", ids)
    assert sorted(yard.effects()) == sorted(f"{kind.job_name} 1" for kind in KINDS)
    assert query(yard.database_url, "SELECT DISTINCT attempts FROM finished_jobs") == [(1,)]


def test_jobs_run_on_at_once_even_if_their_process_is_not_done_with_them(yard: Yard) -> None:
    with leading(yard.env(), "-v") as leader, yard.working("--threads", "2"):
        ids = yard.stage(jobs_in_batches.nap_often, "a", "b")
        # A round of redelivery takes place each second, and finds lost deliveries after 15.
        wait_until(lambda: yard.all_are("finished_jobs", ids), 0.7 * jobs_in_batches.NAPS)
        assert "again: lost" not in leader.output


def test_killed_leaders_and_workers_and_a_lost_redis_lose_no_event(yard: Yard) -> None:
    with yard.working() as worker:
        with leading(yard.env()) as first:
            ids = yard.stage(jobs_in_batches.await_event, "a", "b")
            wait_until(lambda: are_parked(yard, ids), PATIENCE_SECONDS)
            first.kill()
            first.wait(PATIENCE_SECONDS)
        killed = kill_worker(worker)
        with yard.redis() as client:
            client.flushall()
        # While no leader looks.
        drain.emit(connected(yard.database_url), "a", 1)
        wait_until(lambda: children(worker) not in ([], [killed]), PATIENCE_SECONDS)
        with leading(yard.env()):
            yard.wait_for("finished_jobs", ids[:1])
            assert are_parked(yard, ids[1:])
            drain.emit(connected(yard.database_url), "b", 2)
            yard.wait_for("finished_jobs", ids)
    assert sorted(yard.effects()) == ["a 1", "b 2"]


def test_an_unmodified_rq_worker_lets_a_job_wait(yard: Yard) -> None:
    (job_id,) = yard.pushed(jobs_in_batches.await_event, "a")
    rq_worker(yard.redis_url, "default", env=yard.env())
    assert are_parked(yard, [job_id])
    drain.emit(connected(yard.database_url), "a", 1)
    with leading(yard.env()):
        wait_until(lambda: query(yard.database_url, "SELECT FROM inflight_jobs WHERE next_run_at IS NULL"))
        rq_worker(yard.redis_url, "default", env=yard.env())
    assert yard.place(job_id) == "finished_jobs"
    assert yard.effects() == ["a 1"]


def test_a_single_run_ends_waits(yard: Yard) -> None:
    ids = yard.pushed(jobs_in_batches.await_event, "a")
    with drain_command("work", "--burst", env=yard.env()) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    drain.emit(connected(yard.database_url), "a", 1)
    with drain_command("run", "--once", env=yard.env()) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    with drain_command("work", "--burst", env=yard.env()) as command:
        assert command.wait(PATIENCE_SECONDS) == 0
    assert yard.all_are("finished_jobs", ids)


@pytest.mark.parametrize("notify", ["on", "off"])
def test_a_sleeping_leader_finds_an_event(yard: Yard, notify: str) -> None:
    with leading(yard.env()), yard.working():
        ids = yard.stage(jobs_in_batches.await_event, "a")
        wait_until(lambda: are_parked(yard, ids) and is_asleep(yard.database_url), PATIENCE_SECONDS)
        connection = connected(yard.database_url)
        with connection.transaction():
            connection.execute(f"SET LOCAL drain.notify = '{notify}'".encode())
            drain.emit(connection, "a", 1)
        yard.wait_for("finished_jobs", ids)


def are_parked(yard: Yard, ids: list[int]) -> bool:
    waiting = query(yard.database_url, "SELECT job_id FROM job_waits WHERE job_id = ANY (%s)", ids)
    return len(waiting) == len(ids)


ROLES = """
CREATE ROLE "{0} team" NOLOGIN; CREATE ROLE "{0} member" NOLOGIN IN ROLE "{0} team"; CREATE ROLE "{0} other" NOLOGIN
"""


def test_an_event_reaches_only_the_jobs_of_its_role(
    shop: Workshop, leader: Connection, database_url: str
) -> None:
    database = psycopg.conninfo.conninfo_to_dict(database_url)["dbname"]
    connection = connected(database_url)
    connection.execute(ROLES.format(database).encode())
    try:
        connection.execute(f'GRANT EXECUTE ON FUNCTION drain_emit(text, jsonb) TO "{database} team"'.encode())
        connection.execute(
            f'GRANT EXECUTE ON FUNCTION drain_emit(text, jsonb) TO "{database} other"'.encode()
        )
        job_id = shop.delivered(lambda: drain.wait_for(EVENT))
        shop.set(job_id, f"staged_by = '{database} team' WHERE")
        shop.work(job_id)
        for role, reaches in (("other", False), ("member", True)):
            with connection.transaction():
                connection.execute(f'SET LOCAL ROLE "{database} {role}"'.encode())
                emit(shop, role)
            assert match(leader) is reaches
        assert outcomes(shop) == [(EVENT, {"event": "member"})]
        # The role that staged the job may be gone by then; the owner still reaches it.
        job_id = shop.delivered(lambda: drain.wait_for("b"))
        shop.set(job_id, "staged_by = 'gone' WHERE")
        shop.work(job_id)
        emit(shop, event="b")
        assert match(leader)
    finally:
        connection.execute(
            f'REVOKE ALL ON FUNCTION drain_emit(text, jsonb) FROM "{database} team", "{database} other"'.encode()
        )
        connection.execute(f'DROP ROLE "{database} team", "{database} member", "{database} other"'.encode())


@pytest.mark.parametrize("event", ["", "a\n", "x" * 256, "\x85", 42])
def test_the_name_of_an_event_is_checked(shop: Workshop, event: Any) -> None:
    with pytest.raises(StageError, match="name of an event"):
        emit(shop, event=event)
    job_id = shop.delivered(lambda: drain.wait_for(event))
    assert shop.work(job_id) == "dead"
    with pytest.raises((psycopg.errors.CheckViolation, psycopg.errors.UndefinedFunction)):
        query(shop.database_url, "SELECT drain_emit(%s)", event)


def test_a_payload_is_bounded(shop: Workshop) -> None:
    with pytest.raises(StageError, match="larger than 65536 bytes"):
        emit(shop, "x" * 65_536)
    # PostgreSQL writes a space after each comma.
    with pytest.raises(StageError, match="larger than 65536 bytes"):
        emit(shop, [1] * 22_000)
    assert emit(shop, [1] * 21_000)
    assert emit(shop, "," * 65_000)
    with pytest.raises(psycopg.errors.CheckViolation, match="payload_must_not_exceed"):
        query(shop.database_url, "SELECT drain_emit('a', to_jsonb(repeat('x', 65536)))")


def test_a_payload_that_python_could_not_read_is_refused(shop: Workshop) -> None:
    def nested(depth: int) -> Any:
        return {"]": [nested(depth - 2), "]"]} if depth else 1

    in_sql = """SELECT drain_emit('a', (repeat('{"a": [', %(n)s) || '1' || repeat(']}', %(n)s))::jsonb)"""
    for depth in (500, 3000):
        with pytest.raises(psycopg.errors.CheckViolation, match="payload_must_not_be_nested"):
            connected(shop.database_url).execute(in_sql, {"n": depth // 2})
    with pytest.raises(StageError, match="nested 500 levels deep"):
        emit(shop, nested(500))
    assert emit(shop, nested(498))
    assert emit(shop, ["[{" * 400])
    connected(shop.database_url).execute(in_sql, {"n": 249})


def within_transaction() -> None:
    with drain.psycopg_transaction():
        drain.wait_for(EVENT)


@pytest.mark.parametrize(
    ("wait", "error"),
    [
        (drain.sleep, ValueError),
        (lambda: drain.sleep(1, days=1), ValueError),
        (lambda: drain.sleep(weekdays=1), ValueError),
        (lambda: drain.sleep(-1), ValueError),
        (lambda: drain.sleep(datetime(2050, 1, 1)), ValueError),  # noqa: DTZ001
        (lambda: drain.wait_for(EVENT, timeout=-1), ValueError),
        (lambda: drain.step("a", lambda: drain.sleep(1)), StepError),
        (lambda: [drain.step("a", lambda: 1), drain.wait_for("a")], StepError),
        (within_transaction, TransactionError),
    ],
)
def test_a_wait_that_cannot_be_is_refused(shop: Workshop, wait: Callable[[], Any], error: Any) -> None:
    def refused() -> None:
        with pytest.raises(error):
            wait()
        if not current_job().finished:
            drain.step("went on", lambda: None)

    assert shop.work(shop.delivered(refused)) == "finished"


def test_a_step_of_another_kind_is_no_outcome(shop: Workshop) -> None:
    def wait() -> None:
        if current_job().fencing_token == 1:
            drain.step(EVENT, lambda: {"other": 1})
            raise ValueError
        drain.wait_for(EVENT)

    assert shop.work_to_the_end(shop.delivered(wait)) == ["retrying", "dead"]


def test_the_wait_of_a_job_that_has_ended_keeps_no_leader_busy(shop: Workshop, leader: Connection) -> None:
    asks = [True]
    ended, cancelled = (
        shop.delivered(lambda: drain.wait_for(EVENT, timeout=DAY) if asks else None) for _ in range(2)
    )
    for job_id in (ended, cancelled):
        shop.work(job_id)
    connection, selection = connected(shop.database_url), Selection(ids=(cancelled,))
    wait = waits.Wait.read(leader, cancelled)
    cancellations.cancel_inflight(connection, selection)
    assert waits.match(leader, None).waits
    asks.clear()
    changes.change_inflight(connection, Selection(ids=(ended,)), Change(run_at=datetime.now(UTC)))
    assert shop.work(ended) == "finished"
    assert len(open_waits(shop)) == 2
    assert not waits.match(leader, None).waits
    assert PastWaits(leader).run_once() > 0
    assert [job_id for job_id, *_ in open_waits(shop)] == [cancelled]
    asks.append(True)
    dead.revive(connection, DeadSelection(ids=(cancelled,)))
    shop.move(cancelled)
    assert shop.work(cancelled) == "deferred"
    assert (waits.match(leader, None).waits, waits.Wait.read(leader, cancelled)) == (True, wait)


def test_old_events_and_waits_of_deleted_jobs_are_deleted(shop: Workshop, leader: Connection) -> None:
    emit(shop, 1)
    emit(shop, 2)
    query(
        shop.database_url,
        "UPDATE job_events SET emitted_at = now() - interval '30 days 1 second' WHERE id = 1",
    )
    assert PastEvents(leader).run_once() == 1
    assert query(shop.database_url, "SELECT payload FROM job_events") == [(2,)]
    kept, gone = (shop.delivered(lambda: drain.wait_for("never")) for _ in range(2))
    for job_id in (kept, gone):
        shop.work(job_id)
    query(shop.database_url, "DELETE FROM inflight_jobs WHERE id = %s", gone)
    assert PastWaits(leader).run_once() > 0
    assert [job_id for job_id, *_ in open_waits(shop)] == [kept]


def test_a_leader_without_rights_says_so_once_and_goes_on(
    shop: Workshop, leader: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    matcher = Matcher(leader)
    query(shop.database_url, "ALTER TABLE job_events RENAME TO elsewhere")
    with caplog.at_level(logging.WARNING):
        assert not matcher.run_once()
        matcher.expect_events()
        assert not matcher.run_once()
    assert [record.event for record in caplog.records] == ["not_matched"]  # type: ignore[attr-defined]


def test_an_audit_finds_jobs_that_should_not_wait(shop: Workshop, leader: Connection) -> None:
    for event in ("a", "b", "c"):
        shop.work(shop.delivered(lambda name=event: drain.wait_for(name, timeout=DAY)))
    assert audit(leader, patience_seconds=0).ok
    emit(shop, event="a")
    query(shop.database_url, "UPDATE job_events SET emitted_at = now() - interval '1 hour'")
    query(shop.database_url, "UPDATE job_waits SET began_at = now() - interval '1 hour' WHERE job_id = 1")
    query(shop.database_url, "UPDATE job_waits SET deadline = now() - interval '1 hour' WHERE job_id = 2")
    query(shop.database_url, "DELETE FROM job_waits WHERE job_id = 3")
    found = audit(leader, patience_seconds=0).breaches
    assert {breach.explanation.split(", ")[1].partition(" (")[0]: breach.ids for breach in found} == {
        "but waits for nothing; there is no leader": (3,),
        "though its deadline has passed": (2,),
        "though its event was emitted": (1,),
    }


def test_a_parked_job_is_explained_and_shown(shop: Workshop, leader: Connection, redis_url: str) -> None:
    env = environment(shop.database_url, redis_url) | {"COLUMNS": "200"}
    shop.work(shop.delivered(lambda: drain.wait_for(EVENT)))
    shop.work(shop.delivered(lambda: drain.wait_for(EVENT, timeout=DAY)))
    shop.work(shop.delivered(lambda: drain.sleep(days=1)))
    texts = [CliRunner().invoke(main, ["explain", str(job_id)], env=env).output for job_id in (1, 2, 3)]
    assert "it waits for event approval:42\n" in texts[0]
    assert "it waits for event approval:42 until 20" in texts[1]
    assert "it sleeps until 20" in texts[2]
    listed = CliRunner().invoke(main, ["list", "inflight"], env=env).output
    assert listed.count("parked") == 3
    shown = json.loads(CliRunner().invoke(main, ["show", "1", "--json"], env=env).output)
    assert (shown["wait"]["event"], shown["wait"]["deadline"]) == (EVENT, None)
    counted = waiting_by_cause.count_waiting(leader, 10)
    assert counted == {"default": {"parked": 3}}
    assert not queues.read(leader)["default"].is_unattended
    trace = CliRunner().invoke(main, ["trace", "1"], env=env)
    assert trace.exit_code == 0, trace.output


def test_an_event_is_emitted_by_the_command_line(shop: Workshop, leader: Connection, redis_url: str) -> None:
    env = environment(shop.database_url, redis_url)
    job_id = shop.delivered(lambda: drain.wait_for(EVENT))
    shop.work(job_id)
    done = CliRunner().invoke(main, ["emit", EVENT, '{"by": "ada"}'], env=env)
    assert done.output == "emitted event 1\n"
    assert match(leader)
    assert outcomes(shop) == [(EVENT, {"event": {"by": "ada"}})]
    refused = CliRunner().invoke(main, ["emit", EVENT, "{"], env=env)
    assert "the payload is not JSON" in refused.output
