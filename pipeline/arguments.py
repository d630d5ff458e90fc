"""Columns as a job's JSON arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from drain.errors import ConfigError
from drain.pipeline.datasources.columns import JSON
from drain.pipeline.rejects import REASON, RECORD, shown

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Text around the value in {"v":…}.
_BEFORE, _AFTER = len('{"v":'), len("}")
# As in the schema, which also counts blanks after commas and colons.
_LONGEST_BYTES = 1024 * 1024
# Not a backslash before the text u0000.
_NUL, _IS_NUL = r"\u0000", r"(?<!\\)(\\\\)*\\u0000"


def by_name(rows: DataFrame) -> dict[str, Column]:
    """Return the source's columns."""
    return {name: rows[f"`{name}`"] for name in rows.columns if name not in (REASON, RECORD)}


def column(rows: DataFrame, name: str) -> Column:
    """Return a source's column, or a struct's field, such as author.name; ConfigError if it has none."""
    columns = by_name(rows)
    if name.partition(".")[0] not in columns:
        raise ConfigError(f"the source has no column {name!r}; it has {', '.join(columns)}")
    return rows[name]


def positional(columns: Sequence[Column]) -> Column:
    """Build a JSON array."""
    from pyspark.sql import functions as f

    # Each value is cut from a separate object, as a Spark array has one type.
    objects = [f.to_json(f.struct(column.alias("v")), JSON) for column in columns]
    values = [f.substr(text, f.lit(_BEFORE + 1), f.length(text) - (_BEFORE + _AFTER)) for text in objects]
    return f.concat(f.lit("["), f.concat_ws(",", *values), f.lit("]"))


def keyword(columns: Mapping[str, Column]) -> Column:
    """Build a JSON object."""
    from pyspark.sql import functions as f

    if not columns:
        return f.lit("{}")
    return f.to_json(f.struct(*(column.alias(name) for name, column in columns.items())), JSON)


def refusal(args: Column, kwargs: Column) -> Column:
    """Explain why PostgreSQL would refuse arguments, or null."""
    from pyspark.sql import functions as f

    has_nul = [text.contains(_NUL) & text.rlike(_IS_NUL) for text in (args, kwargs)]
    reason = f.when(f.octet_length(args) + f.octet_length(kwargs) > _LONGEST_BYTES, "exceed 1 MiB").when(
        has_nul[0] | has_nul[1], "hold the character NUL, which PostgreSQL does not store"
    )
    return f.concat(f.lit("the arguments "), reason, f.lit(": "), shown(f.concat_ws(" ", args, kwargs)))
