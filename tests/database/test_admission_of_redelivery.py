"""Retries, and jobs whose lease is over, begin under the rules of their queue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from drain import metrics, queues
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.redelivery import Redelivery
from drain.tables import redeliveries
from tests.admitting import QUEUE, stage
from tests.database.test_redelivery import AGO, claim, end_lease, fail, new_leader
from tests.helpers import pushed_jobs, query, wait_until


def set_rules(database_url: str, queue: str = QUEUE, **rules: Any) -> None:
    with psycopg.connect(database_url) as connection:
        queues.change(connection, queue, rules)


def delivered(database_url: str) -> list[int]:
    """Ids of the jobs that are delivered or claimed, and so run."""
    rows = query(database_url, "SELECT id FROM inflight_jobs WHERE next_run_at IS NULL ORDER BY id")
    return [job_id for (job_id,) in rows]


def lose_workers(database_url: str, ids: list[int]) -> None:
    for job_id in ids:
        assert claim(database_url, job_id)
        end_lease(database_url, job_id, AGO / 10)


def a_round(enqueuer: Enqueuer, redelivery: Redelivery) -> int:
    """Do the work of a leader for one second."""
    enqueuer.look()
    enqueuer.drain()
    return redelivery.run_once()


def rounds_until(enqueuer: Enqueuer, redelivery: Redelivery, condition: Callable[[], bool]) -> None:
    """Do rounds of a leader's work until the condition holds after one, whether or not a round redelivers a job."""

    def is_so() -> bool:
        a_round(enqueuer, redelivery)
        return condition()

    wait_until(is_so)


def test_jobs_of_a_dead_worker_restart_at_the_rate_of_their_queue(database_url: str, redis_url: str) -> None:
    ids, others = stage(database_url, 3), stage(database_url, 2, queue="mail")
    with new_leader(database_url, redis_url) as (enqueuer, redelivery):
        set_rules(database_url, rate="3/h", burst=3)
        lose_workers(database_url, [*ids, *others])
        wait_until(lambda: enqueuer.look() or QUEUE in enqueuer.admission.ruled)
        before = metrics.REDELIVERED.labels("lease")._value.get()

        assert a_round(enqueuer, redelivery) == 2
        for _ in range(5):
            assert a_round(enqueuer, redelivery) == 0
        assert delivered(database_url) == others
        assert metrics.REDELIVERED.labels("lease")._value.get() == before + 5

        set_rules(database_url, rate="1000/s", burst=1000)
        wait_until(lambda: a_round(enqueuer, redelivery) and delivered(database_url) == [*ids, *others])


@pytest.mark.parametrize(
    "rules",
    [{"ordered": True}, {"rate": "1/h", "burst": 1}, {"running_per_key": 1}],
    ids=["order", "rate", "key"],
)
def test_new_rules_apply_to_jobs_waiting_for_a_worker(
    database_url: str, redis_url: str, rules: dict[str, Any]
) -> None:
    ids, others = stage(database_url, 3, key="a"), stage(database_url, 2, queue="mail")
    with new_leader(database_url, redis_url) as (enqueuer, redelivery):
        a_round(enqueuer, redelivery)
        assert delivered(database_url) == [*ids, *others]
        set_rules(database_url, **rules)
        rounds_until(enqueuer, redelivery, lambda: delivered(database_url) == [ids[0], *others])
        # Other changes leave alone what waits.
        deliveries = query(database_url, "SELECT id, delivery FROM inflight_jobs ORDER BY id")
        set_rules(database_url, fair=True)
        rounds_until(enqueuer, redelivery, lambda: _is_fair(enqueuer))
        a_round(enqueuer, redelivery)
        assert query(database_url, "SELECT id, delivery FROM inflight_jobs ORDER BY id") == deliveries


@pytest.mark.parametrize("rules", [{"ordered": True}, {"running": 1}], ids=["order", "limit"])
def test_new_rules_apply_to_a_job_that_was_locked_when_they_came(
    database_url: str, redis_url: str, rules: dict[str, Any]
) -> None:
    # As by a claim of a worker that is killed, or by a cancellation that is rolled back.
    ids, others = stage(database_url, 3, key="a"), stage(database_url, 2, queue="mail")
    with new_leader(database_url, redis_url) as (enqueuer, redelivery):
        a_round(enqueuer, redelivery)
        with psycopg.connect(database_url) as locking:
            locking.execute("SELECT FROM inflight_jobs WHERE id = ANY (%s) FOR UPDATE", (ids[1:],))
            set_rules(database_url, **rules)
            rounds_until(enqueuer, redelivery, lambda: delivered(database_url) == [*ids[1:], *others])
        rounds_until(enqueuer, redelivery, lambda: delivered(database_url) == [ids[0], *others])


def _is_fair(enqueuer: Enqueuer) -> bool:
    return any(row.fair for row in enqueuer.admission._rules.rows.values())


def test_a_job_of_a_dead_worker_needs_exactly_one_slot_again(database_url: str, redis_url: str) -> None:
    set_rules(database_url, running=1)
    (first,) = stage(database_url)
    with new_leader(database_url, redis_url) as (enqueuer, redelivery):
        rounds_until(enqueuer, redelivery, lambda: delivered(database_url) == [first])
        for _ in range(3):
            lose_workers(database_url, [first])
            wait_until(lambda: a_round(enqueuer, redelivery))
        (second,) = stage(database_url)
        for _ in range(3):
            a_round(enqueuer, redelivery)
            assert delivered(database_url) == [first]
        query(database_url, "DELETE FROM inflight_jobs WHERE id = %s", first)
        rounds_until(enqueuer, redelivery, lambda: delivered(database_url) == [second])


def test_a_job_of_a_dead_worker_keeps_its_place_in_its_key(database_url: str, redis_url: str) -> None:
    set_rules(database_url, ordered=True)
    first, _ = stage(database_url, 2, key="a")
    with new_leader(database_url, redis_url) as (enqueuer, redelivery):
        rounds_until(enqueuer, redelivery, lambda: delivered(database_url) == [first])
        lose_workers(database_url, [first])
        wait_until(lambda: a_round(enqueuer, redelivery))

        assert delivered(database_url) == [first]


@pytest.mark.parametrize("change", ["another queue", "a pause"])
def test_a_retry_moved_or_paused_after_its_selection_is_skipped(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    set_rules(database_url, running=5)
    set_rules(database_url, "narrow", running=1)
    (occupant,), (chosen,) = stage(database_url, queue="narrow"), stage(database_url)
    redeliver = redeliveries.redeliver_chosen

    def change_meanwhile(*arguments: object, **options: object) -> list[redeliveries.Redelivered]:
        if change == "another queue":
            query(database_url, "UPDATE inflight_jobs SET queue = 'narrow' WHERE id = %s", chosen)
        else:
            with psycopg.connect(database_url) as connection:
                queues.pause(connection, QUEUE, key="a")
        return redeliver(*arguments, **options)  # type: ignore[arg-type]

    with new_leader(database_url, redis_url) as (enqueuer, redelivery):
        rounds_until(enqueuer, redelivery, lambda: delivered(database_url) == [occupant, chosen])
        query(database_url, "UPDATE inflight_jobs SET key = 'a' WHERE id = %s", chosen)
        fail(database_url, claim(database_url, chosen), timedelta())
        if change == "a pause":
            # Some pause holds, so pauses are looked up.
            with psycopg.connect(database_url) as connection:
                queues.pause(connection, "elsewhere")
        monkeypatch.setattr(redeliveries, "redeliver_chosen", change_meanwhile)
        for _ in range(3):
            assert a_round(enqueuer, redelivery) == 0

    assert delivered(database_url) == [occupant]
    assert pushed_jobs(redis_url, "narrow") == [occupant]


def test_retries_of_many_queues_take_turns_with_staged_jobs(database_url: str, redis_url: str) -> None:
    queues = [f"q{number}" for number in range(4)]
    ids = [job_id for queue in queues for job_id in stage(database_url, queue=queue)]
    with new_leader(database_url, redis_url) as (_, redelivery):
        for job_id in ids:
            fail(database_url, claim(database_url, job_id), AGO)
        for number in range(1, len(ids) + 1):
            assert delivered(database_url) == ids[: number - 1]
            # No time is left after the first queue.
            assert redelivery.run_once(0.0) == 1
            assert redelivery.is_held_back
        assert delivered(database_url) == ids
        assert redelivery.run_once(0.0) == 0
        assert not redelivery.is_held_back


def test_the_queue_served_most_recently_comes_last(database_url: str, redis_url: str) -> None:
    (first,), (other,) = stage(database_url, queue="a"), stage(database_url, queue="b")
    with new_leader(database_url, redis_url) as (_, redelivery):
        for job_id in (first, other):
            fail(database_url, claim(database_url, job_id), AGO)
        assert redelivery.run_once(0.0) == 1
        # It fails again at once, and may not use up the turn of the other queue each time.
        fail(database_url, claim(database_url, first), AGO)
        assert redelivery.run_once(0.0) == 1
        assert delivered(database_url) == [other]
