"""Jobs that share a transaction: each exactly once, whenever their worker is stopped."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
import pytest

from tests import jobs_that_share as jobs
from tests.helpers import PATIENCE_SECONDS, Command, connected, impatient, query, wait_until
from tests.process.test_shared_transactions import ran_again, runs, wait_for_the_end, written
from tests.worker_processes import Yard

RAN = [f"write:{number}" for number in range(12)]
LATER = [f"write:later {number}" for number in range(3)]
# The first of a name runs alone.
FIRST = "write:first"
# On a slow machine, no batch ends early, and no job is given back because it waits.
UNHURRIED = {"DRAIN_JOBS": jobs.MODULE, "SHARE_FOR_SECONDS": "60", "IDLE": "60s"}
_WAIT = {"drain.workers.process.fetcher._LONGEST_WAIT_SECONDS": 600.0}
PATIENT = impatient(_WAIT)
KILLED_SOON = impatient(_WAIT | {"drain.workers.supervisor.supervisor._KILL_SECONDS": 1})
ROW = "SELECT FROM inflight_jobs WHERE job_args ->> 0 = 'write:11' FOR UPDATE"
AT_COMMIT = """
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN PERFORM pg_advisory_xact_lock_shared(2); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON written DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.label = 'write:11') EXECUTE FUNCTION wait()
"""
TRIGGER = "SELECT pg_advisory_xact_lock(2)"
OF_COMMITS = pytest.mark.parametrize("lock", [ROW, TRIGGER], ids=["row", "trigger"])


@pytest.fixture
def yard(processes: None, yard: Yard) -> Yard:
    prepare(yard, AT_COMMIT)
    return yard


def prepare(yard: Yard, more: str) -> None:
    for statement in (*jobs.TABLES.split(";"), more):
        connected(yard.database_url).execute(statement.encode())


@contextmanager
def holding(yard: Yard, lock: str) -> Iterator[psycopg.Connection]:
    """Hold a lock until the connection rolls back."""
    with psycopg.connect(yard.database_url) as connection:
        connection.execute(lock.encode())
        yield connection


def wait_for_a_process(yard: Yard, holder: psycopg.Connection) -> None:
    """Wait until another session waits for the holder's lock."""
    blocked = "SELECT FROM pg_locks WHERE NOT granted AND %s = ANY (pg_blocking_pids(pid))"
    wait_until(lambda: query(yard.database_url, blocked, holder.info.backend_pid))


@contextmanager
def amid_a_batch(
    yard: Yard, last: Sequence[str] = ("hold:1",), *, grace: str = "600", **env: str
) -> Iterator[tuple[Command, psycopg.Connection, dict[str, int]]]:
    """Yield a worker whose batch's last job waits, the holder of its lock, and ids by label."""
    labels = [*RAN, *last, *LATER]
    yard.pushed(jobs.act, FIRST)
    pushed = yard.pushed(jobs.act, *labels, timeout_seconds=PATIENCE_SECONDS)
    options = ("--processes", "1", "--prefetch", "300", "--grace-seconds", grace)
    with (
        holding(yard, "SELECT pg_advisory_xact_lock(1)") as holder,
        yard.working(*options, **UNHURRIED | PATIENT | env) as worker,
    ):
        wait_for_a_process(yard, holder)
        assert written(yard) == {FIRST: 1}
        yield worker, holder, dict(zip(labels, pushed, strict=True))


def stop(worker: Command, number: int = signal.SIGTERM) -> None:
    """Send a signal, and wait until it has been handled."""
    before = len(worker.events("stopping"))
    worker.send_signal(number)
    wait_until(lambda: len(worker.events("stopping")) > before)


def assert_ends(worker: Command) -> None:
    assert worker.wait(PATIENCE_SECONDS) == 0
    assert not worker.events("failed")


def assert_the_rest_is_exact(yard: Yard, ids: dict[str, int]) -> None:
    """After another worker, each job has left one row, in its first attempt."""
    with yard.working(**UNHURRIED):
        wait_for_the_end(yard, list(ids.values()))
    assert written(yard) == dict.fromkeys([FIRST, *ids], 1)
    assert {yard.row(job_id)["attempts"] for job_id in ids.values()} == {1}


def are_free(yard: Yard, ids: dict[str, int]) -> bool:
    """Whether no job is claimed, or has an attempt that counts."""
    free = (
        "SELECT count(*) FROM inflight_jobs WHERE id = ANY (%s) AND lease_expires_at IS NULL AND attempts = 0"
    )
    ((count,),) = query(yard.database_url, free, list(ids.values()))
    return bool(count == len(ids))


def test_a_stopped_worker_awaits_the_running_job_and_commits_its_batch(yard: Yard) -> None:
    with amid_a_batch(yard) as (worker, holder, ids):
        stop(worker)
        holder.rollback()
        assert_ends(worker)
    # The next jobs have not begun.
    assert written(yard) == dict.fromkeys([FIRST, *RAN, "hold:1"], 1)
    assert runs(yard, "hold:1") == [True]
    assert_the_rest_is_exact(yard, ids)
    assert ran_again(yard) == set()


@pytest.mark.parametrize(
    ("grace", "signals"),
    [
        ("0.1", [signal.SIGTERM]),
        ("600", [signal.SIGTERM, signal.SIGTERM]),
        ("600", [signal.SIGTERM, signal.SIGINT]),
    ],
    ids=["grace", "SIGTERM", "SIGINT"],
)
def test_an_interrupted_job_costs_its_batch_nothing(yard: Yard, grace: str, signals: list[int]) -> None:
    with amid_a_batch(yard, grace=grace) as (worker, _, ids):
        for number in signals:
            stop(worker, number)
        assert_ends(worker)
    assert written(yard) == dict.fromkeys([FIRST, *RAN], 1)
    assert yard.row(ids["hold:1"])["interruptions"] == 1
    assert are_free(yard, {label: ids[label] for label in ["hold:1", *LATER]})
    assert_the_rest_is_exact(yard, ids)
    assert ran_again(yard) == {"hold:1"}


def test_a_job_interrupted_after_its_block_is_finished(yard: Yard) -> None:
    with amid_a_batch(yard, ["linger:1"], grace="0.1") as (worker, _, ids):
        stop(worker)
        assert_ends(worker)
    assert written(yard) == dict.fromkeys([FIRST, *RAN, "linger:1"], 1)
    assert_the_rest_is_exact(yard, ids)
    assert ran_again(yard) == set()


@OF_COMMITS
def test_a_stopped_worker_awaits_the_commit_of_its_batch(yard: Yard, lock: str) -> None:
    with amid_a_batch(yard) as (worker, holder, ids):
        with holding(yard, lock) as holder_of_commit:
            holder.rollback()
            wait_for_a_process(yard, holder_of_commit)
            stop(worker)
        assert_ends(worker)
    assert written(yard) == dict.fromkeys([FIRST, *ids], 1)
    assert yard.all_are("finished_jobs", list(ids.values()))
    assert ran_again(yard) == set()


def test_jobs_of_a_worker_killed_as_its_commit_waits_are_given_back(yard: Yard) -> None:
    """PostgreSQL notices its death, although a job's lock holds up the commit."""
    with amid_a_batch(yard, **KILLED_SOON) as (worker, holder, ids):
        with holding(yard, TRIGGER) as holder_of_commit:
            holder.rollback()
            wait_for_a_process(yard, holder_of_commit)
            stop(worker)
            stop(worker)
            assert_ends(worker)
            assert are_free(yard, ids)
        assert worker.events("killed")
    assert_the_rest_is_exact(yard, ids)
    assert ran_again(yard) == set(ids)


def test_jobs_whose_commit_fails_as_their_worker_stops_run_again_elsewhere(yard: Yard) -> None:
    with amid_a_batch(yard) as (worker, holder, ids):
        with holding(yard, ROW) as thief:
            holder.rollback()
            wait_for_a_process(yard, thief)
            stop(worker)
            thief.execute(jobs.STEAL, ["write:11"])
            thief.commit()
        assert_ends(worker)
    del ids["write:11"]
    assert are_free(yard, ids)
    assert_the_rest_is_exact(yard, ids)
