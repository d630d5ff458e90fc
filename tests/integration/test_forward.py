from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from redis import Redis
from rq import SimpleWorker
from rq.job import Job

from drain import stage
from drain.embedded import EmbeddedRedis
from drain.errors import UnavailableError
from drain.transitions import staged
from drain.wire import Wire
from tests.support import ids_in, new_enqueuer, pushed, pushed_jobs, query, stage_jobs

FORWARD = frozenset({"mail"})
NOBODY_LISTENS = "redis://127.0.0.1:1/0"
calls: list[tuple[Any, ...]] = []


def send(*args: Any, **kwargs: Any) -> None:
    """The user's own function; plain RQ calls it."""
    calls.append((args, kwargs))


@pytest.fixture
def own_redis() -> Iterator[EmbeddedRedis]:
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


def test_a_row_stays_while_nobody_serves_redis(database_url: str, redis_url: str) -> None:
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
        with pytest.raises(UnavailableError, match="OOM"):
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

    monkeypatch.setattr(staged, "forward", refuse)
    with pytest.raises(psycopg.OperationalError):
        drain(database_url, redis_url)

    assert pushed(redis_url, "mail") == []


def test_a_job_is_in_redis_before_its_row_is_gone(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = stage_jobs(database_url, 2, queue="mail")
    push = Wire.push

    def push_and_look(*given: Any) -> None:
        push(*given)
        assert ids_in(database_url, "staged_jobs") == ids

    monkeypatch.setattr(Wire, "push", push_and_look)
    drain(database_url, redis_url)

    assert pushed_jobs(redis_url, "mail") == ids
    assert ids_in(database_url, "staged_jobs") == []


UNREADABLE = {
    "a number of 5,000 digits": f"[{'9' * 5_000}]",
    "nesting that Python gives up on": "[" * 5_000 + "]" * 5_000,
}


@pytest.mark.parametrize("job_args", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_row_that_cannot_be_encoded_is_dead_and_the_rest_of_its_batch_is_pushed(
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
        patch.setattr(Wire, "push", then(Wire.push, interrupt))
        with pytest.raises(KeyboardInterrupt):
            drain(database_url, redis_url)
    assert ids_in(database_url, "staged_jobs") == ids

    drain(database_url, redis_url)

    assert pushed_jobs(redis_url, "mail") == [*ids, *ids]
    assert len(set(pushed(redis_url, "mail"))) == len(ids)


def interrupt() -> None:
    raise KeyboardInterrupt


def then(first: Callable[..., Any], second: Callable[[], None]) -> Callable[..., None]:
    def both(*given: Any) -> None:
        first(*given)
        second()

    return both
