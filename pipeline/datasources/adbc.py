"""Arrow batches out of PostgreSQL, through ADBC."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from drain.database import postgres, url
from drain.errors import DrainError

if TYPE_CHECKING:
    import pyarrow as pa
    from adbc_driver_manager.dbapi import Connection

# Some ten thousand rows of a kilobyte; ADBC's default is 16 MiB.
_BATCH_BYTES = 8 * 1024 * 1024


@contextmanager
def connect(database_url: str, application_name: str) -> Iterator[Connection]:
    """Connect and open a transaction, rolled back unless committed.

    Raises:
        UnavailableError: The connection fails; the text has no password.
        DrainError: The server refused a statement.
    """
    import adbc_driver_manager
    from adbc_driver_postgresql import dbapi

    try:
        with closing(dbapi.connect(url.conninfo(database_url, application_name))) as connection:
            yield connection
    except adbc_driver_manager.OperationalError as error:
        raise postgres.unavailable(error, database_url) from None
    except adbc_driver_manager.Error as error:
        reason = str(error).rpartition("ERROR:")[2].strip().partition("\n")[0]
        raise DrainError(f"PostgreSQL refused: {reason}") from None


def schema_of(connection: Connection, statement: str) -> pa.Schema:
    """Return a statement's Arrow schema, without executing it."""
    with connection.cursor() as cursor:
        return cursor.adbc_execute_schema(statement)


def batches(connection: Connection, statement: str, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read batches of this schema."""
    with connection.cursor() as cursor:
        cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)})
        cursor.execute(statement)
        for batch in cursor.fetch_record_batch():
            if batch.num_rows:
                yield batch.cast(schema)
