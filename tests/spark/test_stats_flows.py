"""`drain stats` on flows: outcomes, durations, dead members and slow nodes, archived or not."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from click.testing import CliRunner

import drain
from drain.__main__ import main
from drain.database import postgres
from drain.tables import gone
from tests.flows import Flows, flows
from tests.helpers import query
from tests.hostility import Place
from tests.spark.test_stats import Job, finish as finish_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def command(spark: SparkSession, database_url: str, *words: str) -> str:
    result = CliRunner().invoke(main, [*words, "--database-url", database_url], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def report(spark: SparkSession, database_url: str, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command(spark, database_url, "stats", "--json", *words))
    return found


def staged(database_url: str, name: str = "docs", *, undo: bool = False) -> drain.StagedFlow:
    flow = drain.Flow(name, on_complete="m.c", undo=undo)
    flow.add("scan", "m.f")
    flow.add("publish", "m.f", after="scan")
    with psycopg.connect(database_url) as connection:
        return flow.stage(connection)


def ran(database_url: str, job_id: int, seconds: float) -> None:
    """Let a finished job, or a flow, have taken so long."""
    start = timedelta(seconds=seconds)
    query(
        database_url,
        "UPDATE finished_jobs SET claimed_at = finished_at - %s, attempts = 1 WHERE id = %s",
        start,
        job_id,
    )
    query(
        database_url,
        "UPDATE flows SET staged_at = (SELECT finished_at FROM finished_jobs WHERE id = flows.id) - %s WHERE id = %s",
        *(start, job_id),
    )


def finish(run: Flows, flow: drain.StagedFlow, seconds: float) -> None:
    for factor, node in ((1, "scan"), (2, "publish")):
        run.look()
        run.finish(flow.jobs[node])
        ran(run.url, flow.jobs[node], seconds * factor)
    run.look()
    ran(run.url, flow.id, seconds * 10)


@pytest.mark.parametrize("is_archived", [False, True])
def test_flows_are_reported_by_name(
    spark: SparkSession, database_url: str, redis_url: str, tmp_path: Path, is_archived: bool
) -> None:
    where = ["--archive", str(tmp_path)] if is_archived else []
    with flows(database_url, redis_url) as run:
        for seconds in (1, 3):
            finish(run, staged(database_url), seconds)
        if is_archived:
            today = datetime.now(UTC).date()
            query(
                database_url,
                "UPDATE finished_jobs SET finished_at = finished_at - interval '1 day', "
                "claimed_at = claimed_at - interval '1 day'",
            )
            query(database_url, "UPDATE flows SET staged_at = staged_at - interval '1 day'")
            command(spark, database_url, "archive", str(tmp_path), "--keep-days", "0")
            with postgres.connect(database_url, "tests") as connection:
                for statement in (gone.DELETE_EDGES, gone.DELETE_FLOWS):
                    gone.delete(connection, statement, 0, 1000)
            assert query(database_url, "SELECT id FROM flows") == []
            assert (tmp_path / f"flows/finished_date={today - timedelta(days=1)}").is_dir()
        dying = staged(database_url)
        run.look()
        run.die(dying.jobs["scan"])
        run.look()
        other = staged(database_url, "other", undo=True)
        run.cancel(other.id)
    found = report(spark, database_url, *where)
    docs, second = found["flows"]
    counted = {
        name: docs[name] for name in ("name", "finished", "unfinished", "cancelled", "members", "dead")
    }
    assert counted == {
        "name": "docs",
        "finished": 2,
        "unfinished": 1,
        "cancelled": 0,
        # One died, and one was cancelled with it.
        "members": 6,
        "dead": 2,
    }
    assert [docs["duration"][name] for name in ("jobs", "min", "p50", "max")] == pytest.approx(
        [2, 10, 20, 30]
    )
    assert (second["name"], second["cancelled"], second["duration"]) == ("other", 1, None)
    # Neither the ends of flows nor the job that would undo one.
    assert {job["job_name"] for job in found["jobs"]} == {"m.f", "m.c"}
    total = found["total"]
    assert (total["finished"], total["staged"], total["dead"]) == (4, 6, {"cancelled": 1, "failed": 1})
    nodes = [(node["flow"], node["node"], node["processing"]["max"]) for node in found["slowest_nodes"]]
    assert nodes == [("docs", "publish", pytest.approx(6)), ("docs", "scan", pytest.approx(3))]
    text = command(spark, database_url, "stats", *where)
    assert "Flows\n" in text
    assert "Slowest nodes\n" in text
    chosen = report(spark, database_url, *where, "--job", "m.f")
    assert (chosen["flows"], chosen["slowest_nodes"]) == ([], [])


def test_a_role_that_may_only_inspect_gets_the_same_report(spark: SparkSession, place: Place) -> None:
    staged(place.url)
    finish_jobs(place.url, [Job(101, waited=1, ran=2), Job(102, waited=1, ran=2, finished=datetime.now(UTC))])
    reports = [report(spark, url) for url in (place.url, place.url_of("inspection"))]
    for each in reports:
        del each["at"]
    assert reports[0] == reports[1]
    assert [reports[1]["total"][name] for name in ("finished", "staged")] == [2, 3]
    assert reports[1]["flows"][0]["unfinished"] == 1
