"""The leader knows how long the oldest job of each queue has waited, at the price of a few look-ups."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from redis import Redis
from rq import SimpleWorker

from drain import metrics
from drain.admission.admission import Admission
from drain.enqueuer import waits
from drain.enqueuer.redelivery import Redelivery
from drain.enqueuer.waits import Waits
from drain.tables import lanes
from drain.tables.waiting import DUE_RETRIES
from tests.database.test_query_plans import (
    WHOLE_LANE,
    many_inflight_rows,
    many_staged_rows,
    many_waiting_rows,
    scans,
)
from tests.helpers import (
    ask,
    drain_command,
    environment,
    free_port,
    new_enqueuer,
    query,
    stage_jobs,
    wait_until,
)

__all__ = ["many_inflight_rows", "many_staged_rows", "many_waiting_rows"]

AN_HOUR = 3600.0


@contextmanager
def leader(database_url: str, redis_url: str) -> Iterator[tuple[Redelivery, Waits]]:
    with new_enqueuer(database_url, redis_url) as enqueuer:
        redelivery = Redelivery(enqueuer)
        redelivery.recover()
        enqueuer.drain()
        redelivery.run_once()
        yield redelivery, Waits(enqueuer, redelivery)


def long_ago(database_url: str, table: str, *columns: str, where: str = "true") -> None:
    older = ", ".join(f"{column} = {column} - interval '1 hour'" for column in columns)
    query(database_url, f"UPDATE {table} SET {older} WHERE {where}")


def test_a_delivered_job_has_waited_since_it_was_due(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url, 3, queue="mail")
    stage_jobs(database_url, queue="video")
    long_ago(database_url, "staged_jobs", "staged_at", "scheduled_at", where="queue = 'mail'")
    with leader(database_url, redis_url) as (redelivery, found):
        waited = found.measure()
        assert waited.keys() == {"mail", "video"}
        assert waited["mail"] == pytest.approx(AN_HOUR, abs=600)
        assert waited["video"] < 600

        query(
            database_url,
            "UPDATE inflight_jobs SET lease_expires_at = now() + interval '1 hour', claimed_at = now()",
        )
        redelivery.run_once()
        assert found.measure() == {}


def test_a_staged_job_has_waited_since_it_was_due_whatever_its_priority(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admission, "room", lambda *_: 0)
    with leader(database_url, redis_url) as (redelivery, found):
        stage_jobs(database_url, 200)
        stage_jobs(database_url, queue="bulk", priority=100)
        long_ago(database_url, "staged_jobs", "staged_at", "scheduled_at", where="queue = 'bulk'")
        query(
            database_url,
            "INSERT INTO staged_jobs (job_name, queue, scheduled_at) VALUES ('m.f', 'later', now() + interval '1 day')",
        )
        assert redelivery.enqueuer.run_once() == 0

        waited = found.measure()

    assert waited["bulk"] == pytest.approx(AN_HOUR, abs=600)
    assert waited["default"] < 600
    assert "later" not in waited


def test_a_retry_has_waited_since_its_time_came(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url, 2)
    stage_jobs(database_url, queue="later")
    with leader(database_url, redis_url) as (_, found):
        query(
            database_url,
            "UPDATE inflight_jobs SET claimed_at = now(), next_run_at = now() + "
            "CASE queue WHEN 'default' THEN interval '-1 hour' ELSE interval '1 hour' END",
        )

        waited = found.measure()

    assert waited.keys() == {"default"}
    assert waited["default"] == pytest.approx(AN_HOUR, abs=600)


def test_a_later_attempt_waits_since_the_leader_first_saw_its_delivery(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_jobs(database_url)
    with leader(database_url, redis_url) as (_, found):
        # It deferred itself for an hour, and has just been delivered again.
        query(database_url, "UPDATE inflight_jobs SET claimed_at = now() - interval '1 hour'")
        long_ago(database_url, "inflight_jobs", "moved_at")
        now = [1000.0]
        monkeypatch.setattr(waits, "monotonic", lambda: now[0])
        assert found.measure() == {"default": 0.0}
        now[0] += 7
        assert found.measure() == {"default": 7.0}
        query(database_url, "UPDATE inflight_jobs SET delivery = delivery + 1")
        assert found.measure() == {"default": 0.0}


def test_a_role_with_outdated_rights_is_reported_once_and_still_drains(
    database_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with leader(database_url, redis_url) as (_, found):

        def refuse(_queues: object) -> dict[str, float]:
            raise psycopg.errors.InsufficientPrivilege("permission denied for table inflight_jobs")

        monkeypatch.setattr(found, "_measure_all", refuse)
        assert [found.measure(), found.measure()] == [{}, {}]

    (line,) = caplog.messages
    assert "drain roles --apply" in line


def test_queues_beyond_the_first_thousand_share_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_labels", set())
    monkeypatch.setattr(metrics, "_MOST_QUEUES", 2)

    labels = Waits.by_label({"a": 1.0, "b": 2.0, "c": 3.0, "d": 5.0}, ["idle"])

    assert labels == {"idle": 0.0, "a": 1.0, "b": 2.0, metrics.OTHER_QUEUES: 5.0}


@pytest.mark.usefixtures("processes")
def test_the_port_serves_waits_and_workers_of_each_queue(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url, queue="mail")
    long_ago(database_url, "staged_jobs", "staged_at", "scheduled_at")
    with Redis.from_url(redis_url) as client:
        SimpleWorker(["mail"], connection=client).register_birth()  # type: ignore[no-untyped-call]
    port = free_port()

    def value(name: str) -> float:
        lines = ask(port, "/metrics")[1].splitlines()
        values = [line.split()[1] for line in lines if line.startswith(f'{name}{{queue="mail"}} ')]
        return float(values[0]) if values else -1

    with drain_command(
        "run", "--metrics-port", str(port), env=environment(database_url, redis_url)
    ) as command:
        wait_until(lambda: command.events("leading"))
        wait_until(lambda: value("drain_wait_seconds") > 3000)
        assert value("drain_queue_workers") == 1


# --- a few look-ups


def test_measuring_deliveries_takes_one_lookup_per_queue(many_inflight_rows: str) -> None:
    assert scans(many_inflight_rows, waits._DELIVERED, (["a", "b"], [0, 0])) == {"inflight_jobs_delivered": 2}


def test_measuring_retries_takes_one_lookup_per_queue(many_waiting_rows: str) -> None:
    found = scans(many_waiting_rows, DUE_RETRIES)

    assert set(found) == {"inflight_jobs_waiting"}
    assert sum(found.values()) <= 4


def test_measuring_staged_jobs_reads_the_first_hundred_of_each_priority(
    many_staged_rows: str,
) -> None:
    found = scans(many_staged_rows, lanes.OLDEST_DUE, WHOLE_LANE)

    assert set(found) == {"staged_jobs_in_lanes"}
    assert sum(found.values()) <= 110
