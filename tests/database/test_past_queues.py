"""Names of unused queues are forgotten, by the leader and in Redis, until their next job."""

from typing import Any

import pytest
from redis import Redis

from drain.enqueuer import oldest_deliveries
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.housekeeping import PastQueues
from drain.enqueuer.oldest_deliveries import OldestDeliveries
from drain.enqueuer.pacer import Pacer
from drain.wire.keys import QUEUE_OWNERS, QUEUES, queue_key
from tests.helpers import new_enqueuer, pushed, query, stage_jobs


def drain(database_url: str, enqueuer: Enqueuer, queue: str) -> None:
    stage_jobs(database_url, queue=queue)
    enqueuer.drain()


def test_the_leader_forgets_an_idle_queue_but_finds_its_next_job(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oldest_deliveries, "_FORGET_SECONDS", 0.0)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        oldest = OldestDeliveries(enqueuer.connection, enqueuer.deliveries)
        drain(database_url, enqueuer, "past")
        assert list(oldest.find()) == ["past"]
        query(database_url, "UPDATE inflight_jobs SET lease_expires_at = now() + interval '1 hour'")
        assert oldest.find() == {}
        assert (enqueuer.deliveries.queues, oldest.lower_bounds) == (set(), {})
        drain(database_url, enqueuer, "past")
        assert list(oldest.find()) == ["past"]


def test_redis_forgets_an_empty_queue_until_its_next_job(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pacer, "is_due", lambda _pacer: True)

    def known(client: Redis) -> list[set[str]]:
        entered: Any = client.smembers(QUEUES)
        owned: Any = client.hkeys(QUEUE_OWNERS)
        return [
            {key.decode().removeprefix("rq:queue:") for key in entered},
            {name.decode() for name in owned},
        ]

    with new_enqueuer(database_url, redis_url) as enqueuer, Redis.from_url(redis_url) as client:
        names = ["past", "listed", "watched", "used"]
        for name in names:
            drain(database_url, enqueuer, name)
        client.delete(*(queue_key(name) for name in names if name != "listed"))
        client.sadd("rq:workers:watched", "rq:worker:one")
        enqueuer.deliveries.forget_queues(["past", "listed", "watched"])
        chore = PastQueues(enqueuer)

        # Only at the second look in a row.
        assert [chore.run_once(), chore.run_once(), chore.run_once()] == [0, 1, 0]
        assert known(client) == [{"listed", "watched", "used"}] * 2
        drain(database_url, enqueuer, "past")
        assert known(client) == [set(names)] * 2
        assert len(pushed(redis_url, "past")) == 1
