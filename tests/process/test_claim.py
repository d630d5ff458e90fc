"""Claims: who may run a job, for how long, and whose outcome counts."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any
from uuid import UUID

import psycopg
import pytest

from drain import stage
from drain.config import Settings, process_name
from drain.database import postgres, schema
from drain.database.postgres import Connection
from drain.embedded import CARELESS, EmbeddedPostgres
from drain.jobs import registry
from drain.tables import claims, dead, finishes, leader_progress, leases, outcomes, staged
from drain.tables.claims import Claim
from drain.tables.dead import Selection
from drain.tables.limits import Limits
from drain.workers import job
from drain.workers.entry import Worker
from drain.workers.execution import recorder
from tests.helpers import ROOT, deliveries, fence_of, redeliver
from tests.inprocess_worker import Workshop

NAME = "tests.act"
NOTHING: Mapping[str, Limits] = {}
ERROR = {"type": "ValueError", "message": "late", "traceback": "Traceback"}
ROUNDS = 50


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with postgres.connect(database_url, "tests") as opened:
        yield opened


@pytest.fixture
def worker(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker in this process, to whom no job is registered yet."""
    monkeypatch.setattr(registry, "_jobs", {})
    worker = Worker(Settings(database_url=database_url))
    yield worker
    worker.close()


def delivered(connection: Connection, name: str = NAME, **options: Any) -> int:
    """A job that the enqueuer has moved."""
    job_id = stage(connection, name, **options)
    staged.move(connection, [job_id], last_delivery=0)
    return job_id


def claim(
    connection: Connection,
    job_id: int,
    *,
    worker: str = "somebody",
    registered: Mapping[str, Limits] = NOTHING,
    **only: Any,
) -> Claim | None:
    return claims.claim(connection, job_id, worker=worker, limits=registered, **only)


def claimed(connection: Connection, job_id: int, **options: Any) -> Claim:
    result = claim(connection, job_id, **options)
    assert result is not None
    return result


def row(connection: Connection, table: str, job_id: int) -> dict[str, Any] | None:
    (found,) = postgres.fetch_one(
        connection,
        f"SELECT (SELECT to_jsonb(job) FROM {table} AS job WHERE id = %s)",
        (job_id,),
    )
    assert found is None or isinstance(found, dict)
    return found


def whereabouts(connection: Connection, job_id: int) -> dict[str, Any]:
    tables = ("staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs")
    return {table: found for table in tables if (found := row(connection, table, job_id))}


def end_lease(connection: Connection, job_id: int) -> None:
    connection.execute(
        "UPDATE inflight_jobs SET lease_expires_at = clock_timestamp() - interval '1 ms' WHERE id = %s",
        [job_id],
    )


def test_a_claim_returns_the_job_as_staged(connection: Connection) -> None:
    job_id = delivered(connection, args=[1, "ż"], kwargs={"a": None}, tag="tests", context={"trace": "abc"})
    result = claimed(connection, job_id)
    assert (result.id, result.job_name, result.queue, result.tag) == (job_id, NAME, "default", "tests")
    assert (result.job_args, result.job_kwargs) == ('[1, "ż"]', '{"a": null}')
    assert (result.attempts, result.fencing_token, result.expired) == (1, 1, False)


def test_a_claim_records_its_worker(connection: Connection) -> None:
    job_id = delivered(connection)
    claimed(connection, job_id, worker="host:42")
    found = row(connection, "inflight_jobs", job_id)
    assert found is not None
    assert found["claimed_by"] == "host:42"
    assert found["claimed_at"] is not None


def test_each_claim_raises_the_token_and_the_attempts_by_one(connection: Connection) -> None:
    job_id = delivered(connection)
    for number in range(1, 6):
        result = claimed(connection, job_id)
        assert (result.fencing_token, result.attempts) == (number, number)
        if number % 2:
            end_lease(connection, job_id)
        else:
            outcomes.retry_later(connection, result, 0, ERROR)
            redeliver(connection, job_id)


def test_a_claimed_job_is_refused_until_its_lease_expires(connection: Connection) -> None:
    job_id = delivered(connection)
    first = claimed(connection, job_id)
    assert claim(connection, job_id) is None
    found = row(connection, "inflight_jobs", job_id)
    assert found is not None
    assert (found["fencing_token"], found["attempts"]) == (first.fencing_token, 1)
    end_lease(connection, job_id)
    assert claimed(connection, job_id).fencing_token == first.fencing_token + 1


def test_a_job_whose_next_attempt_is_not_due_is_refused(connection: Connection) -> None:
    job_id = delivered(connection)
    held = claimed(connection, job_id)
    assert outcomes.retry_later(connection, held, 3600, ERROR)
    assert claim(connection, job_id) is None
    redeliver(connection, job_id)
    assert claimed(connection, job_id).attempts == 2
    found = row(connection, "inflight_jobs", job_id)
    assert found is not None
    assert found["next_run_at"] is None


def test_a_finished_job_is_refused(connection: Connection) -> None:
    job_id = delivered(connection)
    assert finishes.finish(connection, claimed(connection, job_id))
    before = whereabouts(connection, job_id)
    assert claim(connection, job_id) is None
    assert whereabouts(connection, job_id) == before
    assert before.keys() == {"finished_jobs"}


def test_a_dead_job_is_refused(connection: Connection) -> None:
    job_id = delivered(connection)
    held = claimed(connection, job_id)
    assert outcomes.bury_claimed(connection, held, reason="failed", explanation="why")
    before = whereabouts(connection, job_id)
    assert claim(connection, job_id) is None
    assert whereabouts(connection, job_id) == before
    assert before.keys() == {"dead_jobs"}


def test_an_unknown_job_is_refused(connection: Connection) -> None:
    assert claim(connection, 4242) is None
    assert whereabouts(connection, 4242) == {}


def test_a_job_that_is_staged_and_not_drained_yet_is_refused(connection: Connection) -> None:
    job_id = stage(connection, NAME)
    assert claim(connection, job_id) is None
    assert whereabouts(connection, job_id).keys() == {"staged_jobs"}


def test_a_job_whose_worker_died_on_the_last_attempt_is_buried_without_running(
    connection: Connection, worker: Worker
) -> None:
    runs: list[int] = []
    job(name=NAME)(lambda: runs.append(1))
    job_id = delivered(connection, max_attempts=2)
    for _ in range(2):
        claimed(connection, job_id)
        end_lease(connection, job_id)
    assert worker.execute(job_id) == "dead"
    assert runs == []
    buried = row(connection, "dead_jobs", job_id)
    assert buried is not None
    assert buried["reason"] == "lease"


def test_a_failed_job_gets_its_next_attempt_despite_a_lowered_limit(
    connection: Connection, worker: Worker
) -> None:
    runs: list[int] = []
    job(name=NAME, max_attempts=2)(lambda: runs.append(1))
    job_id = delivered(connection)
    for _ in range(5):
        held = claimed(connection, job_id, registered={})
        assert outcomes.retry_later(connection, held, 0, ERROR)
        redeliver(connection, job_id)
    assert worker.execute(job_id) == "finished"
    assert runs == [1]


def test_a_limit_of_zero_attempts_means_unlimited(connection: Connection) -> None:
    job_id = delivered(connection, max_attempts=0)
    for number in range(1, 21):
        assert claimed(connection, job_id, registered={NAME: Limits(3, 9)}).attempts == number
        end_lease(connection, job_id)


def test_an_expired_job_can_be_claimed_to_be_buried(connection: Connection) -> None:
    expires_at = datetime.now(UTC) + timedelta(hours=1)
    job_id = delivered(connection, expires_at=expires_at)
    connection.execute("UPDATE inflight_jobs SET expires_at = clock_timestamp() - interval '1 ms'")
    assert claimed(connection, job_id).expired


def test_a_job_that_was_claimed_before_it_expired_is_not_too_late(connection: Connection) -> None:
    job_id = delivered(connection, expires_at=datetime.now(UTC) + timedelta(hours=1))
    held = claimed(connection, job_id)
    outcomes.defer(connection, held, 0)
    redeliver(connection, job_id)
    connection.execute("UPDATE inflight_jobs SET expires_at = clock_timestamp() - interval '1 ms'")
    again = claimed(connection, job_id)
    assert (again.attempts, again.expired) == (1, False)


def test_a_name_the_database_encoding_lacks_does_not_prevent_claims(latin1: Workshop) -> None:
    job(name="客户")(lambda: None)
    job(name="alone \ud800")(lambda: None)
    assert latin1.work(latin1.delivered(lambda: None)) == "finished"


@pytest.mark.parametrize("database", ["shop", "latin1"])
def test_limits_of_a_non_ascii_name_are_found(database: str, request: pytest.FixtureRequest) -> None:
    shop: Workshop = request.getfixturevalue(database)
    with postgres.connect(shop.database_url, "tests") as connection:
        found = claimed(connection, delivered(connection, "grüße"), registered={"grüße": Limits(7, 8, 9.5)})
    assert (found.max_attempts, found.timeout_seconds, found.lease_seconds) == (7, 8, 9.5)


@pytest.mark.usefixtures("processes")
def test_a_claim_survives_a_crash_of_a_server_with_asynchronous_commits() -> None:
    # Of what it has not written yet, the server forgets all at once; the tests' own connections wait for theirs.
    late = {"synchronous_commit": "off", "wal_writer_delay": "10s"}
    with EmbeddedPostgres(settings=CARELESS | late) as server:
        schema.install(server.url)
        with postgres.connect(server.url, "tests") as connection:
            connection.execute("SET synchronous_commit = on")
            job_id = delivered(connection)
        with postgres.connect(server.url, "tests") as connection:
            held = claimed(connection, job_id)
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
            server.kill()
        server.start()
        with postgres.connect(server.url, "tests") as connection:
            assert claim(connection, job_id) is None
            end_lease(connection, job_id)
            assert claimed(connection, job_id).fencing_token > held.fencing_token


@pytest.mark.parametrize("style", ["German", "SQL, DMY", "Postgres, YMD"])
def test_a_claim_and_its_extension_are_read_in_any_datestyle(connection: Connection, style: str) -> None:
    job_id = delivered(connection)
    connection.execute("SELECT set_config('DateStyle', %s, false)", [style])
    result = claimed(connection, job_id)
    extended = leases.extend_many(connection, [result._replace(lease_seconds=3600)])[job_id]
    assert (
        3500
        < (extended - result.lease_expires_at + timedelta(seconds=result.lease_seconds)).total_seconds()
        < 3700
    )


# Both run as process 1 of their machine, as containers do.
TELL_MY_NAME = """
import os
os.getpid = lambda: 1
from drain.config import process_name
assert process_name() == process_name()
print(process_name(), flush=True)
if not os.fork():
    print(process_name(), flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.usefixtures("processes")
def test_no_two_processes_have_the_same_name() -> None:
    names = [
        name
        for _ in range(2)
        for name in subprocess.run(
            [sys.executable, "-c", TELL_MY_NAME],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=60,
        ).stdout.split()
    ]
    assert len(names) == 4
    assert len(set(names)) == 4
    assert {name.rpartition(":")[0] for name in names} == {f"{socket.gethostname()}:1"}


def test_exactly_one_of_two_concurrent_claims_wins(database_url: str) -> None:
    barrier = threading.Barrier(2)
    with (
        postgres.connect(database_url, "tests") as one,
        postgres.connect(database_url, "tests") as other,
        ThreadPoolExecutor(2) as threads,
    ):

        def race(connection: Connection, job_id: int) -> Claim | None:
            barrier.wait(10)
            return claim(connection, job_id)

        for turn in range(ROUNDS):
            job_id = delivered(one)
            if turn % 2:
                claimed(one, job_id)
                end_lease(one, job_id)
            winners = [won for won in threads.map(race, (one, other), (job_id, job_id)) if won]
            assert len(winners) == 1
            assert winners[0].fencing_token == 1 + turn % 2


def test_two_concurrent_batches_share_no_job(database_url: str) -> None:
    barrier = threading.Barrier(2)
    with (
        postgres.connect(database_url, "tests") as one,
        postgres.connect(database_url, "tests") as other,
        ThreadPoolExecutor(2) as threads,
    ):

        def race(connection: Connection, ids: list[int]) -> list[Claim]:
            asked = deliveries(connection, ids)
            barrier.wait(10)
            return claims.claim_many(connection, asked, worker="somebody", limits=NOTHING)

        for _ in range(ROUNDS):
            ids = [delivered(one) for _ in range(3)]
            won = [claim for each in threads.map(race, (one, other), (ids, ids[1:])) for claim in each]
            assert sorted(claim.id for claim in won) == ids
            assert {claim.fencing_token for claim in won} == {1}


def claim_in_batch(connection: Connection, job_id: int) -> list[Claim]:
    asked = deliveries(connection, [job_id])
    return claims.claim_many(connection, asked, worker="somebody", limits=NOTHING)


def test_a_batch_omits_claimed_and_undue_jobs_and_those_decided_singly(
    connection: Connection,
) -> None:
    new = delivered(connection)
    (held,) = claim_in_batch(connection, new)
    assert claim_in_batch(connection, new) == []
    assert outcomes.retry_later(connection, held, 60, ERROR)
    assert claim_in_batch(connection, new) == []
    redeliver(connection, new)
    # The clock of the database was ahead when that failed.
    connection.execute("UPDATE inflight_jobs SET failed_at = failed_at + interval '1 h' WHERE id = %s", [new])
    (again,) = claim_in_batch(connection, new)
    assert (again.attempts, again.fencing_token) == (2, 2)
    assert claim_in_batch(connection, new) == []
    connection.execute("UPDATE inflight_jobs SET failed_at = failed_at - interval '1 h' WHERE id = %s", [new])
    end_lease(connection, new)
    assert claim_in_batch(connection, new) == []
    expired = delivered(connection, expires_at=datetime.now(UTC) - timedelta(seconds=1))
    assert claim_in_batch(connection, expired) == []
    deferred = delivered(connection)
    assert outcomes.defer(connection, claimed(connection, deferred), 0)
    assert claim_in_batch(connection, deferred) == []
    assert left_to_claim(connection, new, expired, deferred) == {new, expired}
    redeliver(connection, deferred)
    assert claim_in_batch(connection, deferred) == []
    assert left_to_claim(connection, new, expired, deferred) == {new, expired, deferred}


def left_to_claim(connection: Connection, *ids: int) -> set[int]:
    return claims.left_to_claim(connection, deliveries(connection, ids))


@pytest.mark.parametrize("delivery", [1, 2])
def test_a_waiting_job_cannot_be_claimed_before_the_leader_renumbers_it(
    connection: Connection, delivery: int
) -> None:
    job_id = delivered(connection)
    connection.execute("UPDATE inflight_jobs SET delivery = 2")
    held = claimed(connection, job_id, delivery=2)
    assert outcomes.retry_later(connection, held, -60, ERROR)
    asked = {job_id: delivery}
    assert claim(connection, job_id, delivery=delivery) is None
    assert claim(connection, job_id) is None
    assert claims.claim_many(connection, asked, worker="somebody", limits=NOTHING) == []
    assert claims.left_to_claim(connection, asked) == set()
    redeliver(connection, job_id)
    assert claim(connection, job_id, delivery=2) is None
    assert claimed(connection, job_id, delivery=3).attempts == 2


def test_a_redelivered_job_can_be_claimed_only_by_its_latest_delivery(
    connection: Connection,
) -> None:
    single, batched = delivered(connection), delivered(connection)
    connection.execute("UPDATE inflight_jobs SET delivery = 7")
    for earlier in (1, 6, 8, 0):
        assert claim(connection, single, delivery=earlier) is None
        asked = {batched: earlier}
        assert claims.claim_many(connection, asked, worker="somebody", limits=NOTHING) == []
        assert claims.left_to_claim(connection, asked) == set()
    # Each id is claimed under its own number, and not under that of another.
    assert (
        claims.claim_many(connection, {single: 7, batched: 1, 3: 7}, worker="w", limits=NOTHING)[0].id
        == single
    )
    assert [each.id for each in claims.claim_many(connection, {batched: 7}, worker="w", limits=NOTHING)] == [
        batched
    ]


def test_a_job_whose_lease_is_over_is_claimed_under_its_current_delivery(connection: Connection) -> None:
    job_id = delivered(connection)
    connection.execute("UPDATE inflight_jobs SET delivery = 7")
    claimed(connection, job_id, delivery=7)
    end_lease(connection, job_id)
    assert claim(connection, job_id, delivery=6) is None
    assert claims.left_to_claim(connection, {job_id: 6}) == set()
    assert claims.left_to_claim(connection, {job_id: 7}) == {job_id}
    assert claimed(connection, job_id, delivery=7).attempts == 2


class BrokenClock(datetime):
    """What a process sees whose clock is off by decades."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> "BrokenClock":
        return cls(2001, 2, 3, tzinfo=tz)

    @classmethod
    def utcnow(cls) -> "BrokenClock":
        return cls(2001, 2, 3)


def test_the_databases_clock_decides_rather_than_the_local_one(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e9)
    monkeypatch.setattr(claims, "datetime", BrokenClock)
    monkeypatch.setattr(outcomes, "datetime", BrokenClock)
    job_id = delivered(connection)
    (before,) = postgres.fetch_one(connection, "SELECT clock_timestamp()")
    lease = claimed(connection, job_id, registered={NAME: Limits(lease_seconds=100)}).lease_expires_at
    (after,) = postgres.fetch_one(connection, "SELECT clock_timestamp()")
    length = timedelta(seconds=100)
    assert before + length <= lease <= after + length
    assert claim(connection, job_id) is None
    outcomes.retry_later(connection, fence_of(connection, job_id), 50, ERROR)
    (wait,) = postgres.fetch_one(connection, "SELECT next_run_at - clock_timestamp() FROM inflight_jobs")
    assert timedelta(seconds=0) < wait <= timedelta(seconds=50)
    redeliver(connection, job_id)
    assert claimed(connection, job_id).attempts == 2


def test_a_claim_in_a_long_transaction_starts_its_lease_at_the_current_time(connection: Connection) -> None:
    job_id = delivered(connection)
    with connection.transaction():
        connection.execute("SELECT pg_sleep(0.05)")
        lease = claimed(connection, job_id, registered={NAME: Limits(lease_seconds=100)}).lease_expires_at
        (began,) = postgres.fetch_one(connection, "SELECT now()")
    assert lease >= began + timedelta(seconds=100.05)


@pytest.mark.parametrize(
    ("own", "registered", "limits"),
    [
        ((7, 70), Limits(5, 50, 20), Limits(7, 70, 20)),
        ((7, None), Limits(5, 50, 0.5), Limits(7, 50, 0.5)),
        ((None, 70), Limits(5, 50), Limits(5, 70)),
        ((None, None), Limits(5, 50), Limits(5, 50)),
        ((None, None), Limits(0, 50), Limits(0, 50)),
        ((0, None), Limits(5, 50), Limits(0, 50)),
        ((None, None), None, Limits(10, 180, 30)),
        ((7, 70), None, Limits(7, 70, 30)),
    ],
    ids=str,
)
def test_row_limits_override_registered_limits_which_override_the_default(
    connection: Connection,
    own: tuple[int | None, int | None],
    registered: Limits | None,
    limits: Limits,
) -> None:
    max_attempts, timeout_seconds = own
    job_id = delivered(connection, max_attempts=max_attempts, timeout_seconds=timeout_seconds)
    registrations = {"tests.other": Limits(1, 1, 1)} | ({NAME: registered} if registered else {})
    result = claimed(connection, job_id, registered=registrations)
    assert (result.max_attempts, result.timeout_seconds, result.lease_seconds) == limits
    (lease,) = postgres.fetch_one(
        connection, "SELECT extract(epoch FROM lease_expires_at - claimed_at)::float8 FROM inflight_jobs"
    )
    assert lease == pytest.approx(limits.lease_seconds, abs=0.1)


def test_a_worker_that_does_not_know_the_job_leaves_its_limits_open(connection: Connection) -> None:
    job_id = delivered(connection)
    before_the_deploy = claimed(connection, job_id)
    outcomes.retry_later(connection, before_the_deploy, 0, ERROR)
    redeliver(connection, job_id)
    after_the_deploy = claimed(connection, job_id, registered={NAME: Limits(25, 3600)})
    assert (after_the_deploy.max_attempts, after_the_deploy.timeout_seconds) == (25, 3600)


@pytest.mark.parametrize("column", ["timeout_seconds", "max_attempts"])
def test_a_job_with_the_largest_limits_can_be_claimed(connection: Connection, column: str) -> None:
    job_id = delivered(connection, NAME, **{column: 2**31 - 1})
    assert getattr(claimed(connection, job_id), column) == 2**31 - 1


def test_a_context_that_python_cannot_read_does_not_spoil_the_claim(connection: Connection) -> None:
    job_id = delivered(connection)
    connection.execute(
        "UPDATE inflight_jobs SET context = format('{\"n\": %%s}', repeat('7', 5000))::jsonb WHERE id = %s",
        [job_id],
    )
    assert claimed(connection, job_id).id == job_id


def test_a_claim_is_refused_for_another_queue_database_or_schema(connection: Connection) -> None:
    job_id = delivered(connection, queue="mail")
    ours = str(leader_progress.installation(connection))
    for asked in (
        {"queue": "sms"},
        {"installation": str(UUID(int=0))},
        {"version": schema.VERSION + 1},
    ):
        assert claim(connection, job_id, **asked) is None, asked
    named = deliveries(connection, [job_id])
    assert claims.claim_many(connection, named, worker="test", limits=NOTHING, queue="sms") == []
    assert claims.left_to_claim(connection, named, queue="sms") == set()
    found = claim(connection, job_id, queue="mail", installation=ours, version=schema.VERSION)
    assert found is not None
    assert (found.fencing_token, str(found.installation)) == (1, ours)


def test_a_worker_for_one_job_runs_only_its_claim_and_its_finish(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    execute = psycopg.Connection.execute

    def spy(self: Connection, statement: Any, *args: Any, **options: Any) -> Any:
        asked.append(statement)
        return execute(self, statement, *args, **options)

    job_id = shop.delivered(lambda: None)
    with closing(Worker(Settings(database_url=shop.database_url))) as new:
        monkeypatch.setattr(psycopg.Connection, "execute", spy)
        assert new.execute(job_id) == "finished"
    assert asked == [claims.CLAIM, finishes.FINISH_ONCE]


Record = Callable[[Connection, Claim], bool]
OUTCOMES: dict[str, Record] = {
    "finish": finishes.finish,
    "finish many": lambda connection, held: finishes.finish_many(connection, [held]) == {held.id},
    "extend many": lambda connection, held: set(leases.extend_many(connection, [held])) == {held.id},
    "release": lambda connection, held: bool(leases.release(connection, [held])),
    "defer": lambda connection, held: outcomes.defer(connection, held, 60),
    "retry": lambda connection, held: outcomes.retry_later(connection, held, 0, ERROR),
    "bury": lambda connection, held: outcomes.bury_claimed(
        connection, held, reason="failed", explanation="why", error=ERROR
    ),
}
with_each_outcome = pytest.mark.parametrize("record", OUTCOMES.values(), ids=OUTCOMES)


@with_each_outcome
def test_an_outcome_under_an_old_token_changes_nothing(connection: Connection, record: Record) -> None:
    job_id = delivered(connection)
    old = claimed(connection, job_id)
    end_lease(connection, job_id)
    current = claimed(connection, job_id)
    before = whereabouts(connection, job_id)
    for wrong in (old.fencing_token, current.fencing_token + 1, 0):
        assert record(connection, current._replace(fencing_token=wrong)) is False
        assert whereabouts(connection, job_id) == before
    assert record(connection, current) is True
    assert whereabouts(connection, job_id) != before


@with_each_outcome
def test_an_outcome_counts_only_once(connection: Connection, record: Record) -> None:
    job_id = delivered(connection)
    held = claimed(connection, job_id)
    assert finishes.finish(connection, held)
    before = whereabouts(connection, job_id)
    # A worker may ask again whether it has finished: its connection may have broken before the answer.
    assert record(connection, held) is (record is finishes.finish)
    assert whereabouts(connection, job_id) == before


def test_only_the_last_claims_token_can_finish_a_job(connection: Connection) -> None:
    job_id = delivered(connection)
    old = claimed(connection, job_id)
    end_lease(connection, job_id)
    current = claimed(connection, job_id)
    assert finishes.finish(connection, current)
    assert finishes.is_finished(connection, current)
    assert not finishes.is_finished(connection, old)
    assert not finishes.finish(connection, old)


@with_each_outcome
def test_a_worker_from_before_the_revival_can_record_nothing(connection: Connection, record: Record) -> None:
    job_id = delivered(connection)
    former = claimed(connection, job_id)
    outcomes.bury_claimed(connection, former, reason="failed", explanation="why")
    assert dead.revive(connection, Selection((job_id,))) == 1
    staged.move(connection, [job_id], last_delivery=1)
    current = claimed(connection, job_id)
    assert current.attempts == 1
    assert record(connection, former) is False
    assert finishes.finish(connection, current)


def test_a_finished_row_keeps_the_columns_of_its_claim(connection: Connection) -> None:
    job_id = delivered(connection, args=[1], tag="tests", context={"trace": "abc"}, priority=3)
    held = claimed(connection, job_id, worker="host:42")
    finishes.finish(connection, held)
    found = row(connection, "finished_jobs", job_id)
    assert found is not None
    assert (found["job_args"], found["tag"], found["context"]) == ([1], "tests", {"trace": "abc"})
    assert (found["finished_by"], found["attempts"], found["fencing_token"]) == ("host:42", 1, 1)
    assert found["staged_at"] <= found["moved_at"] <= found["claimed_at"] <= found["finished_at"]


def test_a_worker_refuses_an_unclaimable_job(connection: Connection, worker: Worker) -> None:
    job(name=NAME)(lambda: None)
    job_id = delivered(connection)
    assert worker.execute(4242) == "refused"
    assert worker.execute(job_id) == "finished"
    assert worker.execute(job_id) == "refused"


def test_a_worker_records_its_name(connection: Connection, worker: Worker) -> None:
    job(name=NAME)(lambda: None)
    job_id = delivered(connection)
    worker.execute(job_id)
    found = row(connection, "finished_jobs", job_id)
    assert found is not None
    assert found["finished_by"] == process_name()


def test_the_lease_is_as_long_as_registered(connection: Connection, worker: Worker) -> None:
    seconds: list[float] = []

    @job(name=NAME, lease_seconds=100)
    def act() -> None:
        (lease,) = postgres.fetch_one(
            connection, "SELECT extract(epoch FROM lease_expires_at - claimed_at) FROM inflight_jobs"
        )
        seconds.append(float(lease))

    assert worker.execute(delivered(connection)) == "finished"
    assert seconds == [pytest.approx(100, abs=0.1)]


@pytest.mark.parametrize("error", [None, ValueError("too late")], ids=["finish", "retry"])
@pytest.mark.parametrize("max_attempts", [1, 3], ids=["last attempt", "not the last"])
def test_a_worker_whose_lease_was_taken_over_records_nothing(
    connection: Connection, worker: Worker, error: Exception | None, max_attempts: int
) -> None:
    taken_over: list[dict[str, Any]] = []

    @job(name=NAME, max_attempts=max_attempts)
    def act() -> None:
        end_lease(connection, job_id)
        connection.execute("UPDATE inflight_jobs SET max_attempts = 9 WHERE id = %s", [job_id])
        claimed(connection, job_id, worker="the other")
        taken_over.append(whereabouts(connection, job_id))
        if error:
            raise error

    job_id = delivered(connection)
    assert worker.execute(job_id) == "stale"
    assert whereabouts(connection, job_id) == taken_over[0]
    assert finishes.finish(connection, fence_of(connection, job_id))


def test_a_failed_attempt_is_recorded_and_waits_for_the_next_one(
    connection: Connection, worker: Worker
) -> None:
    @job(name=NAME, max_attempts=2, retry_base_seconds=100)
    def act() -> None:
        raise ValueError("no such order")

    job_id = delivered(connection)
    assert worker.execute(job_id) == "retrying"
    found = row(connection, "inflight_jobs", job_id)
    assert found is not None
    assert found["lease_expires_at"] is None
    assert (found["last_error"]["type"], found["last_error"]["message"]) == ("ValueError", "no such order")
    recorded = {"type", "message", "traceback", "at", "attempt", "worker", "claimed_at"}
    assert found["last_error"].keys() == recorded
    (wait,) = postgres.fetch_one(
        connection, "SELECT extract(epoch FROM next_run_at - claimed_at) FROM inflight_jobs"
    )
    assert 50 <= wait <= 110
    assert worker.execute(job_id) == "refused"
    redeliver(connection, job_id)
    assert worker.execute(job_id) == "dead"
    found = row(connection, "dead_jobs", job_id)
    assert found is not None
    assert (found["reason"], found["attempts"]) == ("failed", 2)
    assert found["explanation"] == "failed 2 times; last: ValueError: no such order"


def test_a_worker_reconnects_after_a_broken_connection(connection: Connection, worker: Worker) -> None:
    job(name=NAME)(lambda: None)
    assert worker.execute(delivered(connection)) == "finished"
    assert worker.database.connection is not None
    connection.execute(
        "SELECT pg_terminate_backend(%s, 10000)", [worker.database.connection.info.backend_pid]
    )
    job_id = delivered(connection)
    assert worker.execute(job_id) == "finished"
    assert whereabouts(connection, job_id).keys() == {"finished_jobs"}


def test_a_claim_whose_answer_was_lost_can_be_repeated(
    connection: Connection, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(name=NAME)(lambda: None)
    job_id = delivered(connection, max_attempts=1)
    ask = claims.claim
    answers: list[Claim | None] = []

    def lose_the_first_answer(*args: Any, **kwargs: Any) -> Claim | None:
        answers.append(ask(*args, **kwargs))
        if len(answers) == 1:
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return answers[-1]

    monkeypatch.setattr(claims, "claim", lose_the_first_answer)
    assert worker.execute(job_id) == "finished"
    found = row(connection, "finished_jobs", job_id)
    assert found is not None
    assert (found["attempts"], found["fencing_token"]) == (1, 2)


def test_a_repeated_claim_takes_no_claim_of_another_worker(connection: Connection) -> None:
    job_id = delivered(connection)
    held = claimed(connection, job_id, worker="one")
    assert claim(connection, job_id, worker="another", again=True) is None
    together = claims.claim_many(
        connection, deliveries(connection, [job_id]), worker="another", limits=NOTHING, again=True
    )
    assert together == []
    assert claimed(connection, job_id, worker="one", again=True).fencing_token == held.fencing_token + 1


def test_an_rq_worker_logs_the_first_finish_of_a_name_unless_verbose(
    connection: Connection,
    worker: Worker,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(recorder, "_logged", set())
    job(name=NAME)(lambda: None)
    ids = [delivered(connection) for _ in range(3)]
    with caplog.at_level("INFO", "drain.workers"):
        assert [worker.execute(job_id) for job_id in ids[:2]] == ["finished"] * 2
    with caplog.at_level("DEBUG", "drain.workers"):
        assert worker.execute(ids[2]) == "finished"
    lines = [vars(record) for record in caplog.records if vars(record).get("event") == "job_finished"]
    assert [line["job_id"] for line in lines] == [ids[0], ids[2]]
