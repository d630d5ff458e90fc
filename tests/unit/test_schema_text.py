import ast
import re
from functools import cache
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
    "queues",
    "queue_pauses",
    "crons",
    "idempotency_keys",
    "cancelled_claims",
    "job_steps",
    "job_edges",
    "flows",
    "job_waits",
    "job_events",
} | PARTITIONS
# Module below drain/tables/ -> the tables whose rows its statements change, take out, and put in. A row is changed and
# taken out by the modules of its table alone; `staged_jobs` is where applications write.
WRITES: dict[str, dict[str, set[str]]] = {
    "staged": {
        "UPDATE": {"staged_jobs", "job_edges"},
        "DELETE FROM": {"staged_jobs_ready", "staged_jobs_scheduled"},
        "INSERT INTO": {"staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs"},
    },
    "inserts": {"INSERT INTO": {"staged_jobs"}},
    "flows": {"INSERT INTO": {"staged_jobs"}},
    "unique": {
        "UPDATE": {"staged_jobs", "inflight_jobs"},
        "DELETE FROM": {"staged_jobs", "inflight_jobs"},
        "INSERT INTO": {"finished_jobs"},
    },
    "edges": {"UPDATE": {"job_edges"}},
    "waits": {
        "UPDATE": {"inflight_jobs"},
        "INSERT INTO": {"job_waits", "job_steps"},
        "DELETE FROM": {"job_waits", "job_events"},
    },
    # From job_steps, job_edges, flows and job_waits.
    "gone": {"DELETE FROM": {"{"}},
    "idempotency": {"DELETE FROM": {"idempotency_keys"}},
    "claims": {"UPDATE": {"inflight_jobs"}},
    "leases": {"UPDATE": {"inflight_jobs"}},
    "outcomes": {
        "UPDATE": {"inflight_jobs"},
        "DELETE FROM": {"inflight_jobs"},
        "INSERT INTO": {"dead_jobs", "stale_finishes"},
    },
    "finishes": {
        "DELETE FROM": {"inflight_jobs"},
        "INSERT INTO": {"finished_jobs"},
        "UPDATE": {"finished_jobs"},
    },
    "redeliveries": {
        "UPDATE": {"inflight_jobs"},
        "DELETE FROM": {"inflight_jobs"},
        "INSERT INTO": {"dead_jobs"},
    },
    "cancellations": {
        "DELETE FROM": {"staged_jobs", "inflight_jobs", "cancelled_claims"},
        "INSERT INTO": {"dead_jobs", "cancelled_claims", "staged_jobs"},
    },
    "changes": {"UPDATE": {"staged_jobs", "inflight_jobs"}},
    "dead": {
        "DELETE FROM": {"dead_jobs"},
        "UPDATE": {"job_edges", "staged_jobs", "staged_jobs_scheduled"},
        "INSERT INTO": {"staged_jobs"},
    },
    "finished": {"UPDATE": {"finished_jobs"}, "DELETE FROM": {"finished_jobs_other"}},
    "bulk": {
        "INSERT INTO": {"bulk_runs"},
        "UPDATE": {"bulk_runs"},
        "DELETE FROM": {"bulk_runs"},
        # Into staged_jobs, or the temporary table of `staged`.
        "COPY": {"{", ""},
    },
    "crons": {
        "UPDATE": {"crons"},
        "DELETE FROM": {"crons"},
        "INSERT INTO": {"crons", "staged_jobs"},
    },
    "time_travel": {
        "UPDATE": {
            *("staged_jobs", "inflight_jobs", "finished_jobs"),
            *("crons", "queue_pauses", "idempotency_keys", "job_waits"),
        },
    },
    "leader_progress": {"UPDATE": {"drain_state"}},
    "rules": {"UPDATE": {"queues"}, "INSERT INTO": {"queues"}, "DELETE FROM": {"queues"}},
    "flow_pauses": {
        "UPDATE": {"staged_jobs", "job_edges"},
        "DELETE FROM": {"staged_jobs", "dead_jobs"},
        "INSERT INTO": {"staged_jobs", "job_edges"},
    },
    "pauses": {"INSERT INTO": {"queue_pauses"}, "DELETE FROM": {"queue_pauses"}},
}
OF_INFLIGHT_JOBS = {
    "unique",
    "claims",
    "leases",
    "finishes",
    "outcomes",
    "redeliveries",
    "cancellations",
    "changes",
    "time_travel",
    "waits",
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


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def statements(path: Path) -> list[str]:
    """The texts in a module, but for its docstrings."""
    tree = parsed(path)
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


def module_of_the_tables(path: Path) -> str | None:
    return path.stem if path.parent == ROOT / "drain" / "tables" else None


# The roles; the schema in which all the rest is made; a hint at what to do behind a pooler; the temporary table by
# which a rehearsal cannot be committed, and those of bulk runs whose jobs are not due at once or members of a flow.
ELSEWHERE = {
    *(("roles.py", "ROLE"), ("schema.py", "SCHEMA"), ("refusals.py", "ROLE"), ("session.py", "TABLE")),
    *(("staged.py", "TABLE"), ("bulk_flows.py", "TABLE"), ("bulk_flows.py", "INDEX")),
}


def test_the_schema_is_the_only_ddl() -> None:
    assert schema.text() == (ROOT / "schema.sql").read_text(encoding="utf-8")
    found = {
        (path.relative_to(ROOT).as_posix(), text)
        for path in sources()
        for text in statements(path)
        if (ddl := DDL.search(text)) and (path.name, ddl[3]) not in ELSEWHERE
    }

    assert not found


def test_the_code_knows_every_table_of_the_schema() -> None:
    assert set(re.findall(r"CREATE TABLE IF NOT EXISTS (\w+)", schema.text())) == TABLES


@pytest.mark.parametrize("module", WRITES)
def test_each_table_module_writes_only_to_its_own_tables(module: str) -> None:
    found: dict[str, set[str]] = {}
    for verb, table in writes(ROOT / "drain" / "tables" / f"{module}.py"):
        found.setdefault(verb, set()).add(table)

    assert found == WRITES[module]


def test_only_the_modules_of_inflight_jobs_update_or_delete_its_rows() -> None:
    changing = {
        path
        for path in sources()
        for verb, table in writes(path)
        if table == "inflight_jobs" and verb != "INSERT INTO"
    }

    assert changing == {ROOT / "drain" / "tables" / f"{module}.py" for module in OF_INFLIGHT_JOBS}


def test_nothing_outside_the_table_modules_writes_to_a_table() -> None:
    outside = {path: writes(path) for path in sources() if module_of_the_tables(path) not in WRITES}

    assert {path.name: found for path, found in outside.items() if found} == {}
