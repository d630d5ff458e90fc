"""Very many names of queues: the work of a batch stays bounded, and other queues do not wait behind them."""

from datetime import UTC, datetime, timedelta

import pytest
from redis import Redis

from drain.database import postgres
from drain.enqueuer import oldest_deliveries
from drain.enqueuer.crowd import MOST_KNOWN
from drain.enqueuer.redelivery import Redelivery
from drain.read import queues, system, waiting_by_cause
from drain.wire.keys import queue_key
from tests.helpers import new_enqueuer, pushed, query, stage_jobs, wait_until

MANY = 5000


def stage_crowd(database_url: str) -> None:
    query(
        database_url,
        "INSERT INTO staged_jobs (job_name, queue) SELECT 'm.f', 'tenant-' || n FROM generate_series(1, %s) AS n",
        MANY,
    )


def staged(database_url: str, queue: str) -> int:
    ((number,),) = query(database_url, "SELECT count(*) FROM staged_jobs WHERE queue = %s", queue)
    return int(number)


def test_a_queue_that_is_in_use_does_not_wait_behind_a_crowd(database_url: str, redis_url: str) -> None:
    with new_enqueuer(database_url, redis_url) as enqueuer:
        stage_jobs(database_url, queue="used")
        enqueuer.drain()
        stage_crowd(database_url)
        enqueuer.run_once()
        stage_jobs(database_url, 10, queue="used")
        batches = 0
        while staged(database_url, "used"):
            assert enqueuer.run_once()
            batches += 1
            assert len(enqueuer.places) <= MOST_KNOWN
        # A batch has two rows of each lane.
        assert batches <= 5
        enqueuer.flush()


def test_each_lane_of_a_crowd_has_its_turn_and_a_new_one_too(database_url: str, redis_url: str) -> None:
    with new_enqueuer(database_url, redis_url, batch_size=700) as enqueuer:
        stage_crowd(database_url)
        enqueuer.run_once()
        stage_jobs(database_url, 10, queue="zz-new")
        stage_jobs(database_url, 10, queue="zz-patient", priority=5)
        assert enqueuer.drain() > MANY - 700
        assert query(database_url, "SELECT count(*) FROM inflight_jobs") == [(MANY + 20,)]
        # The crowd is gone, and a search finds a lane with its first rows again.
        stage_jobs(database_url, queue="afterwards")
        assert enqueuer.drain() == 1
        assert not enqueuer._due_rows._urgent.crowd


def test_the_status_counts_small_queues_of_a_crowd_together(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "MOST_QUEUES", 2)
    monkeypatch.setattr(waiting_by_cause, "_MOST_QUEUES", 2)
    for number, queue in enumerate(["a", "b", "c", "y", "z"]):
        stage_jobs(database_url, number + 1, queue=queue)
    stage_jobs(database_url, queue="c", run_at=datetime.now(UTC) + timedelta(hours=1))
    with postgres.connect(database_url, "a test") as connection:
        status = system.read(connection)
    shown = system.with_others(status.queues)
    assert {queue: each.staged for queue, each in shown.items()} == {"z": 5, "y": 4, system.OTHERS: 7}
    assert shown["z"].waiting == {"due": 5}
    assert (status.total("ready"), status.total("scheduled")) == (15, 1)


def test_the_number_of_queues_counted_by_cause_is_bounded(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_by_cause, "_MOST_QUEUES", 2)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        for queue in ["a", "b", "c", "z"]:
            stage_jobs(database_url, queue=queue)
        enqueuer.drain()
        for queue in ["a", "b", "c", "z"]:
            stage_jobs(database_url, queue=queue)
        connection = enqueuer.connection
        assert len(waiting_by_cause.count_waiting(connection, 10)) == 4
        counted = waiting_by_cause.count_waiting(connection, 10, named=["z"])
        assert set(counted) <= {"a", "b", "z"}
        assert counted["z"] == waiting_by_cause.count_waiting(connection, 10)["z"]


def test_lost_deliveries_of_very_many_queues_are_found_in_turn(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oldest_deliveries, "_MOST_QUEUES", 2)
    queues = ["a", "b", "c", "d", "e"]
    with new_enqueuer(database_url, redis_url) as enqueuer, Redis.from_url(redis_url) as client:
        redelivery = Redelivery(enqueuer, lost_after_seconds=0)
        redelivery.recover()
        for queue in queues:
            stage_jobs(database_url, queue=queue)
        enqueuer.drain()
        client.delete(*(queue_key(queue) for queue in queues))

        def are_pushed() -> bool:
            redelivery.run_once()
            assert len(redelivery._lost._oldest.looked_at) <= 2
            return [len(pushed(redis_url, queue)) for queue in queues] == [1] * len(queues)

        wait_until(are_pushed)
