"""The examples of batches and flows do what they say, also when processes are killed and nodes fail."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import document_pipeline
import nightly_import
import psycopg
import pytest

from drain.tables import dead
from tests.helpers import PATIENCE_SECONDS, leading, module, query, run_program, wait_until
from tests.worker_processes import Yard, children, kill_worker

pytestmark = pytest.mark.usefixtures("processes")
BILLED = [("ocr",), ("spelling",), ("summary",), ("translation",)]


@pytest.fixture
def yard(database_url: str, redis_url: str) -> Yard:
    for tables in (nightly_import.TABLES, document_pipeline.TABLES):
        query(database_url, tables)
    return Yard(database_url, redis_url)


def replaced(worker: Any, killed: int) -> Callable[[], bool]:
    return lambda: children(worker) not in ([], [killed])


def waits_for_a_lock(yard: Yard) -> bool:
    return bool(query(yard.database_url, "SELECT FROM pg_locks WHERE NOT granted AND locktype = 'relation'"))


def test_the_nightly_import_reports_once_after_a_killed_worker(yard: Yard, tmp_path: Path) -> None:
    for name, lines in {"a": 2500, "b": 10, "empty": 0}.items():
        (tmp_path / f"{name}.csv").write_text("".join(f"{name},{n}\n" for n in range(lines)))
    jobs = {"DRAIN_JOBS": "examples.nightly_import"}
    with leading(yard.env(**jobs)), yard.working("--prefetch", "1", **jobs) as worker:
        with psycopg.connect(yard.database_url) as lock:
            lock.execute("LOCK TABLE lines IN EXCLUSIVE MODE")
            run_program(module("examples.nightly_import"), str(tmp_path), env=yard.env(**jobs))
            wait_until(lambda: waits_for_a_lock(yard), PATIENCE_SECONDS)
            wait_until(replaced(worker, kill_worker(worker)), PATIENCE_SECONDS)
        wait_until(lambda: query(yard.database_url, "SELECT FROM reports"), PATIENCE_SECONDS)
        wait_until(lambda: not query(yard.database_url, "SELECT FROM inflight_jobs"), PATIENCE_SECONDS)
    # The finder, three files and four chunks.
    assert query(yard.database_url, "SELECT * FROM reports") == [(str(tmp_path), 8, 0, 2510)]


def test_the_document_pipeline_never_pays_twice(yard: Yard) -> None:
    jobs = {"DRAIN_JOBS": "examples.document_pipeline"}
    url = yard.database_url
    query(url, "ALTER TABLE bills ADD CONSTRAINT outage CHECK (service <> 'translation')")
    with leading(yard.env(**jobs)), yard.working("--prefetch", "1", **jobs) as worker:
        with psycopg.connect(url) as lock:
            lock.execute("LOCK TABLE bills IN EXCLUSIVE MODE")
            for _ in range(2):
                run_program(module("examples.document_pipeline"), "tea", env=yard.env(**jobs))
            wait_until(lambda: waits_for_a_lock(yard), PATIENCE_SECONDS)
            killed = kill_worker(worker)
            # Its connection finishes the call, which the next attempt then repeats.
        wait_until(replaced(worker, killed), PATIENCE_SECONDS)
        wait_until(lambda: query(url, "SELECT FROM alarms"), PATIENCE_SECONDS)
        wait_until(lambda: query(url, "SELECT FROM bills WHERE service = 'summary'"), PATIENCE_SECONDS)
        assert query(url, "SELECT FROM published") == []
        query(url, "ALTER TABLE bills DROP CONSTRAINT outage")
        with psycopg.connect(url, autocommit=True) as connection:
            assert dead.revive(connection, dead.Selection()) == 1
        wait_until(lambda: query(url, "SELECT FROM published"), PATIENCE_SECONDS)
    assert query(url, "SELECT service FROM bills ORDER BY 1") == BILLED
    text = "spelling of ocr of tea"
    assert query(url, "SELECT * FROM published") == [("tea", f"summary of {text}", f"translation of {text}")]
    assert query(url, "SELECT count(*) FROM alarms") == [(1,)]
    assert query(url, "SELECT count(*) FROM flows") == [(1,)]
