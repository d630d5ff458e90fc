"""Spark's filters as conditions in SQL."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from psycopg import sql

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

# Often used, and answered by an index or partition.
PUSHED = frozenset(
    {"id", "queue", "job_name", "tag"}
    | {"staged_at", "moved_at", "claimed_at", "finished_at", "died_at", "scheduled_at"}
)


def condition(given: Filter) -> str | None:
    """Translate a filter; None leaves it to Spark, where Postgres differs."""
    from pyspark.sql import datasource

    if isinstance(given, datasource.Not):
        inner = condition(given.child)
        return None if inner is None else f"NOT ({inner})"
    column = ".".join(given.attribute)  # type: ignore[attr-defined]
    if column not in PUSHED:
        return None
    operators = {
        datasource.EqualTo: "=",
        datasource.GreaterThan: ">",
        datasource.GreaterThanOrEqual: ">=",
        datasource.LessThan: "<",
        datasource.LessThanOrEqual: "<=",
    }
    operator = operators.get(type(given))
    if operator is not None:
        return _compared(column, operator, given.value)  # type: ignore[attr-defined]
    if isinstance(given, datasource.In):
        return _among(column, given.value)
    if isinstance(given, datasource.IsNull | datasource.IsNotNull):
        return f"{column} IS {'NOT ' if isinstance(given, datasource.IsNotNull) else ''}NULL"
    return None


def _compared(column: str, operator: str, value: Any) -> str | None:
    # The database orders texts by its collation, Spark by their bytes.
    if isinstance(value, str) and operator != "=":
        return None
    literal = _literal(value)
    return None if literal is None else f"{column} {operator} {literal}"


def _among(column: str, values: Iterable[Any]) -> str | None:
    literals = [_literal(value) for value in values]
    known = [literal for literal in literals if literal is not None]
    if not known or len(known) < len(literals):
        return None
    return f"{column} IN ({', '.join(known)})"


def _literal(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | str | datetime | date):
        return None
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return None
        return f"timestamptz {sql.Literal(value.isoformat()).as_string()}"
    # PostgreSQL refuses NUL.
    return None if isinstance(value, str) and "\0" in value else sql.Literal(value).as_string()
