"""CSV and JSON lines: each row, or why it is unusable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from drain.errors import ConfigError, DrainError
from drain.pipeline.rejects import REASON, RECORD, shown

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMATS = ("csv", "json")
# Makes unreadable lines rejects; otherwise, Spark decides.
_STRICT = "FAILFAST"
_LINE = "_drain_line"
# Spark's substitute for undecodable bytes.
_REPLACEMENT = "\ufffd"
# PostgreSQL types that Spark lacks.
_TYPES = {
    "text": "string",
    "uuid": "string",
    "json": "string",
    "jsonb": "string",
    "bool": "boolean",
    "int2": "smallint",
    "int4": "int",
    "int8": "bigint",
    "float4": "float",
    "float8": "double",
    "timestamptz": "timestamp",
}
# Follows an object that is not last in its line, or within an array or text.
_NOT_LAST = r"\}\s*(,\s*\{|[^\s,\]}])"
# Half a surrogate pair, after an even number of backslashes.
_HALF = r"(?i)(?<!\\)(?:\\\\)*(?:\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f])"
# Unsigned JSON numbers, also within texts. No pattern repeats a group: Java's stack overflows on long texts.
_NUMBER = r"\d[\d.]*(?:[eE][+-]?\d+)?"
_ESCAPE, _TEXT = r"\\.", '"[^"]*"'
# Numbers that do not fit a float column, and few others. Integers of 38 digits are decimals.
_LARGE = r"\d{39}|[eE]\+?\d{3}"
_FLOATS = re.compile("float|double")
_COLUMN = re.compile(r"((?:^|,)\s*(?:\w+|`[^`]+`)\s+)(\w+)")
_OF_FILES = ("pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter", "linesep")


def load(spark: SparkSession, format_: str, path: str, options: Mapping[str, str], columns: str) -> DataFrame:
    """Return rows with REASON and RECORD of `drain.pipeline.rejects`.

    Args:
        columns: Names and types such as `id bigint, zip text`, or empty. Other CSV columns are strings; JSON has no
            others.

    Raises:
        DrainError: A quoted field has a newline, which needs `multiLine`.
    """
    from pyspark.sql import functions as f

    strict = options["mode"] == _STRICT
    given = dict(options) | ({"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _LINE} if strict else {})
    if format_ == "json" and _encoding(options):
        # Spark demands it for other encodings.
        given = {"lineSep": "\n"} | given
    reader = spark.read.format(format_).options(**given)
    types = _types(columns)
    schema = _read_as(types) if types is not None and format_ == "json" else reader.load(path).schema
    names = [name for name in schema.names if name != _LINE]
    _check_names(types, names)
    if strict and format_ == "csv":
        _refuse_open_quotes(spark, path, options)
    elif strict:
        _refuse_lines_that_change(spark, path, options, schema)
    if strict and _LINE not in schema.names:
        schema = schema.add(_LINE, "string")
    rows = reader.schema(schema).load(path)
    # Spark adds partition columns.
    names = [name for name in rows.columns if name != _LINE]
    raw = {name: rows[f"`{name}`"] for name in names}
    typed = dict(raw)
    line = [rows[_LINE]] if strict else []
    reasons = [_undecodable([*raw.values(), *line], options)]
    reasons += [f.when(each.isNotNull(), f.concat(f.lit("malformed line "), shown(each))) for each in line]
    for field in types if types is not None else []:
        if field.dataType == schema[field.name].dataType:
            continue
        typed[field.name], reason = _cast(raw[field.name], field.name, field.dataType.simpleString())
        reasons.append(reason)
    reason = f.coalesce(*reasons)
    record = f.coalesce(*line, f.to_json(f.struct(*raw.values())))
    return rows.select(
        *(column.alias(name) for name, column in typed.items()),
        reason.alias(REASON),
        f.when(reason.isNotNull(), record).alias(RECORD),
    )


def _types(columns: str) -> StructType | None:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    if not columns.strip():
        return None
    spelled = _COLUMN.sub(lambda found: found[1] + _TYPES.get(found[2].lower(), found[2]), columns)
    try:
        return cast("StructType", StructType.fromDDL(spelled))
    except PySparkException:
        raise ConfigError(
            f"columns {columns!r} cannot be read: give names and types, such as 'id bigint, zip text'"
        ) from None


def _read_as(types: StructType) -> StructType:
    """Read JSON's decimals as text, since Spark would round them."""
    from pyspark.sql.types import DecimalType, StringType, StructField, StructType

    return StructType(
        [
            StructField(each.name, StringType()) if isinstance(each.dataType, DecimalType) else each
            for each in types
        ]
    )


def _check_names(types: StructType | None, names: list[str]) -> None:
    for name in types.names if types is not None else []:
        if name not in names:
            raise ConfigError(f"the source has no column {name!r} of --columns; it has {', '.join(names)}")


def _cast(column: Column, name: str, kind: str) -> tuple[Column, Column]:
    """Cast a text; the second column says why it cannot be cast."""
    from pyspark.sql import functions as f

    # An empty field, even quoted, is text only in a text column.
    value = column if kind == "string" else f.nullif(column, f.lit(""))
    typed = value.try_cast(kind)
    refused = value.isNotNull() & typed.isNull()
    if kind.startswith("decimal"):
        # A cast rounds: only zeros may follow the scale. A double is exact enough for exponents.
        scale = kind.rpartition(",")[2].rstrip(")")
        refused = refused | value.rlike(rf"\.\d{{{scale}}}\d*[1-9]\d*\s*$")
        refused = refused | (typed.cast("double") != value.try_cast("double"))
    elif kind in ("float", "double"):
        # Too large a number becomes infinity.
        refused = refused | (value.rlike(r"\d") & typed.cast("string").contains("Infinity"))
    elif kind == "date":
        # A cast ignores everything after a space.
        refused = refused | value.contains("BC")
    words = f.concat(f.lit(f"column {name} holds "), shown(value), f.lit(f", which is not {kind}"))
    return typed, f.when(refused, words)


def _undecodable(columns: list[Column], options: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as f

    text = f.concat_ws("", *(column.cast("string") for column in columns))
    named = _encoding(options) or "UTF-8"
    words = f"bytes that are not valid {named}: name the encoding, such as --option encoding=latin1, in "
    # A malformed JSON line keeps its bytes.
    undecodable = text.contains(_REPLACEMENT) | ~f.is_valid_utf8(text)
    return f.when(undecodable, f.concat(f.lit(words), shown(f.make_valid_utf8(text))))


def _encoding(options: Mapping[str, str]) -> str:
    return next((value for name, value in options.items() if name.lower() in ("encoding", "charset")), "")


def _refuse_open_quotes(spark: SparkSession, path: str, options: Mapping[str, str]) -> None:
    """Refuse lines with an odd number of quotes, which Spark would read as rows."""
    from pyspark.sql import functions as f

    by_name = {name.lower(): value for name, value in options.items()}
    quote = by_name.get("quote", '"')
    if (
        "multiline" in by_name
        or by_name["escape"] != quote
        or _encoding(options).lower().startswith("utf-16")
    ):
        return
    lines = _lines(spark, path, by_name)
    quotes = f.length("value") - f.length(f.replace(f.col("value"), f.lit(quote), f.lit("")))
    found = lines.where(quotes % 2 == 1).select(shown(f.col("value")).alias("line")).first()
    if found is not None:
        raise DrainError(
            f"a quote is not closed in line {found.line}: if fields have newlines, give --option multiLine=true"
        )


def _refuse_lines_that_change(
    spark: SparkSession, path: str, options: Mapping[str, str], schema: StructType
) -> None:
    """Refuse lines that Spark would silently change.

    It keeps only the first of several objects, and replaces half surrogate pairs. In float columns, large numbers
    become infinity and large integers lose digits.
    """
    from pyspark.sql import functions as f

    by_name = {name.lower(): value for name, value in options.items()}
    if "multiline" in by_name or _encoding(options):
        return
    line = f.col("value")
    is_read = f.from_json(line, "map<string,string>").isNotNull()
    objects = f.size(f.from_json(f.concat(f.lit("["), line, f.lit("]")), "array<string>"))
    several = line.rlike(_NOT_LAST) & is_read & ~objects.eqNullSafe(1)
    half = f.lower(line).contains(r"\ud") & line.rlike(_HALF)
    reason = f.when(several, "continues after its object; each object needs its own line").when(
        half, "has an escape such as \\ud83d that is half of a character"
    )
    if _FLOATS.search(schema.simpleString()):
        without_texts = f.regexp_replace(f.regexp_replace(line, _ESCAPE, ""), _TEXT, "")
        numbers = f.regexp_extract_all(without_texts, f.lit(_NUMBER), f.lit(0))
        changed = f.exists(
            numbers,
            lambda number: number.rlike(r"^\d{39,}$") | (number.cast("double") == f.lit(float("inf"))),
        )
        reason = reason.when(
            line.rlike(_LARGE) & changed,
            "has a number that a float cannot hold; quote it, or leave its column out of --columns",
        )
    lines = _lines(spark, path, by_name).select(shown(line).alias("line"), reason.alias("reason"))
    found = lines.where("reason IS NOT NULL").first()
    if found is not None:
        raise DrainError(f"a line of JSON {found.reason}: {found.line}")


def _lines(spark: SparkSession, path: str, options: Mapping[str, str]) -> DataFrame:
    files = {name: value for name, value in options.items() if name in _OF_FILES}
    return spark.read.options(**files).text(path).select("value")
