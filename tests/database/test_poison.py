"""A row that cannot be moved is out of the way, and stops nobody."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from drain.enqueuer.batch_size import AdaptiveBatchSize
from drain.enqueuer.enqueuer import Enqueuer
from drain.tables import lanes, staged
from tests.helpers import (
    ids_in,
    new_enqueuer,
    pushed_jobs,
    query,
    read_by,
    stage_jobs,
)


@pytest.fixture
def unmovable(database_url: str) -> str:
    """Name of a job that inflight_jobs refuses."""
    query(database_url, "ALTER TABLE inflight_jobs ADD CONSTRAINT no_poison CHECK (job_name <> 'poison')")
    return "poison"


@pytest.fixture
def unmovable_and_unburiable(database_url: str, unmovable: str) -> str:
    query(database_url, "ALTER TABLE dead_jobs ADD CONSTRAINT no_poison CHECK (job_name <> 'poison')")
    return unmovable


def locked(somebody: psycopg.Connection, job_id: int) -> None:
    somebody.execute("SELECT FROM staged_jobs WHERE id = %s FOR UPDATE", [job_id])


def hurry(enqueuer: Enqueuer) -> None:
    """Do not wait long for the locks of others."""
    enqueuer.connection.execute("SET lock_timeout = '10ms'")


def test_an_unmovable_row_dies_with_a_reason_and_the_rest_is_pushed(
    database_url: str, redis_url: str, unmovable: str
) -> None:
    before = stage_jobs(database_url, 3)
    (poison,) = stage_jobs(database_url, job=unmovable)
    behind = stage_jobs(database_url, 3)

    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()

    assert pushed_jobs(redis_url) == before + behind
    ((dead, reason, explanation),) = query(database_url, "SELECT id, reason, explanation FROM dead_jobs")
    assert (dead, reason) == (poison, "unreadable")
    assert "no_poison" in explanation
    assert ids_in(database_url, "staged_jobs") == []


def test_an_id_that_is_in_flight_already_does_not_stop_the_rest(database_url: str, redis_url: str) -> None:
    (first,) = stage_jobs(database_url)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()
        query(
            database_url,
            "INSERT INTO staged_jobs (id, job_name) OVERRIDING SYSTEM VALUE VALUES (%s, 'again')",
            first,
        )
        (second,) = stage_jobs(database_url)
        enqueuer.drain()

    assert pushed_jobs(redis_url) == [first, second]
    assert query(database_url, "SELECT job_name FROM inflight_jobs ORDER BY id") == [("m.f",), ("m.f",)]
    assert query(database_url, "SELECT job_name FROM dead_jobs") == [("again",)]


def test_an_unmovable_row_that_cannot_be_buried_blocks_nothing(
    database_url: str, redis_url: str, unmovable_and_unburiable: str
) -> None:
    (stuck,) = stage_jobs(database_url, job=unmovable_and_unburiable)
    others = stage_jobs(database_url, 3)

    with new_enqueuer(database_url, redis_url) as enqueuer:
        # Not drain(): who took the row again and again would do so for ever.
        for _ in range(10):
            enqueuer.run_once()
        others += stage_jobs(database_url, 3)
        for _ in range(10):
            enqueuer.run_once()
        assert enqueuer.run_once() == 0
        enqueuer.flush()

    assert pushed_jobs(redis_url) == others
    assert ids_in(database_url, "staged_jobs") == [stuck]


def test_a_poisoned_batch_takes_fewer_transactions_than_it_has_rows(
    database_url: str, redis_url: str, unmovable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = stage_jobs(database_url, 200)
    stage_jobs(database_url, job=unmovable)
    taken: list[None] = []
    take = lanes.read_due

    def count(*given: Any, **options: Any) -> Any:
        taken.append(None)
        return take(*given, **options)

    read_by(monkeypatch, count)
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()

    assert pushed_jobs(redis_url) == rows
    assert len(taken) < 50


def test_a_batch_with_a_locked_row_and_a_poisoned_one_loses_neither(
    database_url: str, redis_url: str, unmovable: str
) -> None:
    (held,) = stage_jobs(database_url)
    (poison,) = stage_jobs(database_url, job=unmovable)
    others = stage_jobs(database_url, 2)

    with new_enqueuer(database_url, redis_url) as enqueuer, psycopg.connect(database_url) as somebody:
        hurry(enqueuer)
        locked(somebody, held)
        enqueuer.drain()
        assert pushed_jobs(redis_url) == others
        assert ids_in(database_url, "dead_jobs") == [poison]

        somebody.rollback()
        enqueuer.drain()
        assert pushed_jobs(redis_url) == [*others, held]


def make_slow(database_url: str, table: str, *, job: str) -> None:
    """Let each row of this job take 50 ms on its way into the table."""
    query(
        database_url,
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(0.05); RETURN NEW; END $$",
    )
    query(
        database_url,
        f"CREATE TRIGGER dawdle BEFORE INSERT ON {table} FOR EACH ROW "
        f"WHEN (NEW.job_name = '{job}') EXECUTE FUNCTION dawdle()",
    )


def test_a_batch_that_times_out_is_retried_in_parts(database_url: str, redis_url: str) -> None:
    alive: list[None] = []
    heavy = stage_jobs(database_url, 20, job="heavy")
    light = stage_jobs(database_url, 20)
    make_slow(database_url, "inflight_jobs", job="heavy")
    size = AdaptiveBatchSize(2500)

    with new_enqueuer(
        database_url, redis_url, adaptive_batch_size=size, alive=lambda: alive.append(None)
    ) as enqueuer:
        enqueuer.connection.execute("SET statement_timeout = '800ms'")
        enqueuer.run_once()
        assert size.rows < len(heavy) + len(light)
        # Whoever waits for a sign of life waits no longer than for one statement.
        assert len(alive) >= 3
        enqueuer.drain()

    assert pushed_jobs(redis_url) == heavy + light
    assert ids_in(database_url, "dead_jobs") == []


def test_scheduled_rows_that_time_out_together_mature_in_parts(database_url: str, redis_url: str) -> None:
    heavy = stage_jobs(database_url, 20, job="heavy", run_at=datetime(2100, 1, 1, tzinfo=UTC))
    query(database_url, "UPDATE staged_jobs SET scheduled_at = now()")
    (light,) = stage_jobs(database_url)
    make_slow(database_url, "staged_jobs", job="heavy")

    with new_enqueuer(database_url, redis_url, batch_size=20) as enqueuer:
        enqueuer.connection.execute("SET statement_timeout = '800ms'")
        enqueuer.drain()

    assert sorted(pushed_jobs(redis_url)) == [*heavy, light]


def test_a_single_slow_row_is_not_buried(database_url: str, redis_url: str) -> None:
    (heavy,) = stage_jobs(database_url, job="heavy")
    make_slow(database_url, "inflight_jobs", job="heavy")

    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.connection.execute("SET statement_timeout = '10ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            enqueuer.drain()

    assert ids_in(database_url, "staged_jobs") == [heavy]


def test_a_row_that_commits_meanwhile_is_not_mistaken_for_the_poison(
    database_url: str, redis_url: str, unmovable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (poison,) = stage_jobs(database_url, job=unmovable)
    innocent: list[int] = []
    steps: list[str] = []

    def step(name: str, then: Callable[..., Any]) -> Callable[..., Any]:
        def tell_and_do(*given: Any, **options: Any) -> Any:
            steps.append(name)
            # By now the poisoned row has been refused, alone in its batch, and is to be given up.
            if not innocent and (name == "bury" or steps == ["read_due", "read_due", "read_due"]):
                innocent.extend(stage_jobs(database_url, priority=-1))
            return then(*given, **options)

        return tell_and_do

    read_by(monkeypatch, step("read_due", lanes.read_due))
    monkeypatch.setattr(staged, "bury", step("bury", staged.bury))
    with new_enqueuer(database_url, redis_url) as enqueuer:
        enqueuer.drain()

    assert pushed_jobs(redis_url) == innocent
    assert ids_in(database_url, "dead_jobs") == [poison]
