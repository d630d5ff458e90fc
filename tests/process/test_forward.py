from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from redis import Redis
from rq import SimpleWorker
from rq.job import Job

from drain import stage
from drain.embedded import EmbeddedRedis
from drain.enqueuer import due_rows, forwarding
from drain.errors import UnavailableError
from drain.tables import staged
from drain.wire import Delivery, Producer
from tests.helpers import ids_in, new_enqueuer, pushed, pushed_jobs, query, stage_jobs

# What every Redis and Valkey says; each puts other words before it.
NO_MEMORY = "used memory > 'maxmemory'"
FORWARD = frozenset({"mail"})
NOBODY_LISTENS = "redis://127.0.0.1:1/0"
calls: list[tuple[Any, ...]] = []


def send(*args: Any, **kwargs: Any) -> None:
    """The user's own function; plain RQ calls it."""
    calls.append((args, kwargs))


@pytest.fixture
def own_redis(processes: None) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


def test_rq_itself_executes_a_forwarded_job(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(database_url) as connection:
        stage(connection, send, [1, "zwei"], {"drei": [3]}, queue="mail", timeout_seconds=7)
    with new_enqueuer(database_url, redis_url, forward_queues=FORWARD) as enqueuer:
        assert enqueuer.drain() == 1
    assert [ids_in(database_url, f"{state}_jobs") for state in ("staged", "inflight", "dead")] == [[], [], []]

    calls.clear()
    # The process is pytest's: its signal handlers stay.
    monkeypatch.setattr(SimpleWorker, "_install_signal_handlers", lambda _worker: None)
    with Redis.from_url(redis_url) as client:
        (rq_id,) = pushed(redis_url, "mail")
        assert Job.fetch(rq_id, connection=client).timeout == 7
        SimpleWorker(["mail"], connection=client).work(burst=True, logging_level="ERROR")

    assert calls == [((1, "zwei"), {"drei": [3]})]


def test_only_the_queues_that_are_named_are_forwarded(database_url: str, redis_url: str) -> None:
    (forwarded,) = stage_jobs(database_url, queue="mail")
    (tracked,) = stage_jobs(database_url)

    with new_enqueuer(database_url, redis_url, forward_queues=FORWARD) as enqueuer:
        enqueuer.drain()

    assert (pushed_jobs(redis_url, "mail"), pushed_jobs(redis_url)) == ([forwarded], [tracked])
    assert ids_in(database_url, "inflight_jobs") == [tracked]


def drain(database_url: str, redis_url: str) -> None:
    with new_enqueuer(database_url, redis_url, forward_queues=FORWARD) as enqueuer:
        enqueuer.drain()


def test_a_row_stays_while_redis_is_unavailable(database_url: str, redis_url: str) -> None:
    ids = stage_jobs(database_url, 3, queue="mail")

    with pytest.raises(UnavailableError):
        drain(database_url, NOBODY_LISTENS)
    assert ids_in(database_url, "staged_jobs") == ids

    drain(database_url, redis_url)
    assert pushed_jobs(redis_url, "mail") == ids


def test_a_row_stays_while_redis_has_no_memory_left(database_url: str, own_redis: EmbeddedRedis) -> None:
    ids = stage_jobs(database_url, 3, queue="mail")
    with Redis.from_url(own_redis.url) as client:
        client.config_set("maxmemory", "1")
        with pytest.raises(UnavailableError, match=NO_MEMORY):
            drain(database_url, own_redis.url)
        assert ids_in(database_url, "staged_jobs") == ids

        client.config_set("maxmemory", "0")
    drain(database_url, own_redis.url)
    assert pushed_jobs(own_redis.url, "mail") == ids


def test_a_row_that_could_not_be_deleted_was_not_pushed(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_jobs(database_url, queue="mail")

    def refuse(*_: object) -> None:
        raise psycopg.OperationalError("the server is gone")

    monkeypatch.setattr(staged, "delete_forwarded", refuse)
    with pytest.raises(psycopg.OperationalError):
        drain(database_url, redis_url)

    assert pushed(redis_url, "mail") == []


def test_a_job_is_in_redis_before_its_row_is_gone(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = stage_jobs(database_url, 2, queue="mail")
    push = Producer.push_together
    looked: list[list[int]] = []

    def push_and_look(*given: Any) -> list[str]:
        refused = push(*given)
        looked.append(ids_in(database_url, "staged_jobs"))
        return refused

    monkeypatch.setattr(Producer, "push_together", push_and_look)
    drain(database_url, redis_url)

    assert looked == [ids]
    assert pushed_jobs(redis_url, "mail") == ids
    assert ids_in(database_url, "staged_jobs") == []


UNREADABLE = {
    "a number of 5,000 digits": f"[{'9' * 5_000}]",
    "nesting that Python gives up on": "[" * 5_000 + "]" * 5_000,
}


@pytest.mark.parametrize("job_args", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_row_that_cannot_be_encoded_is_dead_and_the_others_are_pushed(
    database_url: str, redis_url: str, job_args: str
) -> None:
    (first,) = stage_jobs(database_url, queue="mail")
    ((poison,),) = query(
        database_url,
        "INSERT INTO staged_jobs (job_name, job_args, queue) VALUES ('m.f', %s, 'mail') RETURNING id",
        job_args,
    )
    (last,) = stage_jobs(database_url, queue="mail")

    drain(database_url, redis_url)

    assert pushed_jobs(redis_url, "mail") == [first, last]
    ((dead, reason, explanation),) = query(database_url, "SELECT id, reason, explanation FROM dead_jobs")
    assert (dead, reason) == (poison, "unreadable")
    assert "cannot be encoded for RQ" in explanation
    assert ids_in(database_url, "staged_jobs") == []


def test_a_crash_between_push_and_commit_pushes_again_and_loses_nothing(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = stage_jobs(database_url, 2, queue="mail")
    with monkeypatch.context() as patch:
        patch.setattr(Producer, "push_together", then(Producer.push_together, interrupt))
        with pytest.raises(KeyboardInterrupt):
            drain(database_url, redis_url)
    assert ids_in(database_url, "staged_jobs") == ids

    drain(database_url, redis_url)

    assert pushed_jobs(redis_url, "mail") == [*ids, *ids]
    assert len(set(pushed(redis_url, "mail"))) == len(ids)


def interrupt() -> None:
    raise KeyboardInterrupt


def then(first: Callable[..., Any], second: Callable[[], None]) -> Callable[..., Any]:
    def both(*given: Any) -> Any:
        done = first(*given)
        second()
        return done

    return both


def no_list(redis_url: str, queue: str) -> None:
    with Redis.from_url(redis_url) as client:
        client.set(f"rq:queue:{queue}", "somebody's string")


def a_list_again(redis_url: str, queue: str) -> None:
    with Redis.from_url(redis_url) as client:
        client.delete(f"rq:queue:{queue}")


def test_only_jobs_of_a_queue_whose_key_is_not_a_list_stay(database_url: str, redis_url: str) -> None:
    no_list(redis_url, "mail")
    refused = stage_jobs(database_url, 3, queue="mail")
    forwarded = stage_jobs(database_url, 3, queue="text")
    tracked = stage_jobs(database_url, 3)

    with new_enqueuer(database_url, redis_url, forward_queues=FORWARD | {"text"}) as enqueuer:
        assert enqueuer.drain() == 6
        assert enqueuer.drain() == 0
    assert (pushed_jobs(redis_url, "text"), pushed_jobs(redis_url)) == (forwarded, tracked)
    assert ids_in(database_url, "staged_jobs") == refused

    a_list_again(redis_url, "mail")
    drain(database_url, redis_url)
    assert pushed_jobs(redis_url, "mail") == refused


def test_a_refused_queue_is_retried_only_after_a_while(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(due_rows, "monotonic", lambda: now[0])
    calls: list[Any] = []
    monkeypatch.setattr(Producer, "push_together", tell(calls, Producer.push_together))
    no_list(redis_url, "mail")
    ids = stage_jobs(database_url, 3, queue="mail")

    with new_enqueuer(database_url, redis_url, forward_queues=FORWARD) as enqueuer:
        for _ in range(3):
            assert enqueuer.drain() == 0
        assert len(calls) == 1
        a_list_again(redis_url, "mail")
        now[0] += due_rows._REFUSED_SECONDS
        assert enqueuer.drain() == 3

    assert pushed_jobs(redis_url, "mail") == ids


def test_jobs_refused_repeatedly_by_redis_are_never_pushed_twice(
    database_url: str, own_redis: EmbeddedRedis
) -> None:
    stage_jobs(database_url, 1000, queue="mail")
    heavy = "SELECT 'm.f', jsonb_build_array(repeat('x', 20000)), 'mail' FROM generate_series(1, 1000)"
    query(database_url, f"INSERT INTO staged_jobs (job_name, job_args, queue) {heavy}")
    everything = ids_in(database_url, "staged_jobs")

    with Redis.from_url(own_redis.url) as client:
        used: Any = client.info("memory")
        client.config_set("maxmemory", used["used_memory"] + 8 * 2**20)
        for _ in range(3):
            with pytest.raises(UnavailableError, match=NO_MEMORY):
                drain(database_url, own_redis.url)
        there = pushed_jobs(own_redis.url, "mail")
        assert there == everything[: len(there)]
        assert ids_in(database_url, "staged_jobs") == everything[len(there) :]

        client.config_set("maxmemory", "0")
    drain(database_url, own_redis.url)
    assert pushed_jobs(own_redis.url, "mail") == everything


def test_a_call_is_limited_to_a_few_megabytes(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(Producer, "push_together", tell(calls, Producer.push_together))
    few = stage_jobs(database_url, 3, queue="mail")
    large = "SELECT 'm.f', jsonb_build_array(repeat('x', 1048000)), 'mail' FROM generate_series(1, 20)"
    query(database_url, f"INSERT INTO staged_jobs (job_name, job_args, queue) {large}")
    ids = ids_in(database_url, "staged_jobs")

    drain(database_url, redis_url)

    sizes = [sum(len(delivery.data) for delivery in deliveries) for _, deliveries in calls]
    assert len(sizes) == 3
    assert max(sizes) <= forwarding._MOST_BYTES
    assert pushed_jobs(redis_url, "mail") == ids
    assert ids[:3] == few


def test_rows_that_exceed_one_call_follow_in_the_next_calls(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(Producer, "push_together", tell(calls, Producer.push_together))
    # Each row is too large to share a call, and goes alone.
    monkeypatch.setattr(forwarding, "_MOST_BYTES", 1)
    mail: list[int] = []
    tracked: list[int] = []
    for _ in range(3):
        mail += stage_jobs(database_url, queue="mail")
        tracked += stage_jobs(database_url)

    with new_enqueuer(database_url, redis_url, forward_queues=FORWARD) as enqueuer:
        assert enqueuer.drain() == 6

    assert [len(deliveries) for _, deliveries in calls] == [1, 1, 1]
    assert (pushed_jobs(redis_url, "mail"), pushed_jobs(redis_url)) == (mail, tracked)
    assert ids_in(database_url, "staged_jobs") == []


def test_more_jobs_than_one_call_carries_leave_in_order(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(Producer, "push_together", tell(calls, Producer.push_together))
    ids = stage_jobs(database_url, 2100, queue="mail")

    with new_enqueuer(database_url, redis_url, forward_queues=FORWARD, batch_size=1500) as enqueuer:
        enqueuer.drain()

    assert [len(deliveries) for _, deliveries in calls] == [1000, 1000, 100]
    assert pushed_jobs(redis_url, "mail") == ids


def tell(calls: list[Any], push: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def tell_and_push(wire: Producer, deliveries: list[Delivery]) -> list[str]:
        calls.append((wire, deliveries))
        return push(wire, deliveries)

    return tell_and_push
