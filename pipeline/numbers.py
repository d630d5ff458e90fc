"""Exact numbers compared by value: 1.10 is 1.1."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

# Digits of each maximum.
_INTEGERS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
# In Spark's decimals, before and after the point.
_MOST_DIGITS = 38
# Java's, without exponent and trailing zeros.
_PLAIN = "0." + "#" * _MOST_DIGITS
# Without exponent, as PostgreSQL writes `numeric`.
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)$"


def common_type(one: DataType, other: DataType) -> str | None:
    """Return two exact types' narrowest common type, if any."""
    ours, theirs = _shape(one), _shape(other)
    if ours is None or theirs is None:
        return None
    if {one.simpleString(), other.simpleString()} <= _INTEGERS.keys():
        return "bigint"
    whole, scale = (max(digits) for digits in zip(ours, theirs, strict=True))
    return f"decimal({whole + scale},{scale})" if whole + scale <= _MOST_DIGITS else None


def are_comparable_as_text(one: DataType, other: DataType) -> bool:
    """Return True if `as_text` makes them comparable."""
    if _shape(one) and _shape(other):
        return True
    return {one.typeName(), other.typeName()} == {"decimal", "string"}


def as_text(column: Column, kind: DataType) -> Column:
    """Spell equal numbers alike; other texts stay."""
    from pyspark.sql import functions as f

    if kind.typeName() == "decimal":
        # A cast writes 1E-7 unless ANSI is on.
        return f.call_function("format_number", column, f.lit(_PLAIN))
    return _shortest(column) if kind.typeName() == "string" else column.cast("string")


def _shape(kind: DataType) -> tuple[int, int] | None:
    from pyspark.sql.types import DecimalType

    if isinstance(kind, DecimalType):
        return kind.precision - kind.scale, kind.scale
    digits = _INTEGERS.get(kind.simpleString())
    return None if digits is None else (digits, 0)


def _shortest(text: Column) -> Column:
    from pyspark.sql import functions as f

    whole = f.regexp_extract(text, r"^[+-]?0*(\d*)", 1)
    fraction = f.regexp_extract(text, r"\.(\d*?)0*$", 1)
    whole = f.when(whole == "", "0").otherwise(whole)
    digits = f.when(fraction == "", whole).otherwise(f.concat(whole, f.lit("."), fraction))
    negative = text.startswith("-") & (digits != "0")
    return f.when(~text.rlike(_NUMBER), text).when(negative, f.concat(f.lit("-"), digits)).otherwise(digits)
