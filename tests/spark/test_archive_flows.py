"""Steps, edges and flows of archived jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from click.testing import CliRunner, Result

import drain
from drain.__main__ import main
from drain.database import postgres
from drain.pipeline import days, history
from drain.pipeline.archive import RELATED, Archiver, NotArchivedError, exclusive
from drain.pipeline.datasources import columns
from drain.pipeline.lake.files import JOBS
from drain.tables import finished, gone
from tests.flows import flows
from tests.helpers import query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Archiving = Callable[..., Result]
TODAY = date.min
YESTERDAY = date.min
STEPS = """
INSERT INTO job_steps (job_id, name, result, seconds, fencing_token, undo)
SELECT id, step, '{"z": 1.10, "a": null}', 0.5, 1, '{"call": "m.u"}' FROM finished_jobs, unnest(ARRAY['a', 'b']) AS step
WHERE job_name = 'm.f' AND id NOT IN (SELECT job_id FROM job_steps)
"""


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever day it was when the tests began."""
    day = datetime.now(UTC).date()
    monkeypatch.setattr(sys.modules[__name__], "TODAY", day)
    monkeypatch.setattr(sys.modules[__name__], "YESTERDAY", day - timedelta(days=1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "archive"


@pytest.fixture
def archive(spark: SparkSession, database_url: str, path: Path) -> Archiving:
    def act(*options: str) -> Result:
        words = ["archive", str(path), "--database-url", database_url, "--keep-days", "0", *options]
        return CliRunner().invoke(main, words, catch_exceptions=False)

    return act


def finish_a_flow(database_url: str, redis_url: str, members: int = 2) -> int:
    """A flow of named jobs with steps, finished yesterday."""
    flow = drain.Flow("docs", description="of May")
    for number in range(members):
        flow.add(f"n{number}", "m.f", after=[f"n{number - 1}"] if number else None)
    with psycopg.connect(database_url) as connection:
        staged = flow.stage(connection)
    with flows(database_url, redis_url) as run:
        for number in range(members):
            run.look()
            run.finish(staged.jobs[f"n{number}"])
        run.look()
        assert run.progress(staged.id)[-1] == "finished"
    query(database_url, "UPDATE finished_jobs SET finished_at = %s WHERE finished_at >= %s", YESTERDAY, TODAY)
    query(database_url, STEPS)
    return staged.id


def in_postgres(database_url: str, table: str) -> set[tuple[Any, ...]]:
    names = columns.select_list(table, list(columns.TABLES[table]))
    return set(query(database_url, f"SELECT {names} FROM {table}"))


def archived(spark: SparkSession, path: Path, table: str) -> list[tuple[Any, ...]]:
    names = list(columns.TABLES[table])
    times = [name for name in names if columns.TABLES[table][name] == "timestamp"]
    rows = history.read(spark, str(path), names, table=table)
    return [
        tuple(
            value.astimezone(UTC) if name in times and value is not None else value
            for name, value in zip(names, row, strict=True)
        )
        for row in rows.collect()
    ]


def forget(database_url: str) -> None:
    """Delete rows about jobs that no table has any more, as the leader does."""
    with postgres.connect(database_url, "tests") as connection:
        for statement in (gone.DELETE_STEPS, gone.DELETE_EDGES, gone.DELETE_FLOWS):
            gone.delete(connection, statement, 0, 1000)


def test_rows_about_a_days_jobs_are_archived_with_it(
    spark: SparkSession, database_url: str, redis_url: str, archive: Archiving, path: Path
) -> None:
    finish_a_flow(database_url, redis_url)
    with psycopg.connect(database_url) as connection:
        drain.Flow("unfinished").stage(connection)
    kept = {table: in_postgres(database_url, table) for table in RELATED}
    result = archive()
    assert result.exit_code == 0, result.output
    assert "3 rows  archived, late, deleted" in result.output
    forget(database_url)
    left = {table: in_postgres(database_url, table) for table in RELATED}
    assert [len(left[table]) for table in RELATED] == [0, 1, 1]
    for table in RELATED:
        found = archived(spark, path, table)
        assert len(found) == len(set(found))
        assert set(found) == kept[table] - left[table]
    assert [len(archived(spark, path, table)) for table in RELATED] == [4, 4, 1]


def test_later_jobs_of_the_day_are_added_and_each_row_is_read_once(
    spark: SparkSession, database_url: str, redis_url: str, archive: Archiving, path: Path
) -> None:
    """Also while the leader has not deleted them."""
    counts = {}
    for number in (2, 4):
        finish_a_flow(database_url, redis_url)
        assert archive().exit_code == 0
        with history.instant(database_url) as instant:
            for table in RELATED:
                rows = instant.related(spark, table, columns.KEYS[table], archive=str(path)).collect()
                assert len(rows) == len(set(rows))
                counts[table] = len(rows)
        assert counts == {"job_steps": 2 * number, "job_edges": 2 * number, "flows": number // 2}
        if number == 2:
            forget(database_url)
    assert len(list((path / "flows").rglob("added-*.parquet"))) == 1


@pytest.mark.parametrize("table", RELATED)
def test_a_missing_row_keeps_the_day(
    database_url: str,
    redis_url: str,
    archive: Archiving,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    table: str,
) -> None:
    finish_a_flow(database_url, redis_url)
    write = days.write

    def incomplete(rows: Any, order: days.Order, size: int) -> Any:
        return write(rows.limit(0) if order.table == table else rows, order, size)

    with monkeypatch.context() as patch:
        patch.setattr(days, "write", incomplete)
        result = archive()
    assert result.exit_code == 1
    assert f"in {table} " in result.stderr
    assert f"{path}/{table}/finished_date={YESTERDAY}" in result.stderr
    with postgres.connect(database_url, "tests") as connection:
        assert len(finished.closed_days(connection)) == 1
    # Neither of this table, nor of those that were to follow.
    for other in (*RELATED[RELATED.index(table) :], ""):
        assert list((path / other / f"finished_date={YESTERDAY}").rglob("*.*")) == []
    assert archive().exit_code == 0


def test_an_edge_that_changes_before_its_day_is_dropped_is_archived_as_it_is_then(
    spark: SparkSession,
    database_url: str,
    redis_url: str,
    archive: Archiving,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job superseded while it waited keeps waiting edges, which the leader changes once their jobs end."""
    finish_a_flow(database_url, redis_url)

    def in_use(*_: object) -> bool:
        raise NotArchivedError("in use")

    with monkeypatch.context() as patch:
        patch.setattr(Archiver, "_drop", in_use)
        assert archive().exit_code == 1
    query(database_url, "UPDATE job_edges SET state = 'idle' WHERE on_failure = 'hold'")
    kept = in_postgres(database_url, "job_edges")
    result = archive()
    assert result.exit_code == 0, result.output
    found = archived(spark, path, "job_edges")
    assert (len(found), set(found)) == (len(kept), kept)


def test_spark_starts_once_for_all_tables_of_a_day(
    spark: SparkSession, database_url: str, redis_url: str, path: Path
) -> None:
    finish_a_flow(database_url, redis_url)
    asked: list[list[str]] = []

    def write(orders: Sequence[days.Order]) -> list[days.Answer]:
        asked.append([order.table for order in orders])
        return days.archive(spark, orders)

    with exclusive(database_url) as lock:
        (day,) = finished.closed_days(lock)
        assert Archiver(lock, database_url, str(path), write).close(day).problem is None
    assert asked == [[*RELATED, JOBS]]
