"""Columns of both sides of a comparison, named and typed alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from drain.errors import ConfigError
from drain.pipeline import numbers
from drain.pipeline.datasources.columns import JSON
from drain.pipeline.failures import explanation

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    _Both: TypeAlias = tuple[Column, Column]


class Pair(NamedTuple):
    """Column's names in source and target."""

    source: str
    target: str

    def __str__(self) -> str:
        return self.source if self.source == self.target else f"{self.source}={self.target}"


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns that identify a row, and those that must be equal.

    Attributes:
        key: Never null.
        version: Equal if up to date; two nulls are equal.
        compare: Without a version; compared by 64-bit hashes: one difference in 10^19 is missed.
    """

    key: Sequence[Pair]
    version: Pair | None = None
    compare: Sequence[Pair] = ()

    @property
    def values(self) -> Sequence[Pair]:
        """Compared columns."""
        return [self.version] if self.version else self.compare


def key_names(columns: Columns) -> list[str]:
    """Name the key columns."""
    return [f"key_{number}" for number in range(len(columns.key))]


def value_names(columns: Columns) -> list[str]:
    """Name the compared versions or hashes."""
    return [f"value_{number}" for number in range(len(columns.values))]


def with_columns(rows: DataFrame, expressions: Mapping[str, str], option: str) -> DataFrame:
    """Add or replace columns by Spark's SQL; errors name `option`."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as f

    for name, text in expressions.items():
        try:
            rows.withColumn(name, f.expr(text))
        except PySparkException as error:
            reason = explanation(str(error))
            raise ConfigError(
                f"{option} {name}={text} is not an expression on the side's columns: {reason}"
            ) from None
    return rows.withColumns({name: f.expr(text) for name, text in expressions.items()})


def same_columns(source: DataFrame, target: DataFrame, columns: Columns) -> tuple[DataFrame, DataFrame]:
    """Select key and values of both sides, named and typed alike.

    Integers and decimals get a common type. If none is wide enough, and between decimals and text, numbers are
    compared as text: 1.10 equals 1.1.
    """
    keys = [_same_type(source, target, pair, is_key=True) for pair in columns.key]
    values = [_same_type(source, target, pair) for pair in columns.values]
    if columns.version is None:
        values = [_hashes(source, both) for both in values]
    selected = list(zip([*key_names(columns), *value_names(columns)], [*keys, *values], strict=True))
    return (
        source.select([ours.alias(name) for name, (ours, _) in selected]),
        target.select([theirs.alias(name) for name, (_, theirs) in selected]),
    )


def _hashes(source: DataFrame, both: _Both) -> _Both:
    from pyspark.sql import functions as f

    # The hash of null alone is Spark's seed, which values can have too.
    ours, theirs = (f.xxhash64(column.isNull(), column) for column in _comparable(source, both))
    return ours, theirs


def _comparable(source: DataFrame, both: _Both) -> _Both:
    """Turn nested values into text: a hash ignores inner nulls and list ends."""
    from pyspark.sql import functions as f

    if _type(source, both[0]).typeName() not in ("struct", "array", "map"):
        return both
    ours, theirs = (f.to_json(f.struct(column.alias("v")), JSON) for column in both)
    return ours, theirs


def _same_type(source: DataFrame, target: DataFrame, pair: Pair, *, is_key: bool = False) -> _Both:
    ours, theirs = _column(source, pair.source, "source"), _column(target, pair.target, "target")
    our_type, their_type = _type(source, ours), _type(target, theirs)
    if our_type.simpleString() == their_type.simpleString():
        return ours, theirs
    common = numbers.common_type(our_type, their_type)
    if common is not None:
        return ours.cast(common), theirs.cast(common)
    # Not for keys: arguments would be text where the source has numbers.
    if not is_key and numbers.are_comparable_as_text(our_type, their_type):
        return numbers.as_text(ours, our_type), numbers.as_text(theirs, their_type)
    raise ConfigError(
        f"{pair.source} is {our_type.simpleString()} in the source and {pair.target} is "
        f"{their_type.simpleString()} in the target; cast one of them, such as by "
        f"--target-column '{pair.target}=cast({pair.target} as {our_type.simpleString()})'"
    )


def _type(rows: DataFrame, column: Column) -> DataType:
    return rows.select(column).schema[0].dataType


def _column(rows: DataFrame, name: str, side: str) -> Column:
    if name in rows.columns:
        quoted = name.replace("`", "``")
        return rows[f"`{quoted}`"]
    if name.partition(".")[0] in rows.columns:
        return rows[name]
    raise ConfigError(f"the {side} has no column {name!r}; it has {', '.join(rows.columns) or 'none'}")
