"""Columns of the two sides of a comparison, brought to the same names and types."""

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

    # Two columns: one of the source, and one of the target.
    _Both: TypeAlias = tuple[Column, Column]


class Pair(NamedTuple):
    """Column by its name in the source and its name in the target."""

    source: str
    target: str

    def __str__(self) -> str:
        return self.source if self.source == self.target else f"{self.source}={self.target}"


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns that identify a row, and those that are equal on both sides if the target is up to date.

    Attributes:
        key: Columns that together identify a row; none of them is ever null.
        version: Column that is equal on both sides if the target is up to date; two nulls are equal too.
        compare: Without a version: columns that are all equal if the target is up to date. For each of them hashes
            of 64 bits are compared, so one difference in 10^19 goes unseen.
    """

    key: Sequence[Pair]
    version: Pair | None = None
    compare: Sequence[Pair] = ()

    @property
    def values(self) -> Sequence[Pair]:
        """Columns whose values are compared: the version, or else those of `compare`."""
        return [self.version] if self.version else self.compare


def key_names(columns: Columns) -> list[str]:
    """List the names of the key's columns while they are compared."""
    return [f"key_{number}" for number in range(len(columns.key))]


def value_names(columns: Columns) -> list[str]:
    """List the names of the compared values, which are versions or hashes."""
    return [f"value_{number}" for number in range(len(columns.values))]


def with_columns(rows: DataFrame, expressions: Mapping[str, str], option: str) -> DataFrame:
    """Add columns to a side, or replace some.

    Args:
        rows: Rows of the side.
        expressions: Expression in Spark's SQL for each column's name; it sees the columns as the side has them.
        option: Option that the expressions were given by, for errors.

    Raises:
        ConfigError: Spark refuses an expression; the text names it.
    """
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

    Integers and decimals of any width have a common type that holds all their values. Where none is wide enough, and
    between decimals and text, values are compared as the text of the number: 1.10 equals 1.1.

    Raises:
        ConfigError: A column is missing, or of another type on the other side.
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

    # The hash of null alone is Spark's seed, which the hash of a value may be too.
    ours, theirs = (f.xxhash64(column.isNull(), column) for column in _comparable(source, both))
    return ours, theirs


def _comparable(source: DataFrame, both: _Both) -> _Both:
    """Turn nested values into text: a hash ignores the nulls within, and where one list ends."""
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
    # Not for a key: the jobs' arguments would be text where the source has numbers.
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
    # A field of a struct is spelled author.name.
    if name.partition(".")[0] in rows.columns:
        return rows[name]
    raise ConfigError(f"the {side} has no column {name!r}; it has {', '.join(rows.columns) or 'none'}")
