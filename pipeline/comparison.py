"""Comparison of two sides by key in one pass.

Unlike a full outer join, grouping notices repeated keys, and does not multiply them.

The target is read first, so a row that the source lacks was deleted or never existed. A document saved in between
counts as missing, though its own job is under way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

from drain.errors import ConfigError, DrainError
from drain.pipeline.sides import Columns, Pair, key_names, same_columns, value_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MISSING = "missing in target"
DIFFERENT = "different in target"
DELETED = "deleted at source"
SAME = "up to date"
REASONS = (MISSING, DIFFERENT, DELETED, SAME)

_NO_KEY = "no key"
_REPEATED = "repeated"

_COUNTED = ("source_rows", "target_rows")
_VERSIONS = ("source_version", "target_version")


@dataclass(frozen=True)
class Comparison:
    """Result.

    Attributes:
        counts: Keys by `REASONS`.
        changed: Keys with a different value, by column.
        skipped: Rows without a key, by side.
        differences: Rows of `key_0`, …, `reason` and `changed`, the differing columns; with a version also
            `source_version` and `target_version`. Readable repeatedly.
    """

    counts: Mapping[str, int]
    changed: Mapping[str, int]
    skipped: Mapping[str, int]
    differences: DataFrame


@contextmanager
def compared(
    source: DataFrame, target: DataFrame, columns: Columns, *, skip_null: bool = False
) -> Iterator[Comparison]:
    """Compare two sides, keeping the result on disk; null in a key fails unless `skip_null`."""
    from pyspark.sql import functions as f

    ours, theirs = same_columns(source, target, columns)
    versions = _VERSIONS if columns.version else ()
    names, values = key_names(columns), ["changed", *versions]
    with ExitStack() as stack:
        kept_target = _kept(stack, theirs)
        kept_target.count()
        groups = _classified(_grouped(ours, kept_target, columns), columns)
        found = _kept(stack, _collapsed(groups, [*names, *values, *_COUNTED]))
        counted = _sums(found, "reason")
        skipped = _rows_without_key(found)
        if any(skipped.values()) and not skip_null:
            raise DrainError(_without_key(skipped, columns))
        _refuse_repeated_keys(found, counted, columns)
        changed = _sums(found.withColumn("name", f.explode("changed")), "name")
        yield Comparison(
            {reason: counted.get(reason, 0) for reason in REASONS},
            {str(pair): changed.get(str(pair), 0) for pair in columns.values},
            skipped,
            found.where(f.col("reason").isin(MISSING, DIFFERENT, DELETED)).select(*names, "reason", *values),
        )


def too_many_deletes(counts: Mapping[str, int], most: str) -> str | None:
    """Explain an excess of deletes."""
    deleted = counts[DELETED]
    keys = deleted + counts[DIFFERENT] + counts[SAME]
    if deleted <= most_deletes(most, keys):
        return None
    return (
        f"the source lacks {deleted:,} of the target's {keys:,} keys, more than --max-deletes {most} allows: "
        "check that the source is complete, or allow more"
    )


def most_deletes(text: str, keys: int) -> int:
    """Return how many of a target's keys may be deleted: 500, or 1%."""
    if not re.fullmatch(r"[0-9]+|[0-9]+(\.[0-9]+)?%", text):
        raise ConfigError(
            f"--max-deletes must be a number of keys or a percentage, such as 500 or 1%, not {text!r}"
        )
    return int(keys * Decimal(text[:-1]) / 100) if text.endswith("%") else int(text)


def _sums(found: DataFrame, name: str) -> dict[str, int]:
    from pyspark.sql import functions as f

    rows = found.groupBy(name).agg(f.sum("keys").alias("keys")).collect()
    return {row[name]: row["keys"] for row in rows}


def _kept(stack: ExitStack, rows: DataFrame) -> DataFrame:
    from pyspark import StorageLevel

    kept = rows.persist(StorageLevel.DISK_ONLY)

    def forget() -> None:
        # Spark may have died.
        with suppress(Exception):
            kept.unpersist()

    stack.callback(forget)
    return kept


def _grouped(source: DataFrame, target: DataFrame, columns: Columns) -> DataFrame:
    from pyspark.sql import functions as f

    names, of_source = key_names(columns), f.col("is_source")
    values = [
        f.max(f.when(condition, f.col(name))).alias(f"{side}_{name}")
        for name in value_names(columns)
        for side, condition in (("source", of_source), ("target", ~of_source))
    ]
    return (
        target.withColumn("is_source", f.lit(False))  # noqa: FBT003  (a literal of Spark's)
        .unionByName(source.withColumn("is_source", f.lit(True)))  # noqa: FBT003
        # Skips grouping within tasks, where keys rarely repeat.
        .repartition(*names)
        .groupBy(*names)
        .agg(f.count_if(of_source).alias("source_rows"), f.count_if(~of_source).alias("target_rows"), *values)
    )


def _classified(groups: DataFrame, columns: Columns) -> DataFrame:
    from pyspark.sql import functions as f

    no_key = f.lit(False)  # noqa: FBT003  (a literal of Spark's)
    for name in key_names(columns):
        no_key |= f.col(name).isNull()
    reason = (
        f.when(no_key, _NO_KEY)
        .when((f.col("source_rows") > 1) | (f.col("target_rows") > 1), _REPEATED)
        .when(f.col("target_rows") == 0, MISSING)
        .when(f.col("source_rows") == 0, DELETED)
        .when(f.size("differing") == 0, SAME)
        .otherwise(DIFFERENT)
    )
    rows = groups.withColumn("differing", _differing(columns)).withColumn("reason", reason)
    changed = f.when(f.col("reason") == DIFFERENT, f.col("differing"))
    rows = rows.withColumn("changed", changed)
    return rows.withColumnsRenamed({f"{side}_value_0": f"{side}_version" for side in ("source", "target")})


def _differing(columns: Columns) -> Column:
    from pyspark.sql import functions as f

    named = [
        f.when(~f.col(f"source_{name}").eqNullSafe(f.col(f"target_{name}")), f.lit(str(pair)))
        for name, pair in zip(value_names(columns), columns.values, strict=True)
    ]
    return f.array_compact(f.array(*named))


def _collapsed(groups: DataFrame, names: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as f

    is_different = f.col("reason") != SAME
    kept = [f.when(is_different, f.col(name)).alias(name) for name in names]
    return groups.groupBy("reason", *kept).agg(f.count("*").alias("keys"))


def _rows_without_key(found: DataFrame) -> dict[str, int]:
    sums = found.where(found.reason == _NO_KEY).groupBy().sum(*_COUNTED).collect()[0]
    return {"source": sums[0] or 0, "target": sums[1] or 0}


def _without_key(rows: Mapping[str, int], columns: Columns) -> str:
    return (
        f"rows without a key: {rows['source']} in the source and {rows['target']} in the target have null in "
        f"{_spelled(columns.key)}; complete them, or leave them out by --on-null skip"
    )


def _refuse_repeated_keys(found: DataFrame, counted: Mapping[str, int], columns: Columns) -> None:
    from pyspark.sql import functions as f

    if _REPEATED in counted:
        # As text: Python lacks years beyond 9999.
        key = [f.col(name).cast("string").alias(name) for name in key_names(columns)]
        (example,) = found.where(found.reason == _REPEATED).select(*key, *_COUNTED).limit(1).collect()
        raise DrainError(
            f"{_spelled(columns.key)} is not a key: {counted[_REPEATED]} of its values occur more than once, such as "
            f"{', '.join(example[:-2])}, {example.source_rows} times in the source and {example.target_rows} times in "
            "the target"
        )


def _spelled(key: Sequence[Pair]) -> str:
    return ", ".join(dict.fromkeys(name for pair in key for name in pair))
