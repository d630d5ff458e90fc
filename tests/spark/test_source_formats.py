"""Property: what is read from a file is what the tool that wrote it reads."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd  # type: ignore[import-untyped]
import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import orc
from pyarrow import parquet as pq

from pipeline.sources import Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[tuple[Any, ...]]

# Texts that all the tools can write. Spark's parser of CSV reads "\r\n" within quotes as "\n".
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r\ufffd"), max_size=6)
TRICKY = st.sampled_from(
    ["01067", 'say "hi"', "a,b", "back\\slash", " pad ", "a\nb", "NA", "null", "#c", "1e5", "é"]
)
VALUE = st.none() | TRICKY | TEXT
TEXTS = st.lists(st.tuples(VALUE, VALUE), min_size=1, max_size=12)
NUMBER = st.none() | st.integers(-(2**63), 2**63 - 1)
TYPED = st.lists(st.tuples(NUMBER, VALUE, st.none() | st.booleans()), min_size=1, max_size=12)
few = settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def read(spark: SparkSession, path: Path, **given: str) -> Rows:
    return sorted((tuple(row) for row in Source.of(str(path), given).load(spark).collect()), key=repr)


def in_order(rows: Any) -> Rows:
    return sorted((tuple(row) for row in rows), key=repr)


def empty_is_null(rows: Any) -> Rows:
    return in_order(tuple(value or None for value in row) for row in rows)


@few
@given(rows=TEXTS)
def test_csv_of_copy(spark: SparkSession, database_url: str, tmp_path: Path, rows: Rows) -> None:
    path = tmp_path / "copied.csv"
    with psycopg.connect(database_url) as connection, path.open("wb") as file:
        connection.execute("CREATE TEMP TABLE rows (a text, b text)")
        connection.cursor().executemany("INSERT INTO rows VALUES (%s, %s)", rows)
        with connection.cursor().copy("COPY rows TO STDOUT (FORMAT csv, HEADER)") as copy:
            for data in copy:
                file.write(data)
        connection.rollback()
    assert read(spark, path, multiLine="true") == in_order(rows)


@few
@given(rows=TEXTS)
def test_csv_of_excel(spark: SparkSession, tmp_path: Path, rows: Rows) -> None:
    path = tmp_path / "excel.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, csv.excel).writerows([("a", "b"), *rows])
    with path.open(newline="", encoding="utf-8") as file:
        expected = list(csv.reader(file, csv.excel))[1:]
    assert read(spark, path, multiLine="true") == empty_is_null(expected)


@few
@given(rows=TEXTS)
def test_csv_of_pandas(spark: SparkSession, tmp_path: Path, rows: Rows) -> None:
    path = tmp_path / "pandas.csv"
    pd.DataFrame(rows, columns=["a", "b"], dtype=object).to_csv(path, index=False)
    expected = pd.read_csv(path, dtype=str, keep_default_na=False)
    assert read(spark, path, multiLine="true") == empty_is_null(expected.itertuples(index=False))


@few
@given(rows=TYPED)
def test_json_lines(spark: SparkSession, tmp_path: Path, rows: Rows) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps(dict(zip("abc", row, strict=True))) + "\n" for row in rows), encoding="utf-8"
    )
    expected = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    typed = Source.of(str(path), columns="a bigint, b text, c bool").load(spark)
    assert in_order(typed.collect()) == in_order(tuple(row.values()) for row in expected)


@pytest.mark.parametrize("tool", ["pyarrow", "pandas", "spark", "orc"])
@few
@given(rows=TYPED)
def test_files_with_types(spark: SparkSession, tmp_path: Path, tool: str, rows: Rows) -> None:
    path = tmp_path / ("rows.orc" if tool == "orc" else "rows.parquet")
    schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("c", pa.bool_())])
    table = pa.Table.from_pylist([dict(zip("abc", row, strict=True)) for row in rows], schema)
    if tool == "pandas":
        table.to_pandas(types_mapper=pd.ArrowDtype).to_parquet(path)
    elif tool == "orc":
        orc.write_table(table, path)
    elif tool == "spark":
        spark.createDataFrame(rows, "a bigint, b string, c boolean").write.mode("overwrite").parquet(
            str(path)
        )
    else:
        pq.write_table(table, path)
    written = orc.read_table(path) if tool == "orc" else pq.read_table(path)
    assert read(spark, path) == in_order(row.values() for row in written.to_pylist())
