"""Of the jobs with one unique key that wait, one stands: decided by the leader, in the transaction of a batch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from drain import cancel, stage, stage_many
from drain.admission import uniqueness
from drain.audit import audit
from drain.database import postgres
from drain.enqueuer import batches
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.housekeeping import ReturnedJobs
from drain.tables import (
    cancellations,
    claims,
    dead,
    finishes,
    outcomes,
    redeliveries,
    selections,
    staged,
    unique,
)
from drain.tables.dead import Selection
from drain.wire import Producer
from drain.workers import job
from tests.helpers import NAMESPACE, ids_in, new_enqueuer, query, wait_until

QUIET = timedelta(seconds=30)
TWO_WAIT = """
SELECT job_name, unique_key, array_agg(id) FROM inflight_jobs
WHERE unique_key IS NOT NULL AND lease_expires_at IS NULL GROUP BY 1, 2 HAVING count(*) > 1
"""

# As a job that was dead and has been revived.
STAGE_AGAIN = """
WITH gone AS (DELETE FROM inflight_jobs RETURNING *)
INSERT INTO staged_jobs (id, job_name, job_args, queue, tag, key, unique_key, keep, stands_for, staged_at)
OVERRIDING SYSTEM VALUE
SELECT id, job_name, job_args, queue, tag, key, unique_key, keep, stands_for, staged_at FROM gone
"""


class Shop:
    """An application, a leader, a worker, and the tables."""

    def __init__(self, database_url: str, redis_url: str, enqueuer: Enqueuer) -> None:
        self.url = database_url
        self.redis_url = redis_url
        self.enqueuer = enqueuer

    def stage(self, *args: Any, name: str = "m.f", **options: Any) -> int:
        with psycopg.connect(self.url, autocommit=True) as connection:
            return stage(connection, name, args, **({"unique_key": "a"} | options))

    def drain(self) -> int:
        return self.enqueuer.drain()

    def let_pass(self, seconds: float) -> None:
        """Let this time pass for all that is staged."""
        passed = f"interval '{seconds} s'"
        query(
            self.url,
            f"UPDATE staged_jobs SET staged_at = staged_at - {passed}, scheduled_at = scheduled_at - {passed}, "
            f"matured_at = CASE WHEN scheduled_at - {passed} <= now() THEN now() END",
        )

    def claim(self, job_id: int) -> claims.Claim:
        with psycopg.connect(self.url, autocommit=True) as connection:
            claim = claims.claim(connection, job_id, worker="w", limits={})
        assert claim is not None
        return claim

    def fail(self, claim: claims.Claim) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            assert outcomes.retry_later(connection, claim, 60.0, {"type": "E"})

    @property
    def waiting(self) -> list[int]:
        return ids_in(self.url, "inflight_jobs")

    @property
    def superseded(self) -> dict[int, int | None]:
        """Those that gave way, by id, and the one that stands for each."""
        rows = query(self.url, "SELECT id, superseded_by FROM finished_jobs ORDER BY id")
        return dict(rows)

    def is_sound(self) -> bool:
        with (
            postgres.connect(self.url, "test") as connection,
            closing(Producer(self.redis_url, NAMESPACE)) as redis,
        ):
            report = audit(connection, redis, patience_seconds=0)
        assert not report.breaches, report.breaches
        return True


@pytest.fixture
def shop(database_url: str, redis_url: str) -> Iterator[Shop]:
    with new_enqueuer(database_url, redis_url) as enqueuer:
        yield Shop(database_url, redis_url, enqueuer)


def test_the_first_waiting_job_supersedes_the_others(shop: Shop) -> None:
    first, *others = [shop.stage(number, tag=str(number), key="k") for number in range(4)]
    alone = shop.stage(unique_key="b")
    another = shop.stage(name="m.g")
    without = shop.stage(unique_key=None)
    assert shop.drain() == 7
    assert shop.waiting == [first, alone, another, without]
    assert shop.superseded == dict.fromkeys(others, first)
    assert query(
        shop.url,
        "SELECT DISTINCT attempts, fencing_token, moved_at = claimed_at, claimed_at = finished_at, key "
        "FROM finished_jobs",
    ) == [(0, 1, True, True, "k")]
    assert query(shop.url, "SELECT job_args, tag FROM finished_jobs WHERE id = %s", others[0]) == [([1], "1")]
    assert shop.is_sound()


def test_duplicates_are_superseded_with_array_nulls_off(database_url: str, redis_url: str) -> None:
    (name,) = query(database_url, "SELECT current_database()")[0]
    query(database_url, f"ALTER DATABASE {name} SET array_nulls = off")
    with new_enqueuer(database_url, redis_url) as enqueuer:
        shop = Shop(database_url, redis_url, enqueuer)
        first, second = shop.stage(1), shop.stage(2)
        shop.drain()
    assert ids_in(database_url, "dead_jobs") == []
    assert (ids_in(database_url, "inflight_jobs"), ids_in(database_url, "finished_jobs")) == (
        [first],
        [second],
    )


def test_the_last_waiting_job_supersedes_the_others_with_keep_last(shop: Shop) -> None:
    first, second = shop.stage(1), shop.stage(2)
    last = shop.stage(3, keep="last")
    shop.drain()
    assert shop.waiting == [last]
    assert shop.superseded == {first: last, second: last}


def test_a_later_job_is_superseded_by_one_waiting_for_a_worker(shop: Shop) -> None:
    first = shop.stage()
    shop.drain()
    second = shop.stage()
    shop.drain()
    assert shop.waiting == [first]
    assert shop.superseded == {second: first}


def test_a_job_waiting_for_a_worker_is_superseded_with_keep_last(shop: Shop) -> None:
    first = shop.stage()
    shop.drain()
    last = shop.stage(keep="last")
    shop.drain()
    assert shop.waiting == [last]
    assert shop.superseded == {first: last}
    with pytest.raises(AssertionError):
        shop.claim(first)
    assert shop.is_sound()


@pytest.mark.parametrize("keep", ["first", "last"])
def test_a_running_job_does_not_block_another(shop: Shop, keep: str) -> None:
    running = shop.stage(keep=keep)
    shop.drain()
    shop.claim(running)
    waiting = shop.stage(keep=keep)
    shop.drain()
    assert shop.waiting == [running, waiting]
    assert shop.superseded == {}


def test_a_job_being_claimed_runs_and_is_not_superseded(shop: Shop) -> None:
    first = shop.stage()
    shop.drain()
    last = shop.stage(keep="last")
    with psycopg.connect(shop.url) as worker:
        worker.execute("SELECT FROM inflight_jobs WHERE id = %s FOR UPDATE", [first])
        shop.drain()
    assert shop.waiting == [first, last]
    assert_stands_for_none(shop, last)


def test_a_job_claimed_while_the_leader_decides_is_not_superseded(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [shop.stage(unique_key=key) for key in "ab"]
    shop.drain()
    last = [shop.stage(unique_key=key, keep="last") for key in "ab"]
    read, unclaimed = unique.read_candidates, list(first)

    def read_and_claim(*args: Any, **options: Any) -> Any:
        found = read(*args, **options)
        # The first claim makes the batch fail, and the second one comes while the next batch passes over locked rows.
        if unclaimed:
            shop.claim(unclaimed.pop())
        return found

    monkeypatch.setattr(unique, "read_candidates", read_and_claim)
    shop.drain()
    assert unclaimed == []
    assert shop.waiting == [*first, *last]
    assert shop.superseded == {}


@pytest.mark.parametrize("keep", ["first", "last"])
def test_a_job_between_two_attempts_waits_like_any_other(shop: Shop, keep: str) -> None:
    failed = shop.stage()
    shop.drain()
    shop.fail(shop.claim(failed))
    later = shop.stage(keep=keep)
    shop.drain()
    stands, gone = (failed, later) if keep == "first" else (later, failed)
    assert shop.waiting == [stands]
    assert shop.superseded == {gone: stands}
    attempts = query(
        shop.url, "SELECT attempts, fencing_token > attempts, last_error IS NULL FROM finished_jobs"
    )
    assert attempts == [(0, True, True) if keep == "first" else (1, True, False)]
    assert shop.is_sound()


@pytest.mark.parametrize("keep", ["first", "last"])
def test_a_job_that_fails_while_another_waits_leaves_only_one_waiting(shop: Shop, keep: str) -> None:
    ran = shop.stage()
    shop.drain()
    claim = shop.claim(ran)
    later = shop.stage(keep=keep)
    shop.drain()
    other = shop.stage(unique_key="b")
    shop.drain()
    shop.fail(claim)
    assert ReturnedJobs(shop.enqueuer.connection).run_once() == 1
    stands, gone = (ran, later) if keep == "first" else (later, ran)
    assert shop.waiting == [stands, other]
    assert shop.superseded == {gone: stands}


@pytest.mark.parametrize("looks_at", ["a staged one", "one in flight"])
def test_a_run_past_its_lease_supersedes_nothing(shop: Shop, looks_at: str) -> None:
    ran = shop.stage()
    shop.drain()
    claim = shop.claim(ran)
    if looks_at == "one in flight":
        later = shop.stage()
        shop.drain()
    with postgres.connect(shop.url, "test") as connection:
        query(
            shop.url, "UPDATE inflight_jobs SET lease_expires_at = now() - interval '1 s' WHERE id = %s", ran
        )
        assert redeliveries.redeliver_leases(connection, 10, 10)
        if looks_at == "one in flight":
            assert uniqueness.settle_returned(connection) == 1
        else:
            later = shop.stage()
            shop.drain()
        assert shop.superseded == {later: ran}
        assert not finishes.finish(connection, claim)
    assert shop.waiting == [ran]


def test_a_run_that_ends_while_the_leader_decides_blocks_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = shop.stage()
    shop.drain()
    claim = shop.claim(ran)
    query(shop.url, "UPDATE inflight_jobs SET lease_expires_at = NULL")
    later = shop.stage()
    read = unique.read_candidates

    def read_and_finish(*args: Any, **options: Any) -> Any:
        found = read(*args, **options)
        with postgres.connect(shop.url, "test") as worker:
            finishes.finish(worker, claim)
        return found

    monkeypatch.setattr(unique, "read_candidates", read_and_finish)
    shop.drain()
    assert shop.waiting == [later]
    assert shop.superseded == {ran: None}


def test_returning_jobs_claimed_meanwhile_are_not_superseded(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shop.stage(unique_key="a")
    shop.drain()
    claim = shop.claim(first)
    second = shop.stage(unique_key="a")
    shop.drain()
    scheduled = shop.stage(unique_key="a", quiet=QUIET)
    shop.fail(claim)
    query(shop.url, "UPDATE inflight_jobs SET next_run_at = NULL")
    read = unique.read_shared

    def read_and_claim(*args: Any) -> Any:
        found = read(*args)
        for job_id in (first, second):
            shop.claim(job_id)
        return found

    monkeypatch.setattr(unique, "read_shared", read_and_claim)
    assert uniqueness.settle_returned(shop.enqueuer.connection) == 0
    assert shop.waiting == [first, second]
    assert ids_in(shop.url, "staged_jobs") == [scheduled]


def test_a_dead_job_blocks_nothing_and_competes_again_when_retried(shop: Shop) -> None:
    died = shop.stage()
    shop.drain()
    claim = shop.claim(died)
    with postgres.connect(shop.url, "test") as connection:
        outcomes.bury_claimed(connection, claim, reason="failed", explanation="x", error={"type": "E"})
        later = shop.stage()
        shop.drain()
        assert shop.waiting == [later]
        assert dead.revive(connection, Selection()) == 1
    shop.drain()
    assert shop.waiting == [later]
    assert shop.superseded == {died: later}
    assert query(shop.url, "SELECT jsonb_array_length(history) FROM finished_jobs") == [(1,)]
    assert shop.is_sound()


def test_an_expired_job_supersedes_no_other(shop: Shop) -> None:
    expires_at = datetime.now(UTC) + timedelta(days=1)
    delivered = shop.stage(expires_at=expires_at)
    shop.drain()
    waiting = shop.stage(expires_at=expires_at, unique_key="b")
    query(shop.url, "UPDATE inflight_jobs SET expires_at = now()")
    query(shop.url, "UPDATE staged_jobs SET expires_at = now()")
    after = [shop.stage(), shop.stage(unique_key="b")]
    shop.drain()
    assert shop.waiting == [delivered, *after]
    assert ids_in(shop.url, "dead_jobs") == [waiting]
    assert shop.superseded == {}


SOON, LATER = timedelta(minutes=1), timedelta(minutes=2)


@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("later", [LATER, None])
@pytest.mark.parametrize("waits", ["staged", "in flight"])
def test_the_remaining_job_takes_the_latest_expiry_of_those_superseded(
    shop: Shop, keep: str, later: timedelta | None, waits: str
) -> None:
    now = datetime.now(UTC)
    long, short = None if later is None else now + later, now + SOON
    first = shop.stage(expires_at=short if keep == "first" else long)
    if waits == "in flight":
        shop.drain()
    last = shop.stage(keep=keep, expires_at=long if keep == "first" else short)
    shop.drain()
    stands, gone = (first, last) if keep == "first" else (last, first)
    assert shop.superseded == {gone: stands}
    assert query(shop.url, "SELECT id, expires_at FROM inflight_jobs") == [(stands, long)]


@pytest.mark.parametrize("skips_locked", [False, True])
def test_a_job_claimed_during_its_expiry_update_supersedes_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, skips_locked: bool
) -> None:
    monkeypatch.setattr(batches.Batches, "_skips_locked", lambda _: skips_locked)
    first = shop.stage(expires_at=datetime.now(UTC) + SOON)
    shop.drain()
    later = shop.stage()
    stand, expired = unique.stand, list[bool]()

    def claim_first(connection: postgres.Connection, stands: Any) -> set[int]:
        if not expired:
            # The worker finds that the job has expired, and gives it up.
            query(shop.url, "UPDATE inflight_jobs SET expires_at = now() WHERE id = %s", first)
            expired.append(shop.claim(first).expired)
        return stand(connection, stands)

    monkeypatch.setattr(unique, "stand", claim_first)
    shop.drain()
    assert expired == [True]
    assert shop.superseded == {}
    wait_until(lambda: shop.drain() or later in shop.waiting)
    assert shop.superseded == {}


def assert_stands_for_none(shop: Shop, job_id: int) -> None:
    """A job that did not give way is not staged again by a cancel of the one that came later."""
    with psycopg.connect(shop.url) as connection:
        assert cancel(connection, job_id).count == 1
    assert query(shop.url, "SELECT FROM staged_jobs") == []


@pytest.mark.parametrize("waits", ["staged", "in flight", "running"])
@pytest.mark.parametrize("keep", ["first", "last"])
def test_cancelling_the_remaining_job_restages_the_last_superseded_one(
    shop: Shop, keep: str, waits: str
) -> None:
    first = shop.stage(1, keep=keep)
    if keep == "first":
        shop.drain()
    shop.stage(2, keep=keep, queue="slow")
    last = shop.stage(3, keep=keep, tag="request", key="k", max_attempts=7)
    query(shop.url, "UPDATE staged_jobs SET staged_by = 'other ' || id")
    shop.drain()
    stands, gone = (first, last) if keep == "first" else (last, 2)
    if waits == "running":
        shop.claim(stands)
    elif waits == "staged":
        query(shop.url, STAGE_AGAIN)
    with psycopg.connect(shop.url) as connection:
        assert cancel(connection, stands).count == 1
        assert cancel(connection, stands).dead == (stands,)
    columns = "job_args, queue, tag, key, unique_key, keep"
    expected = ([3], "default", "request", "k") if keep == "first" else ([2], "slow", None, None)
    assert query(shop.url, f"SELECT {columns} FROM staged_jobs") == [(*expected, "a", keep)]
    assert query(shop.url, "SELECT staged_by FROM staged_jobs") == [(f"other {gone}",)]
    assert shop.superseded[gone] == stands
    shop.drain()
    (again,) = shop.waiting
    assert again > last
    assert shop.is_sound()
    # Nothing gave way to it.
    with psycopg.connect(shop.url) as connection:
        assert cancel(connection, again).count == 1
    assert query(shop.url, "SELECT FROM staged_jobs") == []


@pytest.mark.parametrize("selection", [{"job": "m.f"}, {"queue": "default"}, {"ids": [1, 2]}])
@pytest.mark.parametrize("in_slices", [False, True])
def test_selected_superseded_jobs_are_cancelled_with_the_remaining_one(
    shop: Shop, selection: dict[str, Any], in_slices: bool
) -> None:
    shop.stage()
    shop.drain()
    shop.stage()
    shop.drain()
    with postgres.connect(shop.url, "test") as connection:
        if in_slices:
            named = {"job_name" if name == "job" else name: given for name, given in selection.items()}
            (part,) = selections.slices(connection, "inflight_jobs", selections.Selection(**named))
            assert cancellations.cancel_inflight(connection, part) == [(1, False)]
        else:
            assert cancel(connection, **selection).count == 1
    assert query(shop.url, "SELECT FROM staged_jobs") == []


def test_with_a_quiet_time_the_last_job_runs_once_arrivals_stop(shop: Shop) -> None:
    first = shop.stage(1, keep="last", quiet=QUIET)
    shop.drain()
    shop.let_pass(20)
    second = shop.stage(2, keep="last", quiet=QUIET)
    shop.let_pass(20)
    assert shop.drain() == 1
    assert shop.waiting == []
    assert shop.superseded == {first: second}
    shop.let_pass(20)
    shop.drain()
    assert shop.waiting == [second]


def test_with_a_quiet_time_the_first_job_waits_while_others_arrive(shop: Shop) -> None:
    first = shop.stage(1, quiet=QUIET)
    shop.let_pass(20)
    second = shop.stage(2, quiet=QUIET)
    shop.let_pass(20)
    shop.drain()
    assert shop.waiting == []
    assert shop.superseded == {second: first}
    ((left,),) = query(
        shop.url, "SELECT extract(epoch FROM scheduled_at - now())::float8 FROM staged_jobs_scheduled"
    )
    assert 5 < left <= 10
    shop.let_pass(20)
    shop.drain()
    assert shop.waiting == [first]


def test_a_row_that_was_inserted_without_its_time_waits_until_it_is_quiet(shop: Shop) -> None:
    query(shop.url, "INSERT INTO staged_jobs (job_name, unique_key, quiet_seconds) VALUES ('m.f', 'a', 30)")
    assert shop.drain() == 1
    assert shop.waiting == []
    shop.let_pass(31)
    assert shop.drain() == 1
    assert len(shop.waiting) == 1


def test_a_job_scheduled_for_tomorrow_does_not_count_as_waiting_yet(shop: Shop) -> None:
    tomorrow = shop.stage(run_at=datetime.now(UTC) + timedelta(days=1))
    now = shop.stage()
    shop.drain()
    assert shop.waiting == [now]
    assert shop.superseded == {}
    shop.let_pass(24 * 3600)
    shop.drain()
    assert shop.superseded == {tomorrow: now}


def test_waiting_jobs_beyond_the_batch_are_superseded_too(database_url: str, redis_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        first, *others = stage_many(connection, "m.f", [(n,) for n in range(100)], unique_key="a")
        last = stage(connection, "m.f", [100], unique_key="a", queue="later", priority=7)
    with new_enqueuer(database_url, redis_url, batch_size=3) as enqueuer:
        assert enqueuer.run_once() == 101
        enqueuer.flush()
    assert ids_in(database_url, "inflight_jobs") == [first]
    assert query(
        database_url, "SELECT id FROM finished_jobs WHERE superseded_by = %s ORDER BY id", first
    ) == [(id_,) for id_ in [*others, last]]


def test_very_many_duplicates_are_superseded_in_parts(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uniqueness, "_MOST_ROWS", 10)
    ids = [shop.stage(number, keep="last") for number in range(50)]
    assert shop.drain() == 50
    assert shop.waiting == [ids[-1]]
    assert shop.superseded == dict.fromkeys(ids[:-1], ids[-1])


def test_forwarded_jobs_are_superseded_too(database_url: str, redis_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        ids = [stage(connection, "m.f", [n], unique_key="a", queue="away") for n in range(3)]
    with new_enqueuer(database_url, redis_url, forward_queues=frozenset({"away"})) as enqueuer:
        assert enqueuer.drain() == 3
        assert enqueuer.delivered == 1
    assert query(database_url, "SELECT id, superseded_by FROM finished_jobs ORDER BY id") == [
        (id_, ids[0]) for id_ in ids[1:]
    ]


def test_a_staged_row_locked_by_another_session_is_skipped(shop: Shop) -> None:
    ids = [shop.stage(number) for number in range(3)]
    with psycopg.connect(shop.url) as person:
        person.execute("SELECT FROM staged_jobs WHERE id = %s FOR UPDATE", [ids[2]])
        shop.drain()
        assert shop.waiting == [ids[0]]
        assert shop.superseded == {ids[1]: ids[0]}
    shop.drain()
    assert shop.superseded == dict.fromkeys(ids[1:], ids[0])


def test_a_batch_that_is_rolled_back_has_superseded_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [shop.stage(keep="last") for _ in range(2)]

    def fail(*_: Any, **__: Any) -> None:
        raise psycopg.OperationalError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(staged, "move", fail)
        with pytest.raises(psycopg.OperationalError):
            shop.drain()
    assert ids_in(shop.url, "staged_jobs") == ids
    assert shop.superseded == {}
    shop.drain()
    assert shop.waiting == [ids[1]]


def test_the_keys_of_a_job_come_from_its_arguments(database_url: str) -> None:
    @job(
        name="unique.of_order",
        key=lambda order_id, **_: order_id,
        unique_key=lambda order_id, **_: f"order:{order_id}" if order_id else None,
        keep="last",
        quiet=QUIET,
    )
    def of_order(order_id: int, *, note: str = "") -> None:
        """A job that these tests stage and never run."""

    with psycopg.connect(database_url, autocommit=True) as connection:
        of_order.stage(connection, 1, note="x")
        of_order.stage_many(connection, [(2,), {"order_id": 3}, (0,)])
        stage(connection, of_order, [4], key="mine", unique_key="other", keep="first")
    keys = (
        "SELECT key, unique_key, keep, quiet_seconds, extract(epoch FROM scheduled_at - staged_at)::integer"
    )
    assert query(database_url, f"{keys} FROM staged_jobs ORDER BY id") == [
        ("1", "order:1", "last", 30, 30),
        ("2", "order:2", "last", 30, 30),
        ("3", "order:3", "last", 30, 30),
        ("0", None, None, None, 0),
        ("mine", "other", "first", 30, 30),
    ]


def test_many_jobs_may_share_a_key_and_a_scheduled_quiet_time(database_url: str) -> None:
    run_at = datetime(2050, 1, 1, tzinfo=UTC)
    with psycopg.connect(database_url, autocommit=True) as connection:
        stage_many(connection, "m.f", [(1,), (2,)], key=7, unique_key="a", quiet=QUIET, run_at=run_at)
        stage_many(connection, "m.f", [(1,), (2,)], key=lambda number: f"n{number}", run_at=run_at)
    assert query(database_url, "SELECT key, unique_key, scheduled_at FROM staged_jobs ORDER BY id") == [
        ("7", "a", run_at + QUIET),
        ("7", "a", run_at + QUIET),
        ("n1", None, run_at),
        ("n2", None, run_at),
    ]


def test_two_jobs_of_one_key_never_wait_under_concurrency(shop: Shop) -> None:
    done = threading.Event()

    def stage_all(number: int) -> None:
        with psycopg.connect(shop.url, autocommit=True) as connection:
            for step in range(100):
                keep: Any = "last" if (step + number) % 3 == 0 else "first"
                stage(connection, "m.f", [step], unique_key=str(step % 5), keep=keep)

    def work() -> None:
        with postgres.connect(shop.url, "worker") as connection:
            while not done.is_set():
                for job_id in shop.waiting[:1]:
                    claim = claims.claim(connection, job_id, worker="w", limits={})
                    if claim is not None:
                        finishes.finish(connection, claim)

    stagers = [threading.Thread(target=stage_all, args=(number,)) for number in range(3)]
    worker = threading.Thread(target=work)
    for thread in (*stagers, worker):
        thread.start()
    while any(thread.is_alive() for thread in stagers):
        shop.enqueuer.run_once()
        assert query(shop.url, TWO_WAIT) == []
    done.set()
    worker.join()
    shop.drain()
    assert query(shop.url, TWO_WAIT) == []
    assert query(
        shop.url, "SELECT (SELECT count(*) FROM inflight_jobs) + (SELECT count(*) FROM finished_jobs)"
    ) == [(300,)]
    assert shop.is_sound()
