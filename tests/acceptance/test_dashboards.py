"""Dashboards of deploy/grafana: each query of each panel has an answer, once a real Prometheus has scraped a real run.

The queries are asked as Grafana would ask them, with the variables filled in. Nothing here draws a panel.
"""

import json
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benchmarks import prometheus
from benchmarks.prometheus import Prometheus
from drain import stage, stage_many
from drain.database import schema
from drain.embedded import services
from tests import jobs_for_tests as jobs
from tests.helpers import (
    ROOT,
    drain_command,
    environment,
    free_port,
    ids_in,
    impatient,
    leading,
    wait_until,
)

pytestmark = pytest.mark.skipif(prometheus.binary() is None, reason="Prometheus is not installed")

DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
# A scrape each second.
FASTER = 15
ANSWER_SECONDS = 20
VARIABLES = {"$__rate_interval": "5s", "$queue": ".*"}
PAUSES = {"drain.enqueuer.gauges._PAUSE_SECONDS": 0.3}


def queries(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Title of the panel and expression of each query, without variables."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield panel["title"], expression


def has_answer(found: list[dict[str, Any]]) -> bool:
    return any(value != "NaN" for series in found for _, value in series["values"])


class Shop:
    """An application whose jobs finish, fail, wait, expire and die."""

    def __init__(self, database_url: str) -> None:
        self.url = database_url

    def stage_of_each_kind(self) -> None:
        gone = datetime.now(UTC) - timedelta(days=1)
        with psycopg.connect(self.url) as connection:
            stage_many(connection, jobs.record, [("a",), ("b",)], tag="shop.order")
            stage(connection, jobs.fail_times, ["fails", 1])
            stage(connection, jobs.raise_text, ['"no"'], tag="shop.broken")
            stage(connection, jobs.record, ["late"], expires_at=gone)
        wait_until(self._is_done)

    def let_some_wait(self) -> None:
        """Occupy the only worker with one job, behind which others wait."""
        with psycopg.connect(self.url) as connection:
            stage(connection, jobs.wait_for_go, ["waits"])
        wait_until(lambda: "waits" in jobs.effects(self.url))
        with psycopg.connect(self.url) as connection:
            stage_many(connection, jobs.record, [("c",), ("d",)], tag="shop.order")

    def go(self) -> None:
        jobs.leave_effect(self.url, "go")
        wait_until(self._is_done)

    def _is_done(self) -> bool:
        return not ids_in(self.url, "staged_jobs") and not ids_in(self.url, "inflight_jobs")


@pytest.fixture(scope="module")
def scraped(
    temporary_directory: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Prometheus, float]]:
    """A Prometheus that has watched the shop, and the time at which that began."""
    ports = [free_port() for _ in range(3)]
    at = [f"127.0.0.1:{port}" for port in ports]
    targets = {"drain-run": at[:1], "drain-work": at[1:2]}
    directory = tmp_path_factory.mktemp("prometheus")
    began = time.time()
    with (
        pytest.MonkeyPatch.context() as patch,
        prometheus.prometheus(directory, ports[2], targets, faster=FASTER) as server,
    ):
        patch.setattr(tempfile, "tempdir", temporary_directory)
        with services(durable=False) as own:
            schema.install(own.database_url)
            jobs.create_effects(own.database_url)
            env = environment(own.database_url, own.redis_url, DRAIN_JOBS=jobs.MODULE, PYTHONPATH=str(ROOT))
            with (
                leading(env | impatient(PAUSES), "--metrics-port", str(ports[0])),
                drain_command("work", "default", "--metrics-port", str(ports[1]), env=env),
            ):
                server.wait_for_targets(2)
                watch(server, Shop(own.database_url))
                yield server, began


def watch(server: Prometheus, shop: Shop) -> None:
    """Let things happen in the shop, each of them seen by a scrape of its own."""
    finished = "sum(drain_work_finished_jobs_total)"

    def seen(expression: str) -> None:
        wait_until(lambda: server.query(expression))

    shop.stage_of_each_kind()
    seen(f"{finished} == 3 and on () sum(drain_work_run_seconds_count) == 5")
    shop.let_some_wait()
    seen('drain_tag_waiting_jobs{tag="shop.order"} == 2 and on () sum(drain_waiting_jobs) == 2')
    shop.go()
    shop.stage_of_each_kind()
    seen(f"{finished} == 9 and on () drain_dead_jobs_kept == 4 and on () rate(drain_wal_bytes_total[5s])")


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_no_panel_is_empty(path: Path, scraped: tuple[Prometheus, float]) -> None:
    server, began = scraped
    dashboard = json.loads(path.read_text(encoding="utf-8"))

    def empty() -> list[str]:
        return [
            f"{title}: {expression}"
            for title, expression in queries(dashboard)
            if not has_answer(server.query_range(expression, began, time.time()))
        ]

    # The step after the latest scrape may be to come.
    with suppress(AssertionError):
        wait_until(lambda: not empty(), ANSWER_SECONDS)
    assert empty() == []


def test_a_query_without_data_is_detected(scraped: tuple[Prometheus, float]) -> None:
    server, began = scraped
    assert not has_answer(server.query_range('drain_leader{queue="none"}', began, time.time()))
    assert not has_answer(server.query_range("drain_leader * NaN", began, time.time()))


def test_the_queue_variable_has_values(scraped: tuple[Prometheus, float]) -> None:
    dashboard = json.loads((ROOT / "deploy/grafana/queue.json").read_text(encoding="utf-8"))
    (variable,) = [each for each in dashboard["templating"]["list"] if each["name"] == "queue"]
    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
    assert found is not None
    assert {each["metric"][found[2]] for each in scraped[0].query(found[1])} == {"default"}
