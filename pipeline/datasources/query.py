"""Any query as a Spark table."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from psycopg.sql import Identifier
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from drain.errors import ConfigError, DrainError
from drain.pipeline.datasources import adbc, options as given_options, snapshot

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

# Years 1 to 9999, as in Python. Infinity arrives as a number outside.
_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
_DAYS = (-719_162, 2_932_896)
# ADBC or Spark would misread these: money as cents.
_TEXTS = (b"money", b"time", b"interval")
_APPLICATION = "drain spark query"


class PostgresQuery(DataSource):
    """Data source for one SELECT, read on one connection.

    Options: `query`; `database_url` (DRAIN_DATABASE_URL by default); `snapshot`, the name of an exported one.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self.database_url = given_options.database_url(options)
        self.query = options.get("query", "").strip().rstrip(";")
        if not self.query:
            raise ConfigError("option query is missing: the SELECT to read")

    @classmethod
    def name(cls) -> str:
        """Return the name in Spark."""
        return "postgres_query"

    def schema(self) -> StructType:
        """Ask for the query's columns."""
        with adbc.connect(self.database_url, _APPLICATION) as connection:
            schema = adbc.schema_of(connection, _readable(connection, self.query))
        return StructType(list(from_arrow_schema(_spark_compatible(schema)).fields))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002  (Spark's own)
        """Read the rows."""
        return _QueryReader(self.database_url, self.query, self.options.get("snapshot"))


class _QueryReader(DataSourceReader):
    def __init__(self, database_url: str, query: str, snapshot_name: str | None) -> None:
        self._database_url = database_url
        self._query = query
        self._snapshot = snapshot_name

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  (Spark's own)
        if self._snapshot is None:
            with adbc.connect(self._database_url, _APPLICATION) as connection:
                yield from self._batches(connection)
        else:
            with snapshot.joined(self._database_url, self._snapshot) as connection:
                yield from self._batches(connection)

    def _batches(self, connection: Connection) -> Iterator[pa.RecordBatch]:
        statement = _readable(connection, self._query)
        schema = _spark_compatible(adbc.schema_of(connection, statement))
        for batch in adbc.batches(connection, statement, schema):
            _refuse_times_out_of_range(batch)
            yield batch


def _refuse_times_out_of_range(batch: pa.RecordBatch) -> None:
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_timestamp(field.type):
            first, last = _MICROSECONDS
            numbers = column.cast(pa.int64())
        elif pa.types.is_date32(field.type):
            first, last = _DAYS
            numbers = column.cast(pa.int32())
        else:
            continue
        found = pc.min_max(numbers).as_py()
        if found["min"] is not None and not first <= found["min"] <= found["max"] <= last:
            raise DrainError(
                f"column {field.name} holds a time outside of the years 1 to 9999, such as infinity: "
                f"select {field.name}::text"
            )


def _readable(connection: Connection, query: str) -> str:
    names = (
        f"{name}::text AS {name}" if _is_to_be_text(field) else name
        for field in adbc.schema_of(connection, query)
        for name in [Identifier(field.name).as_string()]
    )
    return f"SELECT {', '.join(names)} FROM ({query}\n) AS given"


def _is_to_be_text(field: pa.Field) -> bool:
    if pa.types.is_struct(field.type) or isinstance(
        getattr(field.type, "value_type", None), pa.BaseExtensionType
    ):
        raise ConfigError(
            f"column {field.name} has a type that cannot be read: select to_jsonb({field.name})"
        )
    return (
        isinstance(field.type, pa.BaseExtensionType)
        or (field.metadata or {}).get(b"POSTGRESQL:type") in _TEXTS
    )


def _spark_compatible(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, _spark_type(field.type)) for field in schema])


def _spark_type(given: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(given):
        return pa.timestamp("us", given.tz and "UTC")
    return pa.string() if pa.types.is_large_string(given) else given
