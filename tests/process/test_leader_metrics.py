"""What the leader measures beside its work: arrivals, tags, and what its tables cost PostgreSQL."""

import math
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families as read_text

from drain import metrics, stage
from drain.enqueuer import gauges as gauges_module, optional_gauge
from drain.enqueuer.enqueuer import Enqueuer
from drain.enqueuer.gauges import Gauges, ServerGauges, TagGauges
from drain.enqueuer.optional_gauge import OptionalGauge
from drain.enqueuer.pacer import Pacer
from drain.enqueuer.redelivery import Redelivery
from drain.enqueuer.waits import Waits
from drain.read import table_stats, tags
from drain.service.versions import versions
from drain.tables.columns import id_array
from tests.database.test_query_plans import many_inflight_rows, many_staged_rows, scans
from tests.helpers import (
    PATIENCE_SECONDS,
    ask,
    disconnect,
    drain_command,
    environment,
    free_port,
    new_enqueuer,
    query,
    stage_jobs,
    wait_until,
)
from tests.process.test_work_metrics import OPENMETRICS, PROMTOOL, scrape

__all__ = ["many_inflight_rows", "many_staged_rows"]

# Complaints of promtool about names that are what they say.
LINTS = [
    f'drain_dropped_days_{end} use base unit "seconds" instead of "days"' for end in ("total", "created")
]
HOSTILE = 'a"b\\c\n# TYPE drain_leader counter\né'


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pacer, "is_due", lambda _: True)


@pytest.fixture
def leading(database_url: str, redis_url: str) -> Iterator[Enqueuer]:
    with new_enqueuer(database_url, redis_url) as enqueuer:
        yield enqueuer


def value(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def labels_of(name: str, label: str) -> set[str]:
    (family,) = [each for each in REGISTRY.collect() if each.name == name]
    return {sample.labels[label] for sample in family.samples}


def test_arrivals_are_counted_by_queue_and_name(leading: Enqueuer, database_url: str) -> None:
    before = value("drain_arrived_jobs_total", queue="arrivals", job_name=HOSTILE) or 0.0
    stage_jobs(database_url, 30, job=HOSTILE, queue="arrivals")
    stage_jobs(database_url, 2, job="m.g", queue="arrivals")
    stage_jobs(database_url, 1, job="m.h", queue="arrivals", run_in=3600)
    leading.drain()
    assert value("drain_arrived_jobs_total", queue="arrivals", job_name=HOSTILE) == before + 30
    assert value("drain_arrived_jobs_total", queue="arrivals", job_name="m.g") == 2
    assert value("drain_arrived_jobs_total", queue="arrivals", job_name="m.h") is None
    # As many again are not counted when they are only pushed again.
    Redelivery(leading, lost_after_seconds=0).recover()
    assert value("drain_arrived_jobs_total", queue="arrivals", job_name="m.g") == 2


def test_forwarded_jobs_count_as_arrived(database_url: str, redis_url: str) -> None:
    stage_jobs(database_url, 3, job="m.forwarded", queue="forwarded")
    with new_enqueuer(database_url, redis_url, forward_queues=frozenset({"forwarded"})) as enqueuer:
        enqueuer.drain()
    assert value("drain_arrived_jobs_total", queue="forwarded", job_name="m.forwarded") == 3


def test_names_beyond_the_bound_share_a_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_MOST_PAIRS", len(metrics._pairs) + 1)
    metrics.count_arrived({("bounded", "m.first"): 1})
    metrics.count_arrived({("bounded", "m.second"): 2, ("bounded", "m.third"): 3, ("bounded", "m.first"): 4})
    assert value("drain_arrived_jobs_total", queue="bounded", job_name="m.first") == 5
    assert value("drain_arrived_jobs_total", queue="bounded", job_name=metrics.OTHERS) == 5


def test_expired_jobs_are_counted_by_queue(leading: Enqueuer, database_url: str) -> None:
    stage_jobs(database_url, 3, queue="expiring")
    query(database_url, "UPDATE staged_jobs SET expires_at = now() - interval '1 second'")
    leading.drain()
    assert value("drain_expired_jobs_total", queue="expiring") == 3


def test_tags_of_staged_and_delivered_jobs_are_counted(leading: Enqueuer, database_url: str) -> None:
    gauges = TagGauges()
    stage_jobs(database_url, 3, tag="import", queue="mail")
    stage_jobs(database_url, 2, tag=HOSTILE, queue="video")
    stage_jobs(database_url, 5, queue="mail")
    leading.drain()
    stage_jobs(database_url, 4, tag="import", queue="video", priority=10)
    stage_jobs(database_url, 9, tag="import", queue="video", run_in=3600)
    query(
        database_url, "UPDATE inflight_jobs SET scheduled_at = now() - interval '1 hour', staged_at = now()"
    )
    query(
        database_url,
        "UPDATE inflight_jobs SET staged_at = now() - interval '1 hour' WHERE tag = 'import'",
    )
    gauges.run_once(leading.connection, ["mail", "video"])
    assert value("drain_tag_waiting_jobs", tag="import") == 7
    assert value("drain_tag_waiting_jobs", tag=HOSTILE) == 2
    assert labels_of("drain_tag_waiting_jobs", "tag") == {"import", HOSTILE}
    assert value("drain_tag_wait_seconds", tag="import") == pytest.approx(3600, abs=600)
    assert (value("drain_tag_wait_seconds", tag=HOSTILE) or 0) < 600

    query(database_url, "DELETE FROM inflight_jobs WHERE tag <> 'import'")
    gauges.run_once(leading.connection, ["mail", "video"])
    assert labels_of("drain_tag_waiting_jobs", "tag") == {"import"}
    gauges.clear()
    assert labels_of("drain_tag_wait_seconds", "tag") == set()


def test_only_the_largest_tags_are_shown(
    leading: Enqueuer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gauges_module, "_TAGS", 2)
    for number in range(1, 5):
        stage_jobs(database_url, number, tag=f"tag {number}")
    gauges = TagGauges()
    gauges.run_once(leading.connection, [])
    assert labels_of("drain_tag_waiting_jobs", "tag") == {"tag 3", "tag 4"}
    gauges.clear()


def test_counting_tags_reads_only_the_first_staged_rows(many_staged_rows: str) -> None:
    assert scans_of_tags(many_staged_rows) <= 200


def test_counting_tags_reads_only_the_first_delivered_rows(many_inflight_rows: str) -> None:
    assert scans_of_tags(many_inflight_rows) <= 200


def scans_of_tags(database_url: str) -> int:
    """Number of rows that a count of tags looks at, in two indexes."""
    parameters = {
        "queues": ["a", "b"],
        "kinds": id_array([0]),
        "lanes": ["default"],
        "most": 100,
        "tags": 100,
    }
    read = scans(database_url, tags.COUNT_TAGS, parameters)
    assert read.keys() <= {"staged_jobs_in_lanes", "inflight_jobs_delivered"}
    return sum(read.values())


def test_the_footprint_of_the_tables_is_measured(leading: Enqueuer, database_url: str) -> None:
    gauges = ServerGauges()
    gauges.run_once(leading.connection)
    wal = value("drain_wal_bytes_total") or 0.0
    stage_jobs(database_url, 500)
    leading.drain()
    query(database_url, "DELETE FROM inflight_jobs")
    # A session reports at its end what it has deleted, and within ten seconds otherwise.
    disconnect()

    def measured() -> bool:
        gauges.run_once(leading.connection)
        return (value("drain_table_dead_rows", table="inflight_jobs") or 0) >= 500

    wait_until(measured, PATIENCE_SECONDS)
    assert labels_of("drain_table_bytes", "table") == set(table_stats.TABLES)
    assert (value("drain_table_bytes", table="finished_jobs") or 0) > 0
    assert (value("drain_table_bytes", table="inflight_jobs") or 0) > 500 * 100
    assert (value("drain_wal_bytes_total") or 0) > wal + 500 * 100
    assert (value("drain_ready_partitions") or 0) in (1, 2)
    gauges.clear()
    assert labels_of("drain_table_bytes", "table") == set()
    assert math.isnan(value("drain_oldest_transaction_seconds") or 0)


def test_a_transaction_that_keeps_vacuum_back_is_seen(leading: Enqueuer, database_url: str) -> None:
    gauges = ServerGauges()
    with psycopg.connect(database_url) as reading:
        reading.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reading.execute("SELECT count(*) FROM dead_jobs")

        def is_seen() -> bool:
            gauges.run_once(leading.connection)
            return (value("drain_oldest_transaction_seconds") or 0) > 0.05

        wait_until(is_seen, PATIENCE_SECONDS)
    wait_until(lambda: not is_seen(), PATIENCE_SECONDS)
    gauges.clear()


def test_a_transaction_of_another_database_is_not_measured(
    leading: Enqueuer, empty_database_url: str
) -> None:
    with psycopg.connect(empty_database_url) as elsewhere:
        elsewhere.execute("SELECT pg_current_xact_id()")
        assert table_stats.oldest_transaction_seconds(leading.connection) == 0.0


def test_a_refused_measurement_is_one_warning_and_stops_nothing(
    leading: Enqueuer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optional_gauge, "_REFUSED_PAUSE_SECONDS", 0.0)
    statements = ["SELECT pg_no_such_function()", "SELECT 1 / 0", "SELECT 1"]

    def measure(connection: Any) -> None:
        connection.execute(statements.pop(0).encode())

    gauge = OptionalGauge("drain_something", measure)
    for _ in range(3):
        gauge.run_once(leading.connection)
    assert not statements
    (line,) = [record.getMessage() for record in caplog.records if "drain_something" in record.getMessage()]
    assert line == "drain_something is not measured (function pg_no_such_function() does not exist)"


def test_a_lost_connection_ends_the_term(leading: Enqueuer) -> None:
    def lose(connection: Any) -> None:
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(psycopg.OperationalError):
        OptionalGauge("drain_something", lose).run_once(leading.connection)


def test_sizes_are_skipped_while_a_partition_is_locked(leading: Enqueuer, database_url: str) -> None:
    gauges = ServerGauges()
    with psycopg.connect(database_url) as owner:
        owner.execute("LOCK TABLE finished_jobs IN ACCESS EXCLUSIVE MODE")
        gauges.run_once(leading.connection)
        assert value("drain_table_bytes", table="inflight_jobs") is None
        assert value("drain_table_dead_rows", table="finished_jobs") is not None
    gauges.clear()


def test_a_standby_has_no_gauge_of_a_leader(leading: Enqueuer, database_url: str) -> None:
    stage_jobs(database_url, tag="import")
    redelivery = Redelivery(leading)
    gauges = Gauges(leading.redis)
    gauges.begin(leading.connection)
    (shown,) = [each for each in REGISTRY.collect() if each.name == "drain_build_info"]
    (sample,) = shown.samples
    assert (sample.labels["version"], sample.labels["python"]) == versions()
    assert sample.labels["postgres"].split(".")[0].isdigit()
    gauges.run_once(leading, Waits(leading, redelivery))
    assert value("drain_staged_jobs") == 1
    assert labels_of("drain_tag_waiting_jobs", "tag") == {"import"}
    assert labels_of("drain_flows", "state") == {"running", "paused", "failing", "failed"}

    gauges.clear()
    assert [value(f"drain_{name}") for name in ("leader", "lag_seconds", "staged_jobs")] == [0, 0, 0]
    assert [value(f"drain_{name}_seconds") for name in ("failing_flow", "overdue_wait")] == [0, 0]
    for name, label in (
        *(("tag_waiting_jobs", "tag"), ("table_dead_rows", "table"), ("redis_depth", "queue")),
        ("flows", "state"),
    ):
        assert labels_of(f"drain_{name}", label) == set()


@contextmanager
def running(database_url: str, redis_url: str) -> Iterator[int]:
    port = free_port()
    env = environment(database_url, redis_url)
    with drain_command("run", "--metrics-port", str(port), env=env) as command:
        wait_until(lambda: command.events("leading"), PATIENCE_SECONDS)
        yield port


@pytest.mark.usefixtures("processes")
def test_the_leaders_port_serves_all_metrics_in_both_formats(database_url: str, redis_url: str) -> None:
    with psycopg.connect(database_url) as connection:
        stage(connection, HOSTILE, tag=HOSTILE, queue="mail")
    with running(database_url, redis_url) as port:
        wait_until(lambda: "drain_tag_waiting_jobs{" in scrape(port), PATIENCE_SECONDS)
        text = scrape(port)
        found = {each.name: each for each in read_text(text)}
        (arrived,) = [each for each in found["drain_arrived_jobs"].samples if each.name.endswith("_total")]
        assert (arrived.labels, arrived.value) == ({"queue": "mail", "job_name": HOSTILE}, 1)
        assert found["drain_tag_waiting_jobs"].samples[0].labels == {"tag": HOSTILE}
        assert found["drain_leader"].samples[0].value == 1
        assert len(found["drain_table_dead_rows"].samples) == len(table_stats.TABLES)
        opened = scrape(port, OPENMETRICS)
        assert opened.endswith("# EOF\n")
        assert "drain_wal_bytes_total" in opened
        assert ask(port, "/healthz") == (200, "ok\n")
        if PROMTOOL is not None:
            checked = subprocess.run(
                [PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, check=False
            )
            complaints = [line for line in checked.stderr.splitlines() if line not in LINTS]
            assert (checked.stdout, complaints) == ("", [])
