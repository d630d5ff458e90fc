"""Property: the arguments that are staged from a file are what the tool that wrote it reads.

Each file has all of Unicode in a column of texts, and three hundred values of each type: edge cases, and random ones.
"""

from __future__ import annotations

import csv
import json
import math
import re
import struct
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import psycopg
import pyarrow as pa
import pytest
from pyarrow import orc, parquet as pq

from drain.errors import DrainError
from drain.pipeline.failures import explained
from drain.pipeline.sources import Source
from tests.helpers import query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Columns = Mapping[str, Sequence[Any]]
StagedFrom = Callable[..., Columns]

ROWS = 300
FIRST, LAST = map(datetime.fromisoformat, ("0001-01-01T00:00:00", "9999-12-31T23:59:59.999999"))
TRICKY = [
    "",
    "01067",
    'say "hi"',
    '"',
    "a,b;c",
    "back\\slash",
    "\\",
    "\\N",
    "\\.",
    " pad ",
    " ",
    "\t",
    "a\nb",
    "\n",
]
TRICKY += [
    "NA",
    "null",
    "NaN",
    "#c",
    "1e5",
    "é",
    "😀",
    "{}",
    "'",
    "a\r\nb",
    "\r",
    "\ufeffx",
    "true",
    "2026-01-02",
]

random = Random(1)


def column(edges: Iterable[Any], make: Callable[[], Any]) -> list[Any]:
    values = [None, *edges]
    return values + [make() for _ in range(ROWS - len(values))]


@cache
def texts(*, without: str = "") -> list[Any]:
    """Tricky texts, and those in which each character of Unicode occurs, but surrogates, NUL and some more."""
    every = [chr(code) for code in (*range(1, 0xD800), *range(0xE000, 0x110000)) if chr(code) not in without]
    random.shuffle(every)
    tricky = [text for text in TRICKY if not set(text) & set(without)]
    size = len(every) // (ROWS - len(tricky) - 1) + 1
    long = ["".join(every[start : start + size]) for start in range(0, len(every), size)]
    return [None, *tricky, *long, *[None] * (ROWS - len(tricky) - len(long) - 1)]


def integer() -> int:
    return random.getrandbits(random.randrange(64)) * random.choice((-1, 1))


def real() -> float:
    return float(struct.unpack("d", random.randbytes(8))[0])


def decimal() -> Decimal:
    return Decimal(random.randrange(-(10**38) + 1, 10**38)).scaleb(-10)


def moment() -> datetime:
    return FIRST + timedelta(microseconds=random.randrange((LAST - FIRST) // timedelta(microseconds=1)))


def rows_of(columns: Columns) -> list[tuple[Any, ...]]:
    return list(zip(*columns.values(), strict=True))


def typed() -> dict[str, list[Any]]:
    """Values that most formats have, by the name of their column."""
    return {
        "id": list(range(ROWS)),
        "whole": column([0, 2**63 - 1, -(2**63), 2**53 + 1], integer),
        "exact": column([Decimal("1.20"), Decimal("1E-10"), Decimal(0), decimal().normalize()], decimal),
        "real": column(
            [math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308, 0.1, 1e23], real
        ),
        "yes": column([True, False], lambda: random.random() < 0.5),
        "day": column([date.min, date.max, date(1969, 12, 31), date(1582, 10, 15)], lambda: moment().date()),
        "at": column([FIRST, LAST, datetime.fromisoformat("1969-12-31T23:59:59.999999")], moment),
        "text": texts(),
    }


def argument(value: Any) -> Any:
    """Make the argument for a value, as docs/bulk/index.md has it."""
    match value:
        case float() if not math.isfinite(value):
            return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        case date() | time():
            return spelled(value)
        case bytes():
            return b64encode(value).decode()
        case dict():
            return {name: argument(each) for name, each in value.items()}
        case list():
            return [argument(each) for each in value]
        case _:
            return value


def spelled(value: date | time) -> str:
    """Spell a date or a time in ISO 8601: a timestamp with microseconds, in UTC if it has a zone."""
    if isinstance(value, datetime):
        at = value.astimezone(UTC) if value.tzinfo else value
        return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
    return re.sub(r"(\.\d*?)0+$", r"\1", value.isoformat())


def is_same(found: Any, expected: Any) -> bool:
    """Compare; a float is equal if the number is read as the same float."""
    match found, expected:
        case (int() | Decimal(), float()):
            return not isinstance(found, bool) and float(found) == expected
        case dict(), dict():
            return found.keys() == expected.keys() and all(
                is_same(found[name], expected[name]) for name in found
            )
        case list(), list():
            return len(found) == len(expected) and all(map(is_same, found, expected))
        case _:
            return isinstance(found, bool) == isinstance(expected, bool) and bool(found == expected)


def check(found: Columns, expected: Columns) -> None:
    """Compare columns; the first row that differs is shown."""
    for name, values in expected.items():
        assert len(found[name]) == len(values)
        for row, (staged, value) in enumerate(zip(found[name], map(argument, values), strict=True)):
            assert is_same(staged, value), f"{name}, row {row}: {staged!r:.200} instead of {value!r:.200}"


def by_column(rows: Iterable[Sequence[Any]], names: Iterable[str]) -> dict[str, list[Any]]:
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


TYPES_OF_POSTGRES = {
    "id": "int8",
    "whole": "int8",
    "exact": "numeric(38,10)",
    "real": "float8",
    "yes": "bool",
    "day": "date",
    "at": "timestamp",
    "zoned": "timestamptz",
    "text": "text",
}
# The same for --columns, where `timestamp` is Spark's, which is in UTC.
TYPES = ", ".join(f"{name} {kind}" for name, kind in (TYPES_OF_POSTGRES | {"at": "timestamp_ntz"}).items())


def make_table(database_url: str, values: Columns) -> None:
    """Make a table `given` of these values."""
    with psycopg.connect(database_url) as connection:
        spelled = ", ".join(f"{name} {TYPES_OF_POSTGRES[name]}" for name in values)
        connection.execute(f"CREATE TABLE given ({spelled})".encode())
        with connection.cursor().copy(f"COPY given ({', '.join(values)}) FROM STDIN".encode()) as copy:
            for row in rows_of(values):
                copy.write_row(row)


def of_postgres(*, without: str = "") -> dict[str, list[Any]]:
    values = typed() | {"text": texts(without=without)}
    return values | {"zoned": [at and at.replace(tzinfo=UTC) for at in values["at"]]}


@pytest.mark.parametrize("force", ["", ", FORCE_QUOTE *"])
def test_csv_files_written_by_copy(
    database_url: str, staged_from: StagedFrom, tmp_path: Path, force: str
) -> None:
    values = of_postgres(without="\ufffd")
    make_table(database_url, values)
    path = tmp_path / "copied.csv"
    with psycopg.connect(database_url) as connection:
        with connection.cursor().copy(f"COPY given TO STDOUT (FORMAT csv, HEADER{force})".encode()) as copy:
            path.write_bytes(b"".join(copy))
        connection.execute("CREATE TABLE again (LIKE given)")
        with connection.cursor().copy("COPY again FROM STDIN (FORMAT csv, HEADER)") as copy:
            copy.write(path.read_bytes())
        expected = by_column(connection.execute("SELECT * FROM again ORDER BY id"), values)
    check(staged_from(path, list(values), "--option", "multiLine=true", "--columns", TYPES), expected)


def texts_twice(without: str) -> dict[str, list[Any]]:
    return {"id": list(range(ROWS)), "a": texts(without=without), "b": texts(without=without)}


@pytest.mark.parametrize(
    ("delimiter", "encoding", "quoting"),
    [
        (",", "utf-8", csv.QUOTE_MINIMAL),
        (";", "utf-8-sig", csv.QUOTE_MINIMAL),
        (";", "utf-16", csv.QUOTE_ALL),
    ],
)
def test_csv_files_written_by_excel(
    staged_from: StagedFrom, tmp_path: Path, delimiter: str, encoding: str, quoting: Any
) -> None:
    values = texts_twice("\ufffd")
    path = tmp_path / "excel.csv"
    given: dict[str, Any] = {"dialect": csv.excel, "delimiter": delimiter}
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file, quoting=quoting, **given).writerows([values, *rows_of(values)])
    with path.open(newline="", encoding=encoding) as file:
        rows = list(csv.reader(file, **given))[1:]
    # Newlines within quotes as the docs have them; an empty field without quotes is null.
    empty = None if quoting == csv.QUOTE_MINIMAL else ""
    expected = by_column([[cell.replace("\r\n", "\n") or empty for cell in row] for row in rows], values)
    options = ["--option", "multiLine=true", "--option", f"sep={delimiter}"]
    options += ["--option", "encoding=utf-16"] if encoding == "utf-16" else []
    check(staged_from(path, list(values), *options), expected)


@pytest.mark.parametrize(
    ("given", "empty"),
    [
        ({}, None),
        ({"quoting": csv.QUOTE_ALL}, ""),
        ({"quoting": csv.QUOTE_NONNUMERIC}, ""),
        ({"sep": "\t", "lineterminator": "\r\n"}, None),
        ({"compression": "gzip"}, None),
    ],
)
def test_csv_files_written_by_pandas(
    staged_from: StagedFrom, tmp_path: Path, given: dict[str, Any], empty: Any
) -> None:
    # pandas itself reads "\r" that it has written as the end of a line.
    values = texts_twice("\ufffd\r")
    path = tmp_path / ("pandas.csv.gz" if "compression" in given else "pandas.csv")
    pd.DataFrame(values, dtype=object).to_csv(path, index=False, **given)
    sep = given.get("sep", ",")
    rows = pd.read_csv(path, dtype=str, keep_default_na=False, sep=sep).itertuples(index=False)
    expected = by_column([[cell or empty for cell in row] for row in rows], values)
    check(staged_from(path, list(values), "--option", "multiLine=true", "--option", f"sep={sep}"), expected)


@pytest.mark.parametrize("tool", ["pandas", "polars"])
def test_json_lines(staged_from: StagedFrom, tmp_path: Path, tool: str) -> None:
    path = tmp_path / "rows.jsonl"
    values: dict[str, Any] = typed() | {"text": texts(without="\ufffd")}
    if tool == "pandas":
        # pandas writes at most 15 digits after the point, and integers with nulls as floats.
        values = {name: values[name] for name in ("id", "text", "yes")}
        values["real"] = [round(random.uniform(-1e6, 1e6), 6) for _ in range(ROWS)]
        values["whole"] = [integer() for _ in range(ROWS)]
        pd.DataFrame(values).to_json(path, orient="records", lines=True, double_precision=15)
        expected = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
    else:
        values |= {"list": [[each, None] for each in values["whole"]]}
        values |= {"struct": [{"a": a, "b": b} for a, b in zip(values["whole"], values["text"], strict=True)]}
        del values["exact"]
        pl.DataFrame(values).write_ndjson(path)
        expected = pl.read_ndjson(path, infer_schema_length=None).to_dicts()
    check(staged_from(path, list(values)), by_column([row.values() for row in expected], values))


def test_json_lines_written_by_postgres(database_url: str, staged_from: StagedFrom, tmp_path: Path) -> None:
    values = of_postgres(without="\ufffd")
    # JSON has no such numbers: PostgreSQL writes texts, which a column of floats takes.
    make_table(database_url, values)
    path = tmp_path / "rows.jsonl"
    rows = query(database_url, "SELECT row_to_json(given)::text FROM given")
    path.write_text("".join(f"{text}\n" for (text,) in rows), encoding="utf-8")
    expected = by_column(query(database_url, "SELECT * FROM given ORDER BY id"), values)
    check(staged_from(path, list(values), "--columns", TYPES), expected)


def arrow(*, all_: bool = True) -> pa.Table:
    """Make a table of all types and times, or of those that pyarrow writes to ORC and Spark reads from Arrow."""
    values = typed()
    ats, zone = values["at"], pa.timestamp("us", "Europe/Berlin")
    # Years that nanoseconds have. Before 1970, pyarrow writes fractions to ORC that Java's reader refuses.
    brief = [at and at.replace(year=1700 + at.year % 500) for at in ats]
    ats = ats if all_ else [at.replace(microsecond=0) if at and at.year < 1970 else at for at in brief]
    nanoseconds = [
        None if at is None else int(pd.Timestamp(at).value) + random.randrange(1000) for at in brief
    ]
    nested = [
        None if number % 9 == 8 else {"a": a, "b": b, "c": [c, None], "d": d}
        for number, (a, b, c, d) in enumerate(
            zip(values["whole"], values["text"], values["exact"], ats, strict=True)
        )
    ]
    struct_ = pa.struct(
        [
            ("a", pa.int64()),
            ("b", pa.string()),
            ("c", pa.list_(pa.decimal128(38, 10))),
            ("d", pa.timestamp("us")),
        ]
    )
    columns = {
        "id": pa.array(values["id"]),
        "whole": pa.array(values["whole"], pa.int64()),
        "small": pa.array(column([-128, 127], lambda: random.randrange(-128, 128)), pa.int8()),
        "exact": pa.array(values["exact"], pa.decimal128(38, 10)),
        "price": pa.array(
            column([Decimal("-0.01")], lambda: Decimal(random.randrange(99999)).scaleb(-2)),
            pa.decimal128(7, 2),
        ),
        "real": pa.array(values["real"], pa.float64()),
        "single": pa.array(column([math.nan, 0.1, 3.4028235e38], random.random), pa.float32()),
        "yes": pa.array(values["yes"]),
        "day": pa.array(values["day"]),
        "at": pa.array(ats, pa.timestamp("us")),
        # Python has no years 0 and 10,000 for another zone.
        "zoned": pa.array([None if at in (FIRST, LAST) else at for at in ats], zone),
        "text": pa.array(values["text"]),
        "bytes": pa.array(column([b"", b"\0\xff"], lambda: random.randbytes(random.randrange(20)))),
        "list": pa.array(column([[], [None]], lambda: [integer(), None]), pa.list_(pa.int64())),
        "struct": pa.array(nested, struct_),
    }
    if all_:
        columns |= {
            "large": pa.array(column([2**64 - 1], lambda: random.getrandbits(64)), pa.uint64()),
            "ms": pa.array([at and at.replace(microsecond=0) for at in ats], pa.timestamp("ms")),
            "ns": pa.array(nanoseconds, pa.timestamp("ns")),
            "zoned_ns": pa.array(nanoseconds, pa.timestamp("ns", "UTC")),
            "list_ns": pa.array([[each, None] for each in nanoseconds], pa.list_(pa.timestamp("ns"))),
            "struct_ns": pa.array(
                [{"at": each, "n": 1} for each in nanoseconds],
                pa.struct([("at", pa.timestamp("ns", "UTC")), ("n", pa.int64())]),
            ),
            "hour": pa.array([at and at.time() for at in ats], pa.time64("us")),
            "dictionary": pa.array(random.choices(["a", "b", None, ""], k=ROWS)).dictionary_encode(),
            "nothing": pa.nulls(ROWS),
        }
    return pa.table(columns)


def single(values: Iterable[float | None]) -> list[float | None]:
    """Floats of 32 bits by their shortest text, 0.1 and not 0.10000000149011612."""
    return [None if each is None else float(str(np.float32(each))) for each in values]


def of_arrow(table: pa.Table) -> dict[str, list[Any]]:
    columns = {name: table[name].to_pylist() for name in table.column_names}
    return columns | {"single": single(columns["single"])}


@pytest.mark.parametrize("tool", ["pyarrow", "pandas", "polars", "duckdb", "spark"])
def test_parquet(spark: SparkSession, staged_from: StagedFrom, tmp_path: Path, tool: str) -> None:
    path, table = tmp_path / "rows.parquet", arrow()
    expected: dict[str, list[Any]]
    if tool == "pyarrow":
        pq.write_table(table, path, row_group_size=100)
        expected = of_arrow(pq.read_table(path))
    elif tool == "pandas":
        table.to_pandas(types_mapper=pd.ArrowDtype).to_parquet(path)
        expected = of_arrow(pa.Table.from_pandas(pd.read_parquet(path, dtype_backend="pyarrow")))
    elif tool == "polars":
        pl.from_arrow(table).write_parquet(path)  # type: ignore[union-attr]
        expected = of_arrow(pl.read_parquet(path).to_arrow())
    elif tool == "duckdb":
        duckdb.from_arrow(table).write_parquet(str(path))
        expected = of_arrow(duckdb.read_parquet(str(path)).to_arrow_table())
    else:
        spark.createDataFrame(arrow(all_=False)).write.parquet(str(path))
        expected = of_arrow(spark.read.parquet(str(path)).orderBy("id").toArrow())
    check(staged_from(path, list(expected)), expected)


def test_parquet_files_of_a_numpy_backed_frame(staged_from: StagedFrom, tmp_path: Path) -> None:
    path, table = tmp_path / "rows.parquet", arrow()
    names = ["id", "real", "text", "ns", "zoned_ns", "dictionary", "bytes", "exact"]
    table.select(names).to_pandas().to_parquet(path)
    frame = pd.read_parquet(path)
    # pandas has one value for NaN and null, and writes it as null.
    expected = {name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in names}
    check(staged_from(path, names), expected)


@pytest.mark.parametrize("tool", ["pyarrow", "spark"])
def test_orc(spark: SparkSession, staged_from: StagedFrom, tmp_path: Path, tool: str) -> None:
    path, table = tmp_path / "rows.orc", arrow(all_=False)
    if tool == "pyarrow":
        orc.write_table(table, path)
        expected = of_arrow(orc.read_table(path))
        # ORC's timestamps are read as those in UTC.
        expected["at"] = [at and at.replace(tzinfo=UTC) for at in expected["at"]]
        expected["struct"] = [
            each and each | {"d": each["d"] and each["d"].replace(tzinfo=UTC)} for each in expected["struct"]
        ]
    else:
        spark.createDataFrame(table).write.orc(str(path))
        expected = of_arrow(spark.read.orc(str(path)).orderBy("id").toArrow())
    check(staged_from(path, list(expected)), expected)


def test_a_query_on_another_database(
    database_url: str, other_database_url: str, staged_from: StagedFrom, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = of_postgres()
    make_table(other_database_url, values)
    more = {
        "bytes": "sha256(id::text::bytea)",
        "list": "ARRAY[whole, NULL]",
        "numeric": "exact::text",
    }
    selected = ", ".join([*values, *(f"{spelled} AS {name}" for name, spelled in more.items())])
    rows = query(other_database_url, f"SELECT {selected} FROM given ORDER BY id")
    expected = by_column(rows, [*values, *more])
    # Decimals are texts, and so are types that JSON has no like of.
    expected["exact"] = expected["numeric"]
    monkeypatch.setenv("DRAIN_SOURCE_DATABASE_URL", other_database_url)
    check(staged_from(f"sql:SELECT {selected} FROM given", list(expected)), expected)


@pytest.mark.parametrize(
    ("selected", "words"),
    [
        ("'infinity'::timestamptz", "outside of the years 1 to 9999"),
        ("ARRAY[1.5]", "has a type that cannot be read: select to_jsonb(a)"),
        ("ROW(1, 2)", "has a type that cannot be read: select to_jsonb(a)"),
    ],
)
def test_an_unreadable_query_value_is_refused(
    spark: SparkSession, database_url: str, selected: str, words: str
) -> None:
    source = Source.of(f"sql:SELECT {selected} AS a", database_url=database_url)
    with pytest.raises(DrainError, match=re.escape(words)), explained():
        source.load(spark).collect()


@pytest.mark.parametrize("selected", ["uuid()", "INTERVAL 1 DAY"])
def test_a_parquet_type_unknown_to_spark_is_refused_in_one_line(
    spark: SparkSession, tmp_path: Path, selected: str
) -> None:
    path = tmp_path / "rows.parquet"
    duckdb.sql(f"COPY (SELECT {selected} AS a) TO '{path}' (FORMAT parquet)")
    with pytest.raises(DrainError, match=r"Spark: .*FIXED_LEN_BYTE_ARRAY"):
        Source.of(str(path)).load(spark)


@pytest.mark.parametrize("kind", ["money", "time", "interval"])
def test_postgres_types_unknown_to_spark_are_read_as_text(
    spark: SparkSession, database_url: str, kind: str
) -> None:
    text = {"money": "$12.30", "time": "10:00:00", "interval": "1 day"}[kind]
    rows = Source.of(f"sql:SELECT '{text}'::{kind} AS a", database_url=database_url).load(spark)
    assert rows.first() == (text,)


def test_a_directory_with_compressed_files_is_not_split(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    (tmp_path / "day=1" / "rows.csv").touch()
    assert Source.of(str(tmp_path)).is_divided
    (tmp_path / "day=1" / "more.csv.gz").touch()
    assert not Source.of(str(tmp_path)).is_divided
