"""The columns and conditions of drain/tables/columns.py are those of schema.sql, and stand nowhere else."""

import re

import pytest

from drain.database import schema
from drain.database.grants import STAGED_BY_APPLICATIONS
from drain.tables import columns, staged
from tests.helpers import ROOT
from tests.unit.test_schema_text import sources, statements

COLUMNS = ROOT / "drain" / "tables" / "columns.py"
# Upper bound of the columns that a statement of another module may name one after the other.
LONGEST_LIST = 6


def names(text: str) -> set[str]:
    return set(text.split(", "))


def body(pattern: str) -> str:
    (found,) = re.findall(pattern, schema.text(), re.DOTALL | re.MULTILINE)
    return str(found)


def columns_of(table: str) -> set[str]:
    found = body(rf"CREATE TABLE IF NOT EXISTS {table} \((.*?)^\)")
    kinds = "bigint|text|jsonb|integer|timestamptz|boolean|xid8|double precision"
    return set(re.findall(rf"^    ([a-z_]+) +(?:{kinds})", found, re.MULTILINE))


def squeezed(text: str) -> str:
    return " ".join(text.replace("pg_catalog.", "").split())


def test_a_moving_job_carries_every_column_the_tables_share() -> None:
    """A column added to one table only would be lost on the way, silently."""
    carried = names(columns.JOB)
    for table in ("inflight_jobs", "dead_jobs"):
        assert carried <= columns_of(table), table
    assert columns_of("staged_jobs") - carried == {"matured_at", "starts_at"}


def test_a_dead_job_has_every_column_except_its_time_of_death() -> None:
    assert columns_of("dead_jobs") - names(columns.DEAD) == {"died_at", "died_xid"}
    assert names(columns.DEAD) <= columns_of("dead_jobs")


def test_stageable_columns_match_the_grants_and_bulk_copy() -> None:
    assert columns.STAGEABLE == STAGED_BY_APPLICATIONS
    assert set(staged.IF_NULL) <= names(columns.STAGEABLE) <= columns_of("staged_jobs")


def test_finishing_many_jobs_records_the_same_columns_as_finishing_one() -> None:
    function = body(r"FUNCTION drain_finish\((.*?)RETURN FOUND")
    (into, values) = re.findall(r"finished_jobs \((.*?)\)\s+SELECT (.*?)\s+FROM done", function, re.DOTALL)[0]
    one = dict(zip(squeezed(into).split(", "), squeezed(values).split(", "), strict=True))
    many = dict(zip(columns.FINISHED.split(", "), columns.FINISHED_VALUES.split(", "), strict=True))

    assert {**many, "result": "kept"} == one
    assert columns_of("finished_jobs") - set(one) == {"finished_xid", "superseded_by"}


def test_a_claimed_jobs_columns_exist_in_its_table() -> None:
    claimed = {column.removesuffix("::text") for column in names(columns.CLAIMED)}
    jsons = {column for column in names(columns.CLAIMED) if column.endswith("::text")}

    assert claimed <= columns_of("inflight_jobs")
    assert jsons == {"job_args::text", "job_kwargs::text", "context::text"}
    assert re.findall(r"[a-z]+", columns.ATTEMPTS) == ["attempts", "batched", "integer"]


@pytest.mark.parametrize(
    ("index", "condition"),
    [("staged_jobs_in_lanes", columns.DUE), ("inflight_jobs_delivered", columns.DELIVERED)],
)
def test_each_condition_matches_its_index(index: str, condition: str) -> None:
    assert condition.strip("()") == squeezed(body(rf"INDEX IF NOT EXISTS {index}\s+ON .*?WHERE (.*?);"))


@pytest.mark.parametrize(
    "condition", ["DUE", "DELIVERED", "NOT_CLAIMED", "LEASE_IS_OVER", "NOT_WAITING", "ATTEMPTS"]
)
def test_no_other_module_spells_a_condition(condition: str) -> None:
    text = getattr(columns, condition).strip("()")

    assert {path for path in sources() if any(text in squeezed(found) for found in statements(path))} == {
        COLUMNS
    }


def test_no_other_module_lists_the_columns_of_a_job() -> None:
    """The grants of an application are on a lower floor, and another test compares them."""
    column = rf"(?:{'|'.join(names(columns.JOB))})(?:::text)?"
    longest = re.compile(rf"\b{column}(?:, {column})*\b")
    listing = {
        path
        for path in sources()
        for text in statements(path)
        for found in longest.findall(squeezed(text))
        if found.count(",") >= LONGEST_LIST
    }

    assert listing == {COLUMNS, ROOT / "drain" / "database" / "grants.py"}
