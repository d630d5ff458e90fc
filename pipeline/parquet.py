"""Timestamps of nanoseconds in Parquet, as pandas writes them: Spark reads them as numbers."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_NANOSECONDS = "TIMESTAMP(NANOS,"


def in_microseconds(rows: DataFrame) -> DataFrame:
    """Convert columns of nanoseconds to timestamps of microseconds, rounded down.

    A column that holds nanoseconds within a struct, a list or a map is left out: its numbers would be taken for others.
    """
    from pyspark.sql.types import LongType

    if not any("bigint" in field.dataType.simpleString() for field in rows.schema):
        return rows
    found = _nanoseconds(rows)
    converted = {
        name: _timestamp(rows[f"`{name}`"], kind)
        for name, kind in found.items()
        if name in rows.columns and isinstance(rows.schema[name].dataType, LongType)
    }
    nested = [name for name in found if name not in converted]
    return rows.withColumns(converted).drop(*nested) if found else rows


def _nanoseconds(rows: DataFrame) -> dict[str, str]:
    """Find the columns with nanoseconds, in the file that Spark has taken the schema from, each with its kind."""
    files = rows.inputFiles()
    if not files:
        return {}
    jvm = attrgetter("_jvm.org.apache")(rows.sparkSession)
    conf = rows.sparkSession._jsc.hadoopConfiguration()
    reader = jvm.parquet.hadoop.ParquetFileReader.open(
        jvm.parquet.hadoop.util.HadoopInputFile.fromPath(jvm.hadoop.fs.Path(files[0]), conf)
    )
    try:
        leaves = [
            (leaf.getPath()[0], str(leaf.getPrimitiveType().getLogicalTypeAnnotation()))
            for leaf in reader.getFileMetaData().getSchema().getColumns()
        ]
    finally:
        reader.close()
    return {name: kind for name, kind in leaves if kind.startswith(_NANOSECONDS)}


def _timestamp(nanoseconds: Column, kind: str) -> Column:
    from pyspark.sql import functions as f

    # Whole numbers only: a double would round.
    down = nanoseconds - f.pmod(nanoseconds, f.lit(1000))
    at = f.timestamp_micros(f.call_function("div", down, f.lit(1000)))
    return at if kind.endswith("true)") else at.cast("timestamp_ntz")
