"""PostgreSQL fails over to an asynchronous replica without its last transactions, under programs that go on.

What the replica has is the truth: each of its orders is settled once, and the programs recover without a restart.
"""

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from drain import stage
from tests import jobs_that_fail_over as jobs
from tests.helpers import (
    DRAIN,
    RQ,
    Command,
    connected,
    drain_command,
    end,
    ids_in,
    leading,
    pushed_jobs,
    query,
    run_program,
    wait_until,
)
from tests.jobs_for_tests import EFFECTS
from tests.replicas import HAS_BASEBACKUP, Pair, replicated
from tests.worker_processes import Yard

pytestmark = pytest.mark.skipif(not HAS_BASEBACKUP, reason="this PostgreSQL lacks pg_basebackup")

TABLES = f"{EFFECTS}; CREATE TABLE orders (label text PRIMARY KEY)"
UNFINISHED = "SELECT id FROM staged_jobs UNION ALL SELECT id FROM inflight_jobs"
NOT_PUSHED = "SELECT FROM inflight_jobs, drain_pushed_up_to WHERE delivery > last_value"
WAITS_FOR_REPLICA = """
SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name = 'drain work'
"""
# As after each 32nd id: PostgreSQL logs 32 ahead, which a replica skips.
REPEAT_NEXT_ID = "SELECT setval('staged_jobs_id_seq', last_value) FROM staged_jobs_id_seq"


class Shop:
    """An application whose orders are settled by jobs, and its programs, on one server."""

    def __init__(self, database_url: str, redis_url: str, files: Path) -> None:
        self.url = database_url
        self.yard = Yard(database_url, redis_url)
        self._files = files

    def order(self, label: str, job: object = jobs.settle, *, queue: str = "default") -> int:
        """Commit an order and its job, which waits for `release`; returns the id."""
        connection = connected(self.url)
        with connection.transaction():
            connection.execute("INSERT INTO orders VALUES (%s)", [label])
            return stage(connection, job, [str(self._files / label)], queue=queue)  # type: ignore[arg-type]

    def release(self, *labels: str) -> None:
        for label in labels:
            (self._files / label).touch()

    def has_begun(self, label: str, times: int = 1) -> bool:
        return len(list(self._files.glob(f"{label}.*"))) == times

    def wait_until_begun(self, label: str, times: int = 1) -> None:
        wait_until(lambda: self.has_begun(label, times))

    def settled(self) -> Counter[str]:
        return Counter(Path(path).name for path in self.yard.effects())

    def wait_until_settled(self, *labels: str) -> None:
        wait_until(lambda: self.settled().keys() >= set(labels))

    def leading(self) -> AbstractContextManager[Command]:
        return leading(self._env())

    def working(self, *words: str, **more: str) -> AbstractContextManager[Command]:
        return self.yard.working(*words, "--prefetch", "1", DRAIN_JOBS=jobs.MODULE, **more)

    def working_by_rq(self, queue: str) -> AbstractContextManager[Command]:
        words = ("worker", "--url", self.yard.redis_url, queue)
        return drain_command(*words, env=self._env(), program=RQ)

    def _env(self) -> dict[str, str]:
        # Without workers, lists with a bound would not hold all jobs.
        return self.yard.env(DRAIN_JOBS=jobs.MODULE, DRAIN_DEPTH="0")

    def assert_each_order_is_settled_once(self) -> None:
        wait_until(lambda: not query(self.url, UNFINISHED))
        orders = query(self.url, "SELECT label FROM orders")
        assert self.settled() == Counter(label for (label,) in orders)
        assert ids_in(self.url, "dead_jobs") == []
        run_program(DRAIN, "audit", env=self._env())


@pytest.fixture
def pair(processes: None, temporary_directory: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(tempfile, "tempdir", temporary_directory)
    with replicated() as pair:
        query(pair.url, TABLES)
        yield pair


def test_each_order_that_a_failover_kept_is_settled_once(pair: Pair, redis_url: str, tmp_path: Path) -> None:
    shop = Shop(pair.url, redis_url, tmp_path)
    with ExitStack() as stack:
        leader = stack.enter_context(shop.leading())
        worker = stack.enter_context(shop.working("default", "--processes", "2"))
        programs = [leader, worker]
        shop.order("all kept")
        shop.release("all kept")
        shop.wait_until_settled("all kept")
        shop.order("finish lost")
        shop.order("grouped finish lost", jobs.settle_and_wait)
        shop.wait_until_begun("finish lost")
        shop.wait_until_begun("grouped finish lost")
        claim_lost = shop.order("claim lost", jobs.settle_slowly, queue="slow")
        by_rq = shop.order("claim lost by rq worker", queue="rq")
        wait_until(
            lambda: pushed_jobs(redis_url, "slow") + pushed_jobs(redis_url, "rq") == [claim_lost, by_rq]
        )
        # Or the next leader would push them again at once.
        wait_until(lambda: not query(pair.url, NOT_PUSHED))
        os.kill(leader.pid, signal.SIGSTOP)
        shop.order("move lost")
        move_lost = shop.order("move lost before the claim", queue="slow")
        query(pair.url, REPEAT_NEXT_ID)
        pair.freeze()

        os.kill(leader.pid, signal.SIGCONT)
        order_lost = shop.order("order lost before the claim", queue="slow")
        shop.order("order lost")
        shop.release(
            "finish lost", "move lost", "order lost", "grouped finish lost", "claim lost by rq worker"
        )
        shop.wait_until_settled("finish lost", "move lost", "order lost", "grouped finish lost")
        slow = stack.enter_context(shop.working("slow", DRAIN_DATABASE_URL=pair.url_of_both))
        programs += [slow, stack.enter_context(shop.working_by_rq("rq"))]
        shop.wait_until_begun("claim lost")
        shop.wait_until_settled("claim lost by rq worker")
        wait_until(lambda: pushed_jobs(redis_url, "slow") == [move_lost, order_lost])

        pair.lead_clients_to_replica()
        assert shop.settled() == Counter(["all kept"])
        pair.promote()
        shop.release("grouped finish lost-committed")
        assert shop.order("with the id of a lost one", queue="slow") == order_lost
        shop.release("move lost before the claim", "with the id of a lost one")
        # By another worker, with the number of the lost claim.
        other = stack.enter_context(shop.working("slow"))
        programs.append(other)
        shop.wait_until_begun("claim lost", times=2)
        assert shop.yard.row(claim_lost)["fencing_token"] == 1
        other.signal_all(signal.SIGSTOP)
        shop.release("claim lost")
        wait_until(lambda: slow.events("stale_finish"))
        assert "claim lost" not in shop.settled()
        other.signal_all(signal.SIGCONT)

        shop.assert_each_order_is_settled_once()
        assert worker.events("job_interrupted")
        assert query(pair.url, "SELECT id, fencing_token FROM stale_finishes") == [(claim_lost, 1)]
        assert [end(each) for each in programs] == [0] * len(programs)


def test_no_attempt_begins_before_a_synchronous_replica_has_its_claim(
    pair: Pair, redis_url: str, tmp_path: Path
) -> None:
    shop = Shop(pair.url, redis_url, tmp_path)
    with shop.leading():
        job_id = shop.order("order")
        wait_until(lambda: pushed_jobs(redis_url) == [job_id])
        pair.wait_for_replica()
        pair.freeze()
        with shop.working():
            wait_until(lambda: query(pair.url, WAITS_FOR_REPLICA))
            assert not shop.has_begun("order")
            pair.lead_clients_to_replica()
            pair.promote()
            shop.wait_until_begun("order")
            shop.release("order")
            shop.assert_each_order_is_settled_once()
    # Never by an attempt whose claim is lost.
    assert query(pair.url, "SELECT fencing_token FROM finished_jobs") == [(1,)]
    assert not query(pair.url, "SELECT FROM stale_finishes")


def test_programs_left_on_the_old_primary_only_delay_the_jobs_of_the_new_one(
    pair: Pair, redis_url: str, tmp_path: Path
) -> None:
    old, new = (Shop(server.url, redis_url, tmp_path) for server in (pair.primary, pair.replica))
    labels = [str(number) for number in range(5)]
    with ExitStack() as stack:
        stack.enter_context(old.leading())
        query(old.url, REPEAT_NEXT_ID)
        pair.freeze()
        pair.promote()
        stack.enter_context(new.leading())
        for label in labels:
            assert old.order(f"old {label}") == new.order(f"new {label}")
        wait_until(lambda: len(pushed_jobs(redis_url)) == 2 * len(labels))
        old.release(*(f"{side} {label}" for side in ("old", "new") for label in labels))
        with old.working():
            # It takes the deliveries of both, and runs what the old primary has under their numbers.
            wait_until(lambda: not query(old.url, UNFINISHED) and not pushed_jobs(redis_url))
        assert old.settled() == Counter(f"old {label}" for label in labels)
        assert new.settled() == Counter()
        pair.primary.kill()

        stack.enter_context(new.working())
        new.assert_each_order_is_settled_once()
