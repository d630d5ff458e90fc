"""Columns of a row as the JSON arguments of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pipeline.datasources.columns import JSON

if TYPE_CHECKING:
    from pyspark.sql import Column

# Lengths of the text around the value of an object {"v":…}.
_BEFORE, _AFTER = len('{"v":'), len("}")


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
