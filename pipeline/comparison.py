"""Comparison of two sides key by key, in one pass: missing, different, deleted and up-to-date rows.

This is a full outer join on the key, made by grouping the rows of both sides: so a repeated key is seen as such, and
its rows do not multiply. Only the differences are kept, on disk, so that callers can read them more than once.

The target is read, whole, before the source: a row of the target that the source lacks was deleted at the source, or
never was there, and is not merely newer than the read of the source. A document that is saved between the two reads
is counted as missing in the target, though its own job is under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from drain.errors import ConfigError, DrainError
from pipeline.datasources.columns import JSON

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    # Two columns: one of the source, and one of the target.
    _Both: TypeAlias = tuple[Column, Column]

MISSING = "missing in target"
DIFFERENT = "different in target"
DELETED = "deleted at source"
SAME = "up to date"
REASONS = (MISSING, DIFFERENT, DELETED, SAME)

# Reasons why the sides cannot be compared.
_NO_KEY = "no key"
_REPEATED = "repeated"

_INTEGERS = {"tinyint", "smallint", "int", "bigint"}
_COUNTED = ("source_rows", "target_rows")
_VERSIONS = ("source_version", "target_version")


class Pair(NamedTuple):
    """Column by its name in the source and its name in the target."""

    source: str
    target: str


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Columns that identify a row, and a version of it.

    Attributes:
        key: Columns that together identify a row; none of them is ever null.
        version: Column that is equal on both sides if the target is up to date; two nulls are equal too.
        compare: Without a version: columns that are all equal if the target is up to date. Hashes of 64 bits are
            compared, so one difference in 10^19 goes unseen.
    """

    key: Sequence[Pair]
    version: Pair | None = None
    compare: Sequence[Pair] = ()


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison.

    Attributes:
        counts: Number of keys for each of `REASONS`.
        differences: Rows of `key_0`, `key_1`, …, `reason`, `source_version` and `target_version`, one for each key that
            is not up to date. They can be read any number of times.
    """

    counts: Mapping[str, int]
    differences: DataFrame


def key_names(columns: Columns) -> list[str]:
    """List the names of the key's columns in `Comparison.differences`."""
    return [f"key_{number}" for number in range(len(columns.key))]


@contextmanager
def compared(source: DataFrame, target: DataFrame, columns: Columns) -> Iterator[Comparison]:
    """Compare the two sides; the result is on disk while the block runs.

    Raises:
        ConfigError: A column is missing, or of another type on the other side.
        DrainError: A row has no key, or two rows of one side have the same; the text names an example.
    """
    from pyspark.sql import functions as f

    source_columns, target_columns = _same_columns(source, target, columns)
    names = key_names(columns)
    with ExitStack() as stack:
        kept_target = _kept(stack, target.select(target_columns))
        kept_target.count()
        groups = _classified(_grouped(source.select(source_columns), kept_target, names), names)
        found = _kept(stack, _collapsed(groups, names))
        counted = {
            row.reason: row.keys for row in found.groupBy("reason").agg(f.sum("keys").alias("keys")).collect()
        }
        _refuse_unusable_keys(found, counted, columns)
        differences = found.where(f.col("reason") != SAME).select(*names, "reason", *_VERSIONS)
        yield Comparison({reason: counted.get(reason, 0) for reason in REASONS}, differences)


def _kept(stack: ExitStack, rows: DataFrame) -> DataFrame:
    """Keep the rows on disk, from their first use until the stack ends."""
    from pyspark import StorageLevel

    kept = rows.persist(StorageLevel.DISK_ONLY)

    def forget() -> None:
        # If Spark has died, the error is raised by the call that needed it.
        with suppress(Exception):
            kept.unpersist()

    stack.callback(forget)
    return kept


def _same_columns(
    source: DataFrame, target: DataFrame, columns: Columns
) -> tuple[list[Column], list[Column]]:
    """Select the key and the version of each side, with the same names and types."""
    keys = [_same_type(source, target, pair) for pair in columns.key]
    if columns.version is not None:
        versions = _same_type(source, target, columns.version)
    else:
        compared_columns = [_comparable(source, _same_type(source, target, pair)) for pair in columns.compare]
        versions = (
            _hash([each for each, _ in compared_columns]),
            _hash([each for _, each in compared_columns]),
        )
    return _side(keys, versions, 0), _side(keys, versions, 1)


def _side(keys: Sequence[_Both], versions: _Both, side: int) -> list[Column]:
    """Select the columns of one side: 0 for the source, 1 for the target."""
    from pyspark.sql import functions as f

    named = [both[side].alias(f"key_{number}") for number, both in enumerate(keys)]
    return [*named, versions[side].alias("version"), f.lit(side == 0).alias("is_source")]


def _hash(columns: Sequence[Column]) -> Column:
    from pyspark.sql import functions as f

    # Spark's hash skips nulls: (null, 'a') and ('a', null) would have the same hash.
    return f.xxhash64(*(each for column in columns for each in (column.isNull(), column)))


def _comparable(source: DataFrame, both: _Both) -> _Both:
    """Turn nested values into text: a hash ignores the nulls within, and where one list ends."""
    from pyspark.sql import functions as f

    if not _type(source, both[0]).startswith(("struct", "array", "map")):
        return both
    ours, theirs = (f.to_json(f.struct(column.alias("v")), JSON) for column in both)
    return ours, theirs


def _same_type(source: DataFrame, target: DataFrame, pair: Pair) -> _Both:
    ours, theirs = _column(source, pair.source, "source"), _column(target, pair.target, "target")
    our_type, their_type = _type(source, ours), _type(target, theirs)
    if our_type == their_type:
        return ours, theirs
    if {our_type, their_type} <= _INTEGERS:
        return ours.cast("bigint"), theirs.cast("bigint")
    raise ConfigError(
        f"{pair.source} is {our_type} in the source and {pair.target} is {their_type} in the target; "
        "cast one of them, such as by 'sql:SELECT id::text AS id, …'"
    )


def _type(rows: DataFrame, column: Column) -> str:
    return rows.select(column).schema[0].dataType.simpleString()


def _column(rows: DataFrame, name: str, side: str) -> Column:
    if name in rows.columns:
        quoted = name.replace("`", "``")
        return rows[f"`{quoted}`"]
    # A field of a struct is spelled author.name.
    if name.partition(".")[0] in rows.columns:
        return rows[name]
    raise ConfigError(f"the {side} has no column {name!r}; it has {', '.join(rows.columns) or 'none'}")


def _grouped(source: DataFrame, target: DataFrame, names: Sequence[str]) -> DataFrame:
    """Group by key: the number of rows on each side, and their versions."""
    from pyspark.sql import functions as f

    of_source = f.col("is_source")
    return (
        target.unionByName(source)
        # Without it each task would first group its own rows, where equal keys are rare: work without effect.
        .repartition(*names)
        .groupBy(*names)
        .agg(
            f.count_if(of_source).alias("source_rows"),
            f.count_if(~of_source).alias("target_rows"),
            f.max(f.when(of_source, f.col("version"))).alias("source_version"),
            f.max(f.when(~of_source, f.col("version"))).alias("target_version"),
        )
    )


def _classified(groups: DataFrame, names: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as f

    no_key = f.lit(False)  # noqa: FBT003  (a literal of Spark's)
    for name in names:
        no_key |= f.col(name).isNull()
    return groups.withColumn(
        "reason",
        f.when(no_key, _NO_KEY)
        .when((f.col("source_rows") > 1) | (f.col("target_rows") > 1), _REPEATED)
        .when(f.col("target_rows") == 0, MISSING)
        .when(f.col("source_rows") == 0, DELETED)
        .when(f.col("source_version").eqNullSafe(f.col("target_version")), SAME)
        .otherwise(DIFFERENT),
    )


def _collapsed(groups: DataFrame, names: Sequence[str]) -> DataFrame:
    """Collapse up-to-date keys into one row with their count, so that only the differences are kept."""
    from pyspark.sql import functions as f

    is_different = f.col("reason") != SAME
    kept = [f.when(is_different, f.col(name)).alias(name) for name in (*names, *_COUNTED, *_VERSIONS)]
    return groups.groupBy("reason", *kept).agg(f.count("*").alias("keys"))


def _refuse_unusable_keys(found: DataFrame, counted: Mapping[str, int], columns: Columns) -> None:
    from pyspark.sql import functions as f

    if _NO_KEY in counted:
        rows = found.where(found.reason == _NO_KEY).groupBy().sum(*_COUNTED).collect()[0]
        raise DrainError(
            f"rows without a key: {rows[0]} in the source and {rows[1]} in the target have null in "
            f"{_spelled(columns.key)}; leave them out, such as by 'sql:SELECT … WHERE … IS NOT NULL'"
        )
    if _REPEATED in counted:
        # As text written by Spark: Python has no time after the year 9999.
        key = [f.col(name).cast("string").alias(name) for name in key_names(columns)]
        (example,) = found.where(found.reason == _REPEATED).select(*key, *_COUNTED).limit(1).collect()
        raise DrainError(
            f"{_spelled(columns.key)} is no key: {counted[_REPEATED]} of its values occur more than once, such as "
            f"{', '.join(example[:-2])}, {example.source_rows} times in the source and {example.target_rows} times in "
            "the target"
        )


def _spelled(key: Sequence[Pair]) -> str:
    return ", ".join(dict.fromkeys(name for pair in key for name in pair))
