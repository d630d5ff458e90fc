"""Rejects: rows of a source that cannot be used, each with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Columns that a source adds: the reason why a row cannot be used, and the line or row as text; null for good rows.
REASON = "_drain_reason"
RECORD = "_drain_record"
# Upper bound of the characters of a value that a reason shows.
_SHOWN_CHARACTERS = 200


def without_any(rows: DataFrame) -> DataFrame:
    """Return the rows without REASON and RECORD; reading a reject fails with its reason."""
    from pyspark.sql import functions as f

    reason = f.col(REASON)
    return rows.where(f.when(reason.isNull(), f.lit(col=True)).otherwise(f.raise_error(reason))).drop(
        REASON, RECORD
    )


def none(rows: DataFrame) -> DataFrame:
    """Add REASON and RECORD to rows that are all good."""
    from pyspark.sql import functions as f

    nothing = f.lit(None).cast("string")
    return rows.withColumns({REASON: nothing, RECORD: nothing})


def shown(value: Column) -> Column:
    """Quote a text for a reason, on one line, and not more than 200 characters of it."""
    from pyspark.sql import functions as f

    text = f.regexp_replace(f.left(value, f.lit(_SHOWN_CHARACTERS)), r"[\r\n]+", " ")
    return f.concat(f.lit("'"), text, f.lit("'"))
