"""What the log says of a store that goes away is said once, whoever notices."""

import logging
import threading

import psycopg
import pytest
import redis

from drain.database import postgres
from drain.errors import UnavailableError
from drain.wire.connection import reachable
from drain.workers import stores
from drain.workers.stores import POSTGRES, REDIS, QuietWhileAway, Stores, answering, is_outage

URL = "postgresql://nowhere/shop"


def postgres_away(error: psycopg.Error | None = None) -> UnavailableError:
    try:
        with postgres.reachable(URL):
            raise error or psycopg.OperationalError("connection refused")
    except UnavailableError as raised:
        return raised


def redis_away(error: redis.RedisError) -> UnavailableError:
    try:
        with reachable("here"):
            raise error
    except UnavailableError as raised:
        return raised


AWAY = redis_away(redis.ConnectionError("connection refused"))
REFUSED = redis_away(redis.ResponseError("WRONGTYPE"))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO")
    return caplog


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    time = [100.0]
    monkeypatch.setattr(stores, "monotonic", lambda: time[0])
    return time


def events(log: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.event, record.store) for record in log.records]  # type: ignore[attr-defined]


def test_an_outage_is_logged_once_however_many_threads_notice(
    log: pytest.LogCaptureFixture, clock: list[float]
) -> None:
    state = Stores()
    threads = [threading.Thread(target=state.failed, args=(postgres_away(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state.leave(3, postgres_away())
    assert state.is_away(POSTGRES)
    clock[0] += 42
    for _ in range(3):
        state.answered(POSTGRES, clock[0])
    assert events(log) == [("down", "postgresql"), ("up", "postgresql")]
    assert log.messages[-1] == "PostgreSQL is reachable again after 42s; 3 jobs left to redelivery"


def test_an_answer_to_an_earlier_question_does_not_end_an_outage(clock: list[float]) -> None:
    state = Stores()
    state.failed(AWAY)
    state.answered(REDIS, clock[0] - 1)
    assert state.is_away(REDIS)
    state.answered(POSTGRES, clock[0])
    assert state.is_away(REDIS)


def test_redis_is_not_back_while_it_refuses_the_loop_but_answers_others(
    log: pytest.LogCaptureFixture,
) -> None:
    state = Stores()
    for _ in range(3):
        with pytest.raises(UnavailableError), answering(state, REDIS, by_loop=True):
            raise REFUSED
        with answering(state, REDIS):
            pass
    assert events(log) == [("down", "redis")]
    with answering(state, REDIS, by_loop=True):
        pass
    assert events(log) == [("down", "redis"), ("up", "redis")]


def test_a_store_that_comes_and_goes_is_logged_at_intervals(
    log: pytest.LogCaptureFixture, clock: list[float]
) -> None:
    state = Stores()
    for _ in range(20):
        state.failed(AWAY)
        clock[0] += 0.5
        state.answered(REDIS, clock[0])
    assert 1 < len(events(log)) < 6


def test_a_server_that_refuses_a_statement_is_not_unavailable() -> None:
    refused: list[psycopg.Error] = [
        psycopg.errors.QueryCanceled(), psycopg.errors.LockNotAvailable(), psycopg.errors.DeadlockDetected(),
    ]  # fmt: skip
    assert [is_outage(postgres_away(error)) for error in refused] == [False] * 3
    away: list[psycopg.Error] = [
        psycopg.OperationalError("refused"), psycopg.errors.AdminShutdown(), psycopg.errors.CannotConnectNow(),
        psycopg.errors.ReadOnlySqlTransaction(),
    ]  # fmt: skip
    assert [is_outage(postgres_away(error)) for error in away] == [True] * 4
    assert (is_outage(AWAY), is_outage(REFUSED), is_outage(ValueError())) == (True, False, False)


def test_jobs_left_by_an_outage_are_counted_only_in_its_last_line(
    log: pytest.LogCaptureFixture, clock: list[float]
) -> None:
    state = Stores()
    for count in (2, 0):
        state.leave(count, AWAY)
        clock[0] += 10
        state.answered(REDIS, clock[0])
        clock[0] += 10
    state.end()
    lines = [record.getMessage() for record in log.records]
    assert [line.partition("; ")[2] for line in lines if "reachable again" in line] == [
        "2 jobs left to redelivery",
        "",
    ]
    assert len(lines) == 4


def test_a_refused_statement_logs_the_jobs_it_leaves(
    log: pytest.LogCaptureFixture,
) -> None:
    state = Stores()
    state.leave(1, postgres_away(psycopg.errors.QueryCanceled("too slow")))
    assert not state.is_away(POSTGRES)
    assert "1 job left to redelivery" in log.messages[0]


def test_rqs_repeated_complaints_about_an_unavailable_redis_are_one_line(
    log: pytest.LogCaptureFixture,
) -> None:
    """In the words of its thread that listens for commands."""
    changes: list[tuple[str, ...]] = []
    state = Stores(lambda away: changes.append(tuple(away)))
    rq = logging.getLogger("test.rq.worker")
    rq.addFilter(QuietWhileAway(state))
    for _ in range(3):
        error = redis.ConnectionError("Error 111 connecting")
        rq.error(
            "Worker %s: could not connect to Redis instance: %s retrying in %d seconds...", "w", error, 2
        )
    assert events(log) == [("down", "redis")]
    rq.error("Worker %s: something else", "w")
    assert log.messages[1:] == ["Worker w: something else"]
    assert changes == [(REDIS,)]
