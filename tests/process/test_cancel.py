"""Cancelled jobs: gone if they wait, fenced off if they run, in the transaction of whoever cancels."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from redis import Redis
from rq.job import Job
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import drain
from drain import Cancelled, cancel, stage
from drain.audit import audit
from drain.config import Settings
from drain.database import postgres
from drain.database.postgres import Connection
from drain.errors import SelectionError
from drain.tables import claims, dead, finishes, lanes, outcomes, staged
from drain.tables.dead import Selection
from drain.wire import Producer
from drain.workers import JobCancelledError, LeaseLostError, current_job
from drain.workers.handover.journal import Journal
from drain.workers.handover.recovery import recover
from tests import jobs_in_batches as jobs
from tests.blocks import WAYS
from tests.helpers import (
    BOUNDS,
    NAMESPACE,
    PATIENCE_SECONDS,
    end,
    fence_of,
    ids_in,
    new_enqueuer,
    pushed,
    pushed_jobs,
    query,
    read_by,
    stage_jobs,
    wait_until,
)
from tests.inprocess_worker import FOREVER_SECONDS, HEARTBEAT_SECONDS, Workshop, leave
from tests.process.test_cli import drain as command, one_line_of
from tests.worker_processes import Yard

QUICK: dict[str, Any] = {"heartbeat_seconds": HEARTBEAT_SECONDS, "timeout_seconds": 2 * PATIENCE_SECONDS}
TOMORROW = timedelta(days=1)
ERROR = {"type": "ValueError", "message": "no", "traceback": "Traceback"}


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with postgres.connect(database_url, "tests") as opened:
        postgres.limit_session(opened, statement_seconds=30, lock_seconds=10)
        yield opened


def one_of_each(connection: Connection) -> dict[str, int]:
    """A job in each state in which it can be cancelled."""
    ids = {name: stage(connection, "m.f", queue="mail") for name in ("delivered", "retrying", "running")}
    staged.move(connection, list(ids.values()), last_delivery=0)
    for name in ("retrying", "running"):
        claim = claims.claim(connection, ids[name], worker="host:42", limits={})
        assert claim is not None
        if name == "retrying":
            assert outcomes.retry_later(connection, claim, 60, ERROR)
    ids["staged"] = stage(connection, "m.f", queue="mail")
    ids["scheduled"] = stage(connection, "m.f", queue="mail", run_at=datetime.now(UTC) + TOMORROW)
    return ids


def buried(connection: Connection, job_id: int) -> tuple[Any, ...]:
    columns = "reason, explanation, attempts, fencing_token"
    return postgres.fetch_one(connection, f"SELECT {columns} FROM dead_jobs WHERE id = %s", [job_id])


def test_waiting_and_running_jobs_are_kept_as_cancelled(connection: Connection) -> None:
    ids = one_of_each(connection)
    other = stage(connection, "m.f", queue="sms")
    fence = fence_of(connection, ids["running"])
    found = cancel(connection, queue="mail")
    running = ids.pop("running")
    assert found == Cancelled(waiting=tuple(sorted(ids.values())), running=(running,))
    assert found.count == 5
    never = ("cancelled", "it was cancelled before it began", 0)
    for name in ("staged", "scheduled", "delivered"):
        assert buried(connection, ids[name]) == (*never, 1)
    # The token grows, so that a worker's finish is refused.
    between = "it was cancelled between two attempts"
    assert buried(connection, ids["retrying"]) == ("cancelled", between, 1, 2)
    assert buried(connection, running) == ("cancelled", "it was cancelled while host:42 had it", 1, 2)
    assert not finishes.finish(connection, fence)
    assert postgres.fetch_one(connection, "SELECT id FROM staged_jobs") == (other,)


def test_ended_and_unknown_ids_are_reported(connection: Connection) -> None:
    ids = one_of_each(connection)
    assert finishes.finish(connection, fence_of(connection, ids["running"]))
    cancel(connection, ids["staged"])
    found = cancel(connection, [*ids.values(), 4_000_000])
    waiting = (ids["delivered"], ids["retrying"], ids["scheduled"])
    assert found == Cancelled(
        waiting=waiting, finished=(ids["running"],), dead=(ids["staged"],), unknown=(4_000_000,)
    )


def test_all_given_conditions_must_apply(connection: Connection) -> None:
    wanted = {"queue": "mail", "tag": "import", "key": "acme"}
    columns = "INSERT INTO staged_jobs (job_name, queue, tag, key) VALUES (%s, %s, %s, %s) RETURNING id"

    def staged_job(name: str = "shop.act", **other: str) -> int:
        values = [name, *(wanted | other).values()]
        return int(postgres.fetch_one(connection, columns, values)[0])

    job_id = staged_job()
    others = [staged_job("shop.other"), *(staged_job(**{name: "x"}) for name in wanted)]
    found = cancel(connection, [job_id, *others], job="shop.act", **wanted)
    assert found == Cancelled(waiting=(job_id,), unknown=tuple(sorted(others)))


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({}, "name the jobs to cancel"),
        ({"ids": True}, "a whole number"),
        ({"ids": [1, "2"]}, "a whole number, not '2'"),
        ({"ids": "12"}, "a whole number"),
        ({"ids": 0}, "no job has the id 0"),
        ({"ids": [2**63]}, "no job has the id"),
        ({"queue": ""}, "queue must be a non-empty string"),
        ({"tag": "a\0"}, "tag must be"),
        ({"key": 7.5}, "key must be"),
        ({"key": True}, "key must be"),
        ({"key": "\ud800"}, "key must be"),
        ({"job": ""}, "job must be a non-empty string"),
    ],
)
def test_an_invalid_selection_is_refused_on_one_line(
    connection: Connection, named: dict[str, Any], why: str
) -> None:
    with pytest.raises(SelectionError, match=why) as refusal:
        cancel(connection, **named)
    assert "\n" not in str(refusal.value)
    with pytest.raises(SelectionError, match="cannot work on a str"):
        cancel("postgresql://", 1)  # type: ignore[arg-type]


def test_a_list_without_ids_cancels_nothing(connection: Connection) -> None:
    job_id = stage(connection, "m.f")
    assert cancel(connection, []) == Cancelled()
    assert postgres.fetch_one(connection, "SELECT id FROM staged_jobs") == (job_id,)


@pytest.mark.parametrize("driver", ["psycopg", "cursor", "psycopg+sqlalchemy", "session"])
def test_a_cancel_is_part_of_the_callers_transaction(database_url: str, driver: str) -> None:
    kept, gone = stage_jobs(database_url, 2)

    def act(job_id: int, end: str) -> None:
        if driver in ("psycopg", "cursor"):
            with closing(psycopg.connect(database_url, options=BOUNDS)) as opened:
                cancel(opened if driver == "psycopg" else opened.cursor(), job_id)
                getattr(opened, end)()
            return
        engine = create_engine(database_url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect() as opened, Session(engine) as session:
            used = session if driver == "session" else opened
            cancel(used, job_id)
            getattr(used, end)()
        engine.dispose()

    act(kept, "rollback")
    act(gone, "commit")
    assert ids_in(database_url, "staged_jobs") == [kept]
    assert ids_in(database_url, "dead_jobs") == [gone]


def waits_for_a_lock(database_url: str) -> bool:
    return bool(
        query(
            database_url,
            "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
        )
    )


def meanwhile(
    database_url: str, threads: ThreadPoolExecutor, act: Callable[[Connection], Cancelled]
) -> Future[Cancelled]:
    """Begin a call, on a connection of its own, that waits for a row which another transaction has locked."""

    def call() -> Cancelled:
        with closing(psycopg.connect(database_url, autocommit=True, options=BOUNDS)) as opened:
            return act(opened)

    begun = threads.submit(call)
    wait_until(lambda: waits_for_a_lock(database_url) or begun.done())
    return begun


def test_a_job_that_the_leader_moves_meanwhile_is_not_missed(database_url: str) -> None:
    ids = stage_jobs(database_url, 2)
    with psycopg.connect(database_url, options=BOUNDS) as leader, ThreadPoolExecutor(1) as threads:
        staged.move(leader, ids, last_delivery=0)
        answer = meanwhile(database_url, threads, lambda opened: cancel(opened, ids))
        leader.commit()
        assert answer.result(PATIENCE_SECONDS) == Cancelled(waiting=tuple(ids))


def test_a_scheduled_job_that_comes_due_meanwhile_is_not_missed(database_url: str) -> None:
    (job_id,) = stage_jobs(database_url, run_at=datetime.now(UTC) + TOMORROW)
    query(
        database_url, "UPDATE staged_jobs SET scheduled_at = now(), staged_at = now() - interval '1 minute'"
    )
    with psycopg.connect(database_url, options=BOUNDS) as leader, ThreadPoolExecutor(1) as threads:
        assert staged.mature(leader, 10) == 1
        answer = meanwhile(database_url, threads, lambda opened: cancel(opened, job_id))
        leader.commit()
        assert answer.result(PATIENCE_SECONDS) == Cancelled(waiting=(job_id,))


def test_cancelling_a_moved_job_under_repeatable_read_is_a_serialization_error(database_url: str) -> None:
    (job_id,) = stage_jobs(database_url)
    with psycopg.connect(database_url, options=BOUNDS) as caller, psycopg.connect(database_url) as leader:
        caller.isolation_level = IsolationLevel.REPEATABLE_READ
        caller.execute("SELECT FROM staged_jobs")
        staged.move(leader, [job_id], last_delivery=0)
        leader.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            cancel(caller, job_id)


def test_the_leader_skips_a_job_that_is_being_cancelled(database_url: str, redis_url: str) -> None:
    first, second, third = stage_jobs(database_url, 3)
    with (
        psycopg.connect(database_url, options=BOUNDS) as caller,
        new_enqueuer(database_url, redis_url) as enqueuer,
    ):
        cancel(caller, second)
        enqueuer.drain()
        assert pushed_jobs(redis_url) == [first, third]
        caller.commit()
        assert not enqueuer.drain()
    assert ids_in(database_url, "dead_jobs") == [second]
    assert ids_in(database_url, "staged_jobs") == []


def test_a_batch_that_meets_a_just_cancelled_job_is_repeated(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stage_jobs(database_url, 2)
    read = lanes.read_due

    def read_and_cancel(*given: Any, **options: Any) -> Any:
        rows = read(*given, **options)
        with psycopg.connect(database_url, autocommit=True) as caller:
            cancel(caller, second)
        return rows

    read_by(monkeypatch, read_and_cancel)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
    assert pushed_jobs(redis_url) == [first]
    assert (ids_in(database_url, "inflight_jobs"), ids_in(database_url, "dead_jobs")) == ([first], [second])


def test_cancels_drains_and_claims_at_the_same_time_lose_nothing(database_url: str, redis_url: str) -> None:
    ids = stage_jobs(database_url, 300)
    stop = threading.Event()

    def claim_and_finish() -> None:
        with closing(psycopg.connect(database_url, autocommit=True, options=BOUNDS)) as opened:
            while not stop.is_set():
                rows = opened.execute(
                    "SELECT id, delivery FROM inflight_jobs WHERE claimed_at IS NULL LIMIT 20"
                )
                won = claims.claim_many(opened, dict(rows.fetchall()), worker="w", limits={})
                finishes.finish_many(opened, won)

    def cancel_some(first: int) -> int:
        with closing(psycopg.connect(database_url, autocommit=True, options=BOUNDS)) as opened:
            return sum(cancel(opened, ids[at : at + 5]).count for at in range(first, len(ids), 20))

    with new_enqueuer(database_url, redis_url) as enqueuer, ThreadPoolExecutor(3) as threads:
        worker = threads.submit(claim_and_finish)
        cancelling = [threads.submit(cancel_some, first) for first in (0, 10)]
        try:
            while not all(each.done() for each in cancelling) or ids_in(database_url, "staged_jobs"):
                enqueuer.run_once()
            wait_until(lambda: not ids_in(database_url, "inflight_jobs") or worker.done(), PATIENCE_SECONDS)
        finally:
            stop.set()
        worker.result(PATIENCE_SECONDS)
        cancelled = sum(each.result(PATIENCE_SECONDS) for each in cancelling)
    assert len(ids_in(database_url, "dead_jobs")) == cancelled
    assert sorted(ids_in(database_url, "dead_jobs") + ids_in(database_url, "finished_jobs")) == ids


# --- what the worker does


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "event", None) == name]


def claims_with_a_place(database_url: str) -> list[int]:
    return [job_id for (job_id,) in query(database_url, "SELECT id FROM cancelled_claims")]


def cancel_now(shop: Workshop, job_id: int) -> None:
    with psycopg.connect(shop.database_url, autocommit=True, options=BOUNDS) as opened:
        assert cancel(opened, job_id).running == (job_id,)


def test_a_cancelled_running_job_is_interrupted_and_not_reported_as_lost(
    shop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    told: list[tuple[bool, bool]] = []

    def act() -> None:
        assert not current_job().cancelled
        try:
            # The interruption may come before the cancelling connection is closed.
            cancel_now(shop, job_id)
            time.sleep(FOREVER_SECONDS)
        except JobCancelledError:
            told.append((current_job().cancelled, current_job().lease_lost))
            raise

    job_id = shop.delivered(act, **QUICK)
    assert shop.work(job_id) == "cancelled"
    assert told == [(True, True)]
    assert shop.stale_finishes() == []
    assert shop.row(job_id)["reason"] == "cancelled"
    assert [event.job_id for event in events(caplog, "job_cancelled")] == [job_id]  # type: ignore[attr-defined]
    assert not any(events(caplog, name) for name in ("lease_lost", "stale_finish", "job_failed", "job_dead"))


def raise_an_error() -> None:
    raise ValueError("no")


def defer() -> None:
    raise drain.Defer(60)


def give_up() -> None:
    raise drain.Dead("enough")


@pytest.mark.parametrize(
    "how", [lambda: None, raise_an_error, defer, give_up], ids=["end", "fail", "defer", "die"]
)
@pytest.mark.parametrize("max_attempts", [1, 5])
def test_a_job_that_ends_after_it_was_cancelled_changes_nothing(
    shop: Workshop, how: Callable[[], None], max_attempts: int
) -> None:
    def act() -> None:
        cancel_now(shop, job_id)
        kept.append(claims_with_a_place(shop.database_url))
        how()

    kept: list[list[int]] = []
    job_id = shop.delivered(act, max_attempts=max_attempts)
    assert shop.work(job_id) == "cancelled"
    # The attempt keeps its place until it has ended.
    assert kept == [[job_id]]
    assert claims_with_a_place(shop.database_url) == []
    row = shop.row(job_id)
    assert (row["reason"], row["attempts"], row["last_error"]) == ("cancelled", 1, None)
    assert shop.stale_finishes() == []


@pytest.mark.parametrize("block", WAYS.values(), ids=WAYS)
def test_the_transaction_of_a_cancelled_job_is_rolled_back(shop: Workshop, block: Callable[[], Any]) -> None:
    told: list[str] = []

    def act() -> None:
        try:
            with block() as session:
                leave(session, "never")
                cancel_now(shop, job_id)
        except JobCancelledError as error:
            told.append(str(error))
            raise

    job_id = shop.delivered(act)
    assert shop.work(job_id) == "cancelled"
    assert told == [f"job {job_id} was cancelled; its writes are rolled back"]
    assert shop.effects() == []


def test_the_successor_of_a_dead_process_confirms_the_end_of_cancelled_jobs(yard: Yard) -> None:
    running, waiting = yard.pushed(jobs.note, "running", "waiting")
    journal = Journal()
    with postgres.connect(yard.database_url, "tests") as connection:
        for job_id in (running, waiting):
            claim = claims.claim(connection, job_id, worker="w", limits={})
            assert claim is not None
            slot = journal.add(claim, 1)
            if job_id == running:
                journal.begin(slot, time.monotonic() + PATIENCE_SECONDS)
        assert cancel(connection, [running, waiting]).running == (running, waiting)
    assert claims_with_a_place(yard.database_url) == [running, waiting]
    recover(journal, Settings(database_url=yard.database_url, redis_url=yard.redis_url), "was killed")
    assert claims_with_a_place(yard.database_url) == []


def test_a_worker_from_before_the_cancel_cannot_finish_the_revived_job(shop: Workshop) -> None:
    job_id = shop.delivered(lambda: None)
    before = shop.claim(job_id)
    assert before is not None
    cancel_now(shop, job_id)
    with postgres.connect(shop.database_url, "tests") as connection:
        assert dead.revive(connection, Selection((job_id,))) == 1
        staged.move(connection, [job_id], last_delivery=100)
    assert not shop.finish(before)
    assert shop.work(job_id) == "finished"
    assert shop.row(job_id)["history"][0]["reason"] == "cancelled"


@pytest.mark.parametrize(
    ("job", "error"),
    [
        (jobs.until_interrupted, "JobCancelledError True"),
        (jobs.await_until_interrupted, "True"),
        (jobs.isolated_until_interrupted, "JobCancelledError True"),
    ],
    ids=["in the main thread", "in the event loop", "isolated"],
)
def test_each_kind_of_job_is_interrupted_by_a_cancel(yard: Yard, job: Any, error: str) -> None:
    (running,) = yard.pushed(job, "running")
    with yard.working("--prefetch", "2", "--concurrency", "1") as worker:
        wait_until(lambda: yard.effects() == ["running"], PATIENCE_SECONDS)
        (waiting,) = yard.pushed(job, "never")
        with psycopg.connect(yard.database_url) as caller:
            is_claimed = bool(cancel(caller, [waiting]).running)
        # In Redis it can begin no more. If its process has claimed it already, the next heartbeat has to come first.
        wait_until(lambda: not is_claimed or worker.events("attempt_cancelled"), PATIENCE_SECONDS)
        with psycopg.connect(yard.database_url) as caller:
            assert cancel(caller, [running]).count == 1
        wait_until(lambda: yard.effects() == ["running", error], PATIENCE_SECONDS)
        wait_until(lambda: worker.events("job_cancelled"), PATIENCE_SECONDS)
        with yard.redis() as client:
            wait_until(lambda: not client.keys("rq:job:*"), PATIENCE_SECONDS)
        assert end(worker) == 0
        assert not worker.events("lease_lost")
    assert yard.effects() == ["running", error]
    assert query(yard.database_url, "SELECT DISTINCT reason FROM dead_jobs") == [("cancelled",)]
    assert query(yard.database_url, "SELECT FROM stale_finishes") == []
    assert claims_with_a_place(yard.database_url) == []
    with (
        postgres.connect(yard.database_url, "tests") as connection,
        closing(Producer(yard.redis_url, NAMESPACE)) as redis,
    ):
        assert audit(connection, redis).ok


def test_deleting_a_job_with_rqs_tools_does_not_cancel_it(yard: Yard, client: Redis) -> None:
    """As rq-dashboard does it."""
    (running,) = yard.pushed(jobs.wait_for_go, "running")
    with yard.working("--prefetch", "1") as worker:
        wait_until(lambda: yard.effects() == ["running"], PATIENCE_SECONDS)
        (waiting,) = yard.pushed(jobs.note, "waiting")
        (behind,) = pushed(yard.redis_url)
        for rq_id in (f"{NAMESPACE}-{running}-1", behind):
            Job.fetch(rq_id, connection=client).delete()
        assert pushed(yard.redis_url) == []
        yard.redeliver()
        assert pushed_jobs(yard.redis_url) == [waiting]
        yard.say("go")
        yard.wait_for("finished_jobs", [running, waiting])
        assert end(worker) == 0


def test_a_lost_lease_is_not_a_cancel(shop: Workshop) -> None:
    told: list[bool] = []

    def act() -> None:
        shop.take_over(job_id)
        try:
            time.sleep(FOREVER_SECONDS)
        except LeaseLostError:
            told.append(current_job().cancelled)
            raise

    job_id = shop.delivered(act, **QUICK)
    assert shop.work(job_id) == "stale"
    assert told == [False]


# --- the command


def test_the_command_counts_confirms_and_cancels(database_url: str, connection: Connection) -> None:
    env = {"DRAIN_DATABASE_URL": database_url}
    ids = one_of_each(connection)
    counts = "2 staged, 1 delivered, 1 retrying, 1 running"
    assert command("cancel --queue mail --dry-run", env).stdout == f"would cancel: {counts}\n"
    refused = command("cancel --queue mail", env, answer="n\n")
    assert refused.exit_code == 1
    assert f"cancel 5 jobs ({counts})?" in refused.stderr
    assert ids_in(database_url, "dead_jobs") == []
    done = command("cancel --queue mail", env, answer="y\n")
    assert done.stdout.endswith("cancelled: 5 jobs, 1 of them running\n")
    assert ids_in(database_url, "dead_jobs") == sorted(ids.values())
    listed = command("dead list --queue mail", env)
    assert "cancelled" in listed.stdout
    assert command("dead retry --queue mail --yes", env).stdout == "retry: 5 jobs\n"


def test_the_json_of_the_command_has_the_numbers_and_nothing_else(
    database_url: str, connection: Connection
) -> None:
    env = {"DRAIN_DATABASE_URL": database_url}
    one_of_each(connection)
    dry = command("cancel --queue mail --json --dry-run", env)
    assert json.loads(dry.stdout) == {"dry_run": True, "cancelled": 5, "running": 1}
    done = command("cancel --queue mail --json", env, answer="y\n")
    # The runner of click 8.2 shows the answer.
    assert json.loads(done.stdout.removeprefix(" y\n")) == {"dry_run": False, "cancelled": 5, "running": 1}


def test_the_command_names_the_ids_that_it_could_not_cancel(
    database_url: str, connection: Connection
) -> None:
    env = {"DRAIN_DATABASE_URL": database_url}
    ids = one_of_each(connection)
    assert finishes.finish(connection, fence_of(connection, ids["running"]))
    done = command(f"cancel {ids['staged']} {ids['running']} 4000000 --yes", env)
    assert (done.exit_code, done.stdout) == (0, "cancelled: 1 job\n")
    assert done.stderr.splitlines() == [
        f"not cancelled, already finished: {ids['running']}",
        "not cancelled, unknown (never staged, not committed, forwarded, or archived): 4000000",
    ]
    looked = command(f"cancel {ids['staged']} --dry-run", env)
    assert (looked.stdout, looked.stderr) == (
        "would cancel: none\n",
        f"not cancelled, already dead: {ids['staged']}\n",
    )
    assert "queue 'mial' is unknown" in command("cancel --queue mial --yes", env).stderr
    again = command(f"cancel {ids['staged']} --yes", env)
    assert again.exit_code == 1
    assert again.stderr.splitlines() == [
        f"not cancelled, already dead: {ids['staged']}",
        "Error: no waiting or running job matches; nothing was done",
    ]
    assert one_line_of(command("cancel --tag nothing --yes", env)).endswith("nothing was done")
    assert command("cancel", env).exit_code == 2


def test_many_jobs_are_cancelled_in_slices(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drain.tables.selections.SLICE", 3)
    ids = stage_jobs(database_url, 7, queue="mail")
    with psycopg.connect(database_url, autocommit=True) as connection:
        staged.move(connection, ids[::2], last_delivery=0)
    env = {"DRAIN_DATABASE_URL": database_url}
    assert command("cancel --queue mail --yes", env).stdout == "cancelled: 7 jobs\n"
    assert ids_in(database_url, "dead_jobs") == ids
