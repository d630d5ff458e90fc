import ast
import re
from pathlib import Path

import pytest

from drain.database import schema
from tests.helpers import ROOT

READY = {f"staged_jobs_ready_{turn}" for turn in range(3)}
PARTITIONS = {"staged_jobs_scheduled", "staged_jobs_ready", *READY, "finished_jobs_other"}
TABLES = {
    "staged_jobs",
    "inflight_jobs",
    "finished_jobs",
    "dead_jobs",
    "stale_finishes",
    "drain_state",
    "drain_schema",
    "bulk_runs",
    "bulk_side_tables",
} | PARTITIONS
# Module below drain/tables/ -> the tables that a statement in it may take rows out of.
LEAVES = {
    "staged": {"staged_jobs", "staged_jobs_ready"},
    "inflight": {"inflight_jobs"},
    "dead": {"dead_jobs"},
    "finished": {"finished_jobs", "finished_jobs_other"},
    "bulk": set(),
    "stale": set(),
    "leader_progress": {"drain_state"},
}
# ... and the tables that rows which left by it may go to. `staged_jobs` is where applications write.
ENTERS = {
    "staged": {"staged_jobs", "inflight_jobs", "dead_jobs"},
    "inflight": {"finished_jobs", "dead_jobs"},
    "dead": {"staged_jobs"},
    "finished": set(),
    "bulk": {"bulk_runs"},
    "stale": {"stale_finishes"},
    "leader_progress": set(),
}

KINDS = "TABLE|INDEX|TRIGGER|FUNCTION|TYPE|SCHEMA|VIEW|SEQUENCE|EXTENSION|DOMAIN|POLICY|ROLE"
DDL = re.compile(
    rf"\b(CREATE|ALTER|DROP|TRUNCATE)\s+(OR REPLACE\s+|UNIQUE\s+|UNLOGGED\s+|TEMP\w*\s+)?({KINDS})\b"
    rf"|\bTRUNCATE\s+(?:{'|'.join(TABLES)})\b",
    re.IGNORECASE,
)
# A table whose name is put in later counts as a write to a table that nobody knows.
WRITE = re.compile(
    rf"\b(INSERT INTO|(?<!FOR )UPDATE|DELETE FROM|COPY|MERGE INTO)\s+((?:{'|'.join(TABLES)})\b|\{{|$)"
)


def sources() -> list[Path]:
    packages = ("drain", "pipeline", "workers")
    return [ROOT / "cli.py", *(path for name in packages for path in (ROOT / name).rglob("*.py"))]


def statements(path: Path) -> list[str]:
    """The texts in a module, but for its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    scopes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    described = [node for node in ast.walk(tree) if isinstance(node, scopes) and ast.get_docstring(node)]
    docstrings = {id(node.body[0].value) for node in described if isinstance(node.body[0], ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]


def writes(path: Path) -> set[tuple[str, str]]:
    return {found for text in statements(path) for found in WRITE.findall(" ".join(text.split()) + " ")}


def module_of_transitions(path: Path) -> str | None:
    return path.stem if path.parent == ROOT / "drain" / "tables" else None


def test_the_schema_is_the_only_ddl() -> None:
    assert schema.text() == (ROOT / "schema.sql").read_text(encoding="utf-8")
    found = {
        (path.relative_to(ROOT).as_posix(), text)
        for path in sources()
        for text in statements(path)
        if (ddl := DDL.search(text)) and (path.name, ddl[3]) != ("roles.py", "ROLE")
    }

    assert not found


def test_every_table_of_the_schema_is_ours_to_know() -> None:
    assert set(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", schema.text())) == TABLES


@pytest.mark.parametrize("module", LEAVES)
def test_rows_leave_and_change_in_the_module_of_their_table_alone(module: str) -> None:
    found = writes(ROOT / "drain" / "tables" / f"{module}.py")
    changed = {table for verb, table in found if verb in ("UPDATE", "DELETE FROM")}
    entered = {table for verb, table in found if verb not in ("UPDATE", "DELETE FROM")}

    assert changed == LEAVES[module]
    assert entered == ENTERS[module]


def test_nothing_outside_of_the_transitions_writes_to_a_table() -> None:
    outside = {path: writes(path) for path in sources() if module_of_transitions(path) not in LEAVES}

    assert {path.name: found for path, found in outside.items() if found} == {}


def test_a_job_brings_every_column_along_that_two_tables_share() -> None:
    """A column added to one table only would be lost on the way, silently."""
    from drain.tables import JOB_COLUMNS

    carried = set(JOB_COLUMNS.split(", "))
    for table in ("inflight_jobs", "dead_jobs"):
        assert carried <= columns_of(table), table
    assert columns_of("staged_jobs") - carried == {"matured_at"}


def columns_of(table: str) -> set[str]:
    (body,) = re.findall(
        rf"CREATE TABLE IF NOT EXISTS {table} \((.*?)^\)", schema.text(), re.DOTALL | re.MULTILINE
    )
    return set(
        re.findall(r"^    ([a-z_]+) +(?:bigint|text|jsonb|integer|timestamptz|boolean)", body, re.MULTILINE)
    )
