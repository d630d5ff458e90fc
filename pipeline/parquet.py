"""Nanosecond timestamps of pandas, which Spark reads as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

# By path in a file's schema.
_Kinds: TypeAlias = Mapping[tuple[str, ...], str]

_NANOSECONDS = "TIMESTAMP(NANOS,"


def in_microseconds(rows: DataFrame) -> DataFrame:
    """Convert nanoseconds to microseconds, rounded down, in structs and lists too.

    Columns with them elsewhere, as in maps, are left out: their numbers would mislead.
    """
    if not any("bigint" in field.dataType.simpleString() for field in rows.schema):
        return rows
    found = _nanoseconds(rows)
    converted, unknown = {}, []
    for name, type_ in ((field.name, field.dataType) for field in rows.schema if _below(found, field.name)):
        try:
            converted[name] = _converted(rows[f"`{name}`"], type_, _below(found, name))
        except KeyError:
            unknown.append(name)
    return rows.withColumns(converted).drop(*unknown) if found else rows


def _nanoseconds(rows: DataFrame) -> _Kinds:
    """Find nanoseconds in the file that Spark took the schema from."""
    files = rows.inputFiles()
    if not files:
        return {}
    jvm = attrgetter("_jvm.org.apache")(rows.sparkSession)
    conf = rows.sparkSession._jsc.hadoopConfiguration()
    # Spark gives a URI, with %20 for spaces.
    path = jvm.hadoop.fs.Path(attrgetter("_jvm.java.net.URI")(rows.sparkSession)(files[0]))
    reader = jvm.parquet.hadoop.ParquetFileReader.open(
        jvm.parquet.hadoop.util.HadoopInputFile.fromPath(path, conf)
    )
    try:
        leaves = [
            (tuple(leaf.getPath()), str(leaf.getPrimitiveType().getLogicalTypeAnnotation()))
            for leaf in reader.getFileMetaData().getSchema().getColumns()
        ]
    finally:
        reader.close()
    return {path: kind for path, kind in leaves if kind.startswith(_NANOSECONDS)}


def _below(kinds: _Kinds, *names: str | None) -> _Kinds:
    """Strip these names from paths that begin with them; None is any name."""
    return {
        path[len(names) :]: kind
        for path, kind in kinds.items()
        if all(name in (None, part) for name, part in zip(names, path, strict=False))
    }


def _converted(column: Column, type_: DataType, kinds: _Kinds) -> Column:
    """Convert nanoseconds at these paths; KeyError if one is not a number."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, LongType, StructType

    if not kinds:
        return column
    if isinstance(type_, StructType):
        fields = [
            _converted(column.getField(each.name), each.dataType, _below(kinds, each.name)).alias(each.name)
            for each in type_
        ]
        return f.when(column.isNotNull(), f.struct(*fields))
    if isinstance(type_, ArrayType):
        # Lists are two groups: list.element.
        below = _below(kinds, None, None)
        return f.transform(column, lambda item: _converted(item, type_.elementType, below))
    if not isinstance(type_, LongType):
        raise KeyError(type_.simpleString())
    return _timestamp(column, kinds[()])


def _timestamp(nanoseconds: Column, kind: str) -> Column:
    from pyspark.sql import functions as f

    # A double would round.
    down = nanoseconds - f.pmod(nanoseconds, f.lit(1000))
    at = f.timestamp_micros(f.call_function("div", down, f.lit(1000)))
    return at if kind.endswith("true)") else at.cast("timestamp_ntz")
