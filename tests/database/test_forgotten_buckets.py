"""Buckets of queues that sleep, that lose their rules, or that one leader hands to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from drain.admission import admission, awake, keyed_queue, rates
from drain.admission.rules import Rate, Rules
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.redelivery import Redelivery
from tests.admitting import QUEUE, admitting, claim, finish, ids_of, retry_later, stage
from tests.helpers import new_enqueuer, query, stage_jobs, wait_until


@pytest.fixture
def enqueuer(database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Enqueuer]:
    monkeypatch.setattr(keyed_queue, "_AWAKE_SECONDS", 0)
    monkeypatch.setattr(admission, "_FOLLOW_SECONDS", 0)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        yield enqueuer


def until(enqueuer: Enqueuer, condition: Callable[[], object]) -> None:
    """Let the leader work until a condition holds."""

    def work() -> bool:
        enqueuer.look()
        enqueuer.drain()
        return bool(condition())

    wait_until(work)


def spend(enqueuer: Enqueuer, database_url: str, queue: str, number: int) -> None:
    """Deliver jobs, let them begin, and lose them, so that no table shows them any more."""
    ids = stage_jobs(database_url, number, queue=queue)
    found = "SELECT FROM inflight_jobs WHERE queue = %s"
    until(enqueuer, lambda: len(query(database_url, found, queue)) == number)
    claim(database_url, ids)
    query(database_url, "DELETE FROM inflight_jobs WHERE queue = %s", queue)


def begins_nothing(enqueuer: Enqueuer, database_url: str, queue: str) -> None:
    stage_jobs(database_url, queue=queue)
    until(enqueuer, lambda: queue in enqueuer.admission.awake)
    ruled = enqueuer.admission._queues.awake[queue]
    until(enqueuer, lambda: ruled._streams.has_waiting)
    for _ in range(3):
        enqueuer.look()
        enqueuer.drain()
    assert query(database_url, "SELECT FROM inflight_jobs WHERE queue = %s", queue) == []


def falls_asleep(enqueuer: Enqueuer, queue: str) -> None:
    until(enqueuer, lambda: queue not in enqueuer.admission.awake)


@pytest.mark.parametrize("change", ["running = 50", "fair = true", "rate = '11/h'"])
def test_changed_rules_do_not_refill_the_bucket_of_a_sleeping_queue(
    database_url: str, enqueuer: Enqueuer, change: str
) -> None:
    query(database_url, "INSERT INTO queues (queue, rate, burst) VALUES ('mail', '10/h', 3)")
    spend(enqueuer, database_url, "mail", 3)
    falls_asleep(enqueuer, "mail")
    query(database_url, f"UPDATE queues SET {change} WHERE queue = 'mail'")
    begins_nothing(enqueuer, database_url, "mail")


@pytest.mark.parametrize("gone", ["DELETE FROM queues", "UPDATE queues SET rate = NULL, burst = NULL"])
@pytest.mark.parametrize("asleep", [False, True])
def test_removing_and_restoring_a_rate_does_not_refill_the_bucket(
    database_url: str, enqueuer: Enqueuer, gone: str, *, asleep: bool
) -> None:
    rules = "INSERT INTO queues (queue, rate, burst) VALUES ('mail', '10/h', 3)"
    query(database_url, rules)
    spend(enqueuer, database_url, "mail", 3)
    if asleep:
        falls_asleep(enqueuer, "mail")
    query(database_url, gone)
    enqueuer.look()
    query(
        database_url,
        f"{rules} ON CONFLICT (queue) DO UPDATE SET rate = excluded.rate, burst = excluded.burst",
    )
    begins_nothing(enqueuer, database_url, "mail")


def fill(enqueuer: Enqueuer, queue: str) -> None:
    """Look until the queue has filled its buckets as it may."""
    ruled = enqueuer.admission._queues.wake(queue)
    assert ruled is not None
    until(enqueuer, lambda: ruled.allowances.rates.is_filled)


@pytest.mark.parametrize(
    ("change", "back"),
    [
        ("burst = 1", "burst = 3"),
        ("rate = NULL, rate_per_key = '10/h'", "rate = '10/h', rate_per_key = NULL"),
        ("rate = '1000/s'", "rate = '10/h'"),
        ("rate = NULL, burst = NULL, running = 9", "rate = '10/h', burst = 3, running = NULL"),
    ],
    ids=["burst", "kind", "rate", "limit"],
)
def test_changing_rules_back_and_forth_does_not_refill_the_bucket(
    database_url: str, enqueuer: Enqueuer, change: str, back: str
) -> None:
    query(database_url, "INSERT INTO queues (queue, rate, burst) VALUES ('mail', '10/h', 3)")
    spend(enqueuer, database_url, "mail", 3)
    for changed in (change, "fair = true", back):
        query(database_url, f"UPDATE queues SET {changed} WHERE queue = 'mail'")
        enqueuer.look()
        fill(enqueuer, "mail")
    begins_nothing(enqueuer, database_url, "mail")


def test_a_restored_rate_is_not_exceeded_after_other_rates(database_url: str, enqueuer: Enqueuer) -> None:
    query(database_url, "INSERT INTO queues (queue, rate, burst) VALUES ('mail', '10/h', 9)")
    spend(enqueuer, database_url, "mail", 9)
    for number in range(rates._MOST_EARLIER + 1):
        query(database_url, f"UPDATE queues SET rate = '{11 + number}/h', burst = 1")
        enqueuer.look()
        fill(enqueuer, "mail")
    query(database_url, "UPDATE queues SET rate = '10/h', burst = 9")
    enqueuer.look()
    fill(enqueuer, "mail")
    begins_nothing(enqueuer, database_url, "mail")


def test_rate_changes_of_a_sleeping_queue_leave_nothing_behind(database_url: str, enqueuer: Enqueuer) -> None:
    query(database_url, "INSERT INTO queues (queue, rate, burst) VALUES ('mail', '10/h', 3)")
    spend(enqueuer, database_url, "mail", 3)
    falls_asleep(enqueuer, "mail")
    for number in range(20):
        query(database_url, f"UPDATE queues SET rate = '{11 + number}/h'")
        enqueuer.look()
    sleeping = enqueuer.admission._queues.get("mail")
    assert sleeping is not None
    assert len(sleeping.allowances.rates._earlier) == 1
    begins_nothing(enqueuer, database_url, "mail")


def test_an_awakened_queue_is_charged_from_the_start_of_its_jobs(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Above the time that a look itself may take.
    monkeypatch.setattr(rates, "_CLOCK_JUMP_SECONDS", 0.5)
    with admitting(database_url, Rules(QUEUE, rate=Rate.parse("1/s"), burst=1)) as leader:
        stage(database_url)
        ids = ids_of(leader.admit_all(1))
        leader.queue.look()
        claim(database_url, ids)
        finish(database_url, ids)
        wait_until(
            lambda: query(
                database_url,
                "SELECT FROM finished_jobs WHERE finished_at < clock_timestamp() - interval '2 s'",
            )
        )
        leader.queue.look()
        assert leader.queue.allowances.of_queue() == 1


def test_a_retry_called_back_before_its_claim_returns_its_token(
    database_url: str,
) -> None:
    with admitting(database_url, Rules(QUEUE, rate=Rate.parse("1/h"), burst=2)) as leader:
        stage(database_url)
        ids = ids_of(leader.admit_all(1))
        claim(database_url, ids)
        leader.queue.look()
        retry_later(database_url, ids)
        for is_looked_at in (True, False):
            assert wait_until(leader.redeliver) == ids
            # Not while its queue is paused.
            if is_looked_at:
                leader.queue.look()
            assert leader.queue.allowances.of_queue() == 0
            query(database_url, "UPDATE inflight_jobs SET next_run_at = clock_timestamp()")
            leader.queue.look()
            assert leader.queue.allowances.of_queue() == 1
        assert wait_until(leader.redeliver) == ids
        leader.queue.look()
        claim(database_url, ids)
        retry_later(database_url, ids)
        leader.queue.look()
        assert leader.queue.allowances.of_queue() == 0


def test_a_queue_without_rules_is_forgotten_even_while_its_jobs_wait(
    database_url: str, enqueuer: Enqueuer
) -> None:
    query(database_url, "INSERT INTO queues (queue, rate) VALUES ('mail', '1/h')")
    stage_jobs(database_url, queue="mail")
    until(enqueuer, lambda: query(database_url, "SELECT FROM inflight_jobs"))
    query(database_url, "DELETE FROM queues")
    enqueuer.look()
    assert enqueuer.admission._queues._spent == {}


def test_buckets_that_are_not_full_are_kept_for_any_number_of_queues(
    database_url: str, enqueuer: Enqueuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awake, "MOST_AWAKE", 2)
    names = [f"mail-{number}" for number in range(6)]
    for name in names:
        query(database_url, "INSERT INTO queues (queue, rate, burst) VALUES (%s, '1/h', 1)", name)
        spend(enqueuer, database_url, name, 1)
    for name in names:
        falls_asleep(enqueuer, name)
    for name in names:
        begins_nothing(enqueuer, database_url, name)


def test_full_buckets_are_forgotten(database_url: str, enqueuer: Enqueuer) -> None:
    query(database_url, "INSERT INTO queues (queue, rate, burst) VALUES ('mail', '1000/s', 1)")
    spend(enqueuer, database_url, "mail", 1)
    queues = enqueuer.admission._queues
    found = queues.get("mail")
    assert found is not None
    found.allowances.rates.settle(enqueuer.connection)
    wait_until(lambda: found.allowances.rates.are_full)
    queues.forget("mail")
    assert queues._spent == {}


def test_jobs_that_escape_a_new_rate_block_it_for_one_burst_at_most(database_url: str) -> None:
    """They were delivered before it was set, and claimed before they could be called back."""
    with admitting(database_url, Rules(QUEUE, running=1000)) as leader:
        ids = stage(database_url, 200)
        assert len(leader.admit_all(200)) == 200
        leader.queue.change(Rules(QUEUE, rate=Rate.parse("1/s"), burst=2))
        leader.queue.look()
        claim(database_url, ids)
        leader.queue.count_again()
        assert ids_of(leader.settle(0.01)) == []
        bucket = leader.queue.allowances.rates.bucket
        assert bucket is not None
        now = leader.queue._clock.now()
        assert bucket.next_token_at("", now) - now <= 1


@pytest.mark.parametrize("rules", ["running = 1", "rate = '1/h', burst = 1", "ordered = true"])
def test_a_new_leader_applies_rules_that_its_predecessor_missed(
    database_url: str, redis_url: str, rules: str
) -> None:
    query(database_url, "INSERT INTO queues (queue) VALUES ('mail')")
    with new_enqueuer(database_url, redis_url) as enqueuer:
        stage_jobs(database_url, 5, queue="mail", key="a")
        until(enqueuer, lambda: len(query(database_url, "SELECT FROM inflight_jobs")) == 5)
    query(database_url, f"UPDATE queues SET {rules} WHERE queue = 'mail'")
    waiting = "SELECT count(*) FROM inflight_jobs WHERE next_run_at IS NULL AND claimed_at IS NULL"
    with new_enqueuer(database_url, redis_url) as enqueuer:
        redelivery = Redelivery(enqueuer)
        redelivery.recover()
        assert query(database_url, waiting) == [(0,)]
        until(enqueuer, lambda: redelivery.run_once() >= 0 and query(database_url, waiting) == [(1,)])


def test_repaired_rules_apply_to_jobs_waiting_for_a_worker(database_url: str, enqueuer: Enqueuer) -> None:
    query(database_url, "ALTER TABLE queues DROP CONSTRAINT burst_must_fill_within_a_year")
    query(database_url, "INSERT INTO queues (queue) VALUES ('mail')")
    stage_jobs(database_url, 5, queue="mail")
    until(enqueuer, lambda: len(query(database_url, "SELECT FROM inflight_jobs")) == 5)
    query(database_url, "UPDATE queues SET rate = '1/d', burst = 3000000")
    until(enqueuer, lambda: query(database_url, "SELECT error FROM queues") != [(None,)])
    query(database_url, "UPDATE queues SET rate = NULL, burst = NULL, running = 1")
    until(enqueuer, lambda: "mail" in enqueuer.admission.outdated)
