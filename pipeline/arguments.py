"""Columns of a row as the JSON arguments of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from drain.pipeline.datasources.columns import JSON
from drain.pipeline.rejects import shown

if TYPE_CHECKING:
    from pyspark.sql import Column

# Lengths of the text around the value of an object {"v":…}.
_BEFORE, _AFTER = len('{"v":'), len("}")
# Upper bound of the bytes of a job's arguments, as in the schema, which counts a blank after each comma and colon too.
_LONGEST_BYTES = 1024 * 1024
# A NUL in JSON, and not a backslash before the text u0000.
_NUL, _IS_NUL = r"\u0000", r"(?<!\\)(\\\\)*\\u0000"


def positional(columns: Sequence[Column]) -> Column:
    """Make a JSON array of these values, each with its own type: numbers stay numbers, structs become objects."""
    from pyspark.sql import functions as f

    # All elements of a Spark array have one type, so each value is written as its own object {"v":…} and cut out.
    objects = [f.to_json(f.struct(column.alias("v")), JSON) for column in columns]
    values = [f.substr(text, f.lit(_BEFORE + 1), f.length(text) - (_BEFORE + _AFTER)) for text in objects]
    return f.concat(f.lit("["), f.concat_ws(",", *values), f.lit("]"))


def keyword(columns: Mapping[str, Column]) -> Column:
    """Make a JSON object of these values, by name."""
    from pyspark.sql import functions as f

    if not columns:
        return f.lit("{}")
    return f.to_json(f.struct(*(column.alias(name) for name, column in columns.items())), JSON)


def refusal(args: Column, kwargs: Column) -> Column:
    """Say why PostgreSQL would refuse these arguments; null if it takes them."""
    from pyspark.sql import functions as f

    has_nul = [text.contains(_NUL) & text.rlike(_IS_NUL) for text in (args, kwargs)]
    reason = f.when(f.octet_length(args) + f.octet_length(kwargs) > _LONGEST_BYTES, "exceed 1 MiB").when(
        has_nul[0] | has_nul[1], "hold the character NUL, which PostgreSQL does not store"
    )
    return f.concat(f.lit("the arguments "), reason, f.lit(": "), shown(f.concat_ws(" ", args, kwargs)))
