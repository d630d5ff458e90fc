"""`drain backfill --flow`, and `stage_rows(..., flow=...)`: all rows of a run become members of one flow."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from drain.__main__ import main
from drain.errors import ConfigError, DrainError, StageError
from drain.pipeline.flows import new_flow
from drain.pipeline.staging import stage_rows
from tests.helpers import query

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.every_python

Backfill = Callable[..., Result]
GRAPH = ["--args", "id", "--flow", "docs", "--node", "id", "--after", "after"]
EDGES = """
SELECT child.node, array_agg(parent.node ORDER BY parent.node) FROM job_edges AS edge
    JOIN job_edges AS child ON child.parent_id = edge.child_id AND child.node IS NOT NULL
    JOIN job_edges AS parent ON parent.parent_id = edge.parent_id AND parent.node IS NOT NULL
WHERE edge.on_failure = 'run' GROUP BY child.node ORDER BY child.node
"""


@pytest.fixture
def backfill(spark: SparkSession, database_url: str) -> Backfill:
    def act(source: str | Path, *options: str) -> Result:
        words = ["backfill", str(source), "--database-url", database_url, "--job", "tests.act", *options]
        return CliRunner().invoke(main, words, catch_exceptions=False)

    return act


def written(path: Path, *rows: Mapping[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_run_is_one_flow_with_callbacks_and_is_staged_once(
    database_url: str, backfill: Backfill, tmp_path: Path
) -> None:
    path = written(tmp_path / "rows.jsonl", *({"id": number} for number in range(30)))
    options = [
        *("--args", "id", "--queue", "bulk", "--run-id", "may", "--flow", "docs", "--description", "of May"),
        *(
            "--on-success",
            'shop.publish ["docs", 5]',
            "--on-complete",
            "shop.report",
            "--on-dead",
            "shop.alarm",
        ),
    ]
    result = backfill(path, *options)
    assert result.exit_code == 0, result.output
    ((flow, *callbacks),) = query(database_url, "SELECT id, on_success, on_complete, on_dead FROM flows")
    assert result.stdout.startswith(f"run may has staged 30 jobs as flow {flow} in ")
    assert query(database_url, "SELECT name, description FROM flows") == [("docs", "of May")]
    assert query(database_url, "SELECT total, unfinished FROM drain_flow_progress(%s)", flow) == [(30, 30)]
    found = {
        id_: rest
        for id_, *rest in query(
            database_url,
            "SELECT id, job_name, job_args, queue, priority FROM staged_jobs WHERE id = ANY (%s)",
            callbacks,
        )
    }
    assert [found[id_] for id_ in callbacks] == [
        ["shop.publish", ["docs", 5], "bulk", 100],
        ["shop.report", [], "bulk", 100],
        ["shop.alarm", [], "bulk", 100],
    ]
    again = json.loads(backfill(path, *options, "--json").stdout)
    assert (again["before"], again["jobs"], again["flow"]) == (True, 30, flow)
    assert f"run may had already staged its 30 jobs as flow {flow}; " in backfill(path, *options).stdout
    assert query(database_url, "SELECT count(*) FROM flows") == [(1,)]
    other = backfill(path, *options, "--description", "of June")
    assert "needs another --run-id" in other.stderr


@pytest.mark.parametrize("kind", ["arrays", "numbers", "texts"])
def test_rows_name_the_nodes_that_they_wait_for(
    database_url: str, backfill: Backfill, tmp_path: Path, kind: str
) -> None:
    rows: list[dict[str, object]]
    if kind == "texts":
        rows = [
            {"id": "c", "after": "b"},
            {"id": "a", "after": None},
            {"id": "b", "after": "a"},
            {"id": "d", "after": ""},
        ]
        expected = [("b", ["a"]), ("c", ["b"])]
    elif kind == "numbers":
        rows = [{"id": 3, "after": 2}, {"id": 1}, {"id": 2, "after": 1}]
        expected = [("2", ["1"]), ("3", ["2"])]
    else:
        rows = [{"id": 3, "after": [1, 2]}, {"id": 1, "after": []}, {"id": 2, "after": None}]
        expected = [("3", ["1", "2"])]
    result = backfill(written(tmp_path / "rows.jsonl", *rows), *GRAPH, "--on-failure", "run")
    assert result.exit_code == 0, result.output
    assert query(database_url, EDGES) == expected


@pytest.mark.parametrize("dry", [["--dry-run"], []])
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("a", ["b"]), ("b", ["a"])], "nodes wait for each other: "),
        ([("a", ["b"])], "node 'a' waits for 'b', which no row has"),
        ([("a", []), ("a", [])], "the name of a node must be unique"),
        ([(None, [])], "column id is null"),
        ([("", [])], "column id must have 1 to 255 characters"),
        ([("a" * 256, [])], "column id must have 1 to 255 characters"),
    ],
)
def test_a_bad_graph_is_refused_in_one_line(
    database_url: str,
    backfill: Backfill,
    tmp_path: Path,
    rows: list[tuple[str | None, list[str]]],
    words: str,
    dry: list[str],
) -> None:
    given: list[dict[str, object]] = [{"id": id_, "after": after} for id_, after in rows]
    result = backfill(written(tmp_path / "rows.jsonl", *given), *GRAPH, "--on-null", "stage", *dry)
    assert result.exit_code == 1
    assert words in result.stderr.splitlines()[-1]
    assert query(database_url, "SELECT id FROM staged_jobs UNION ALL SELECT id FROM flows") == []


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--on-success", "shop.publish"], 2, "need --flow"),
        (["--node", "id"], 2, "need --flow"),
        (["--on-failure", "run"], 2, "need --flow"),
        (["--flow", "docs", "--after", "after"], 2, "after needs node"),
        (["--flow", "docs", "--commit-every", "5"], 2, "a flow is staged in one commit"),
        (["--flow", "docs", "--node", "id", "--on-failure", "run"], 2, "on_failure needs after"),
        (["--flow", "docs", "--on-dead", "shop.alarm {"], 2, "--on-dead must be a job"),
        (["--flow", "docs", "--on-dead", "shop.alarm {}"], 2, "arguments must be a list"),
        (["--flow", "docs", "--on-dead", f"shop.alarm {'[' * 100_000}"], 2, "--on-dead must be a job"),
        (["--flow", "docs", "--on-dead", 'shop.alarm ["\\u0000"]'], 2, "a NUL character"),
        (["--flow", "docs", "--on-dead", " "], 1, "the rule 'job name must not be empty'"),
        (["--flow", "x" * 256], 2, "name must be a string of 1 to 255 characters"),
        (["--flow", "docs", "--node", "nope"], 1, "the source has no column 'nope'"),
    ],
)
def test_bad_options_are_refused(
    database_url: str, backfill: Backfill, tmp_path: Path, options: list[str], code: int, words: str
) -> None:
    result = backfill(written(tmp_path / "rows.jsonl", {"id": 1}), "--args", "id", *options)
    assert result.exit_code == code
    assert words in result.stderr.splitlines()[-1]
    assert query(database_url, "SELECT FROM staged_jobs UNION ALL SELECT FROM bulk_runs") == []


def rows_of(spark: SparkSession, *rows: tuple[str | None, list[str | None] | None]) -> DataFrame:
    named = spark.createDataFrame([*rows], "tag string, parts array<string>")
    return named.selectExpr("*", "'tests.act' AS job_name", "to_json(array(tag)) AS job_args")


def test_a_spark_program_stages_the_same_flow(spark: SparkSession, database_url: str) -> None:
    rows = rows_of(spark, ("c", ["a", "b", None]), ("a", None), ("b", ["a"]))
    flow = new_flow(
        "docs",
        description="of May",
        on_success=("shop.publish", ["docs"], {"copies": 5}),
        on_dead="shop.alarm",
        node="tag",
        after="parts",
        on_failure="run",
        queue="bulk",
    )
    result, again = (stage_rows(rows, "may", database_url=database_url, flow=flow) for _ in range(2))
    assert (result.jobs, result.before, again.before) == (3, False, True)
    assert query(database_url, "SELECT id, name, description FROM flows") == [(result.flow, "docs", "of May")]
    assert again.flow == result.flow
    assert query(database_url, EDGES) == [("b", ["a"]), ("c", ["a", "b"])]
    assert query(database_url, "SELECT tag, job_args FROM staged_jobs WHERE tag > '' ORDER BY 1") == [
        (tag, [tag]) for tag in "abc"
    ]
    assert query(
        database_url,
        "SELECT job_name, job_args, job_kwargs, queue FROM staged_jobs AS job JOIN flows "
        "ON job.id IN (on_success, on_dead) ORDER BY 1",
    ) == [("shop.alarm", [], {}, "bulk"), ("shop.publish", ["docs"], {"copies": 5}, "bulk")]


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([("a", ["b"])], {"node": "tag", "after": "parts"}, "node 'a' waits for 'b', which no row has"),
        ([("a", ["a"])], {"node": "tag", "after": "parts"}, "nodes wait for each other: a -> a"),
        ([(None, [])], {"node": "tag", "after": "parts"}, "the rule 'node must not be null'"),
        ([("", [])], {"node": "tag", "after": "parts"}, "the rule 'node must have 1 to 255 characters'"),
        ([("a", []), ("a", [])], {"node": "tag", "after": "parts"}, "the name of a node must be unique"),
        ([("a", [])], {"node": "nope"}, "the source has no column 'nope'"),
        ([("a", [])], {"node": "tag"}, "column 'parts' cannot be staged"),
        ([("a", [])], {"on_dead": ""}, "the flow or a callback breaks the rule 'job name must not be empty'"),
    ],
)
def test_a_bad_graph_of_a_spark_program_is_refused(
    spark: SparkSession,
    database_url: str,
    rows: list[tuple[str | None, list[str | None]]],
    options: dict[str, str],
    words: str,
) -> None:
    flow = new_flow("docs", **options)  # type: ignore[arg-type]
    with pytest.raises(DrainError, match=re.escape(words)):
        stage_rows(rows_of(spark, *rows), "may", database_url=database_url, flow=flow)
    assert query(database_url, "SELECT FROM staged_jobs UNION ALL SELECT FROM bulk_runs") == []


@pytest.mark.parametrize("name", ["node", "after"])
def test_a_column_that_only_has_the_name_of_a_flows_is_refused(
    spark: SparkSession, database_url: str, name: str
) -> None:
    rows = rows_of(spark).withColumnRenamed("parts", name)
    with pytest.raises(ConfigError, match=f"column '{name}' must be renamed or dropped"):
        stage_rows(rows, "may", database_url=database_url, flow=new_flow("docs", node="tag"))


def test_a_flow_of_a_spark_program_needs_one_commit_and_valid_options(
    spark: SparkSession, database_url: str
) -> None:
    with pytest.raises(ConfigError, match="leave out commit_every"):
        stage_rows(rows_of(spark), "may", database_url=database_url, commit_every=5, flow=new_flow("docs"))
    for options, words in (
        ({"after": "parts"}, "after needs node"),
        ({"node": "tag", "on_failure": "run"}, "on_failure needs after"),
        ({"node": "tag", "after": "parts", "on_failure": "stop"}, "'stop'"),
        ({"on_success": ("m.f", "text")}, "arguments must be a list"),
        ({"name": ""}, "an empty one"),
        ({"name": None}, "name must be a string, not None"),
    ):
        with pytest.raises(StageError, match=words):
            new_flow(**({"name": "docs"} | options))
