"""A job that raises RateLimited: it waits, and its key pauses for everybody, in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from drain.tables import outcomes, pauses
from drain.workers import RateLimited, current_job, transaction
from tests.helpers import query
from tests.inprocess_worker import Workshop

HELD = "SELECT queue, job_name, key, reason, until > now() + interval '50 s' FROM queue_pauses"


def limited(make: Callable[[], Any] = lambda: 60) -> Callable[[], None]:
    def act() -> None:
        raise RateLimited(retry_after=make())

    return act


def give_key(shop: Workshop, job_id: int, key: str) -> None:
    query(shop.database_url, "UPDATE inflight_jobs SET key = %s WHERE id = %s", key, job_id)


@pytest.mark.parametrize("key", ["acme", None])
@pytest.mark.parametrize(
    "retry_after",
    [lambda: 60, lambda: timedelta(minutes=1), lambda: datetime.now(UTC) + timedelta(minutes=1)],
    ids=["seconds", "timedelta", "time"],
)
def test_a_rate_limited_job_pauses_its_key_or_else_its_queue(
    shop: Workshop, retry_after: Callable[[], Any], key: str | None
) -> None:
    job_id = shop.delivered(limited(retry_after), row={"queue": "calls"}, max_attempts=1)
    if key:
        give_key(shop, job_id, key)
    assert shop.worker.execute(job_id) == "deferred"

    assert query(shop.database_url, HELD) == [("calls", None, key, "rate limited", True)]
    row = shop.row(job_id)
    assert (row["attempts"], row["failed_at"], row["lease_expires_at"]) == (0, None, None)
    (waits,) = query(shop.database_url, "SELECT next_run_at - now() FROM inflight_jobs")[0]
    assert timedelta(seconds=50) < waits <= timedelta(seconds=60)


def test_two_jobs_of_a_key_pause_it_until_the_later_of_their_times(shop: Workshop) -> None:
    for seconds in (60, 1):
        job_id = shop.delivered(limited(partial(int, seconds)), name=f"tests.{seconds}")
        assert shop.worker.execute(job_id) == "deferred"

    assert query(shop.database_url, HELD) == [("default", None, None, "rate limited", True)]


def test_a_stale_token_pauses_nothing(shop: Workshop) -> None:
    def act() -> None:
        shop.take_over(current_job().id)
        raise RateLimited(retry_after=60)

    assert shop.work(shop.delivered(act)) == "stale"
    assert query(shop.database_url, HELD) == []


def test_if_the_pause_cannot_be_recorded_the_claim_stays(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **more: Any) -> None:
        raise psycopg.errors.InsufficientPrivilege

    monkeypatch.setattr(pauses, "pause_for", fail)
    job_id = shop.delivered(limited())
    claim = shop.claim(job_id)
    assert claim is not None
    with (
        psycopg.connect(shop.database_url, autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        outcomes.slow_down(connection, claim, 60.0)
    assert shop.row(job_id)["next_run_at"] is None


def test_what_the_job_wrote_in_its_transaction_is_rolled_back(shop: Workshop) -> None:
    def act() -> None:
        with transaction() as session:
            import sqlalchemy

            session.execute(sqlalchemy.text("INSERT INTO effects (label) VALUES ('no')"))
            raise RateLimited(retry_after=60)

    assert shop.work(shop.delivered(act)) == "deferred"
    assert shop.effects() == []
    assert len(query(shop.database_url, HELD)) == 1


@pytest.mark.parametrize("retry_after", [-1, float("nan"), "30", datetime(2030, 1, 1)], ids=str)  # noqa: DTZ001
def test_an_invalid_time_is_a_failed_attempt(shop: Workshop, retry_after: Any) -> None:
    job_id = shop.delivered(limited(lambda: retry_after))
    assert shop.work(job_id) == "retrying"
    assert shop.row(job_id)["last_error"]["message"].startswith("RateLimited: ")
    assert query(shop.database_url, HELD) == []
