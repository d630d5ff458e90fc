"""Our statements on Alembic's connection, with any driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy

from drain.errors import SchemaError

# SQLSTATEs.
_IN_USE = {"55P03", "57014"}
_NO_RIGHT = "42501"
_READ_ONLY = "25006"
# Our scripts' own exceptions.
_RAISED = "P0001"

_KEPT = ("search_path", "lock_timeout", "statement_timeout")


class Statements:
    """SQLAlchemy connection for `drain.database`; transactions are the caller's."""

    def __init__(self, connection: sqlalchemy.Connection) -> None:
        self._connection = connection

    def execute(
        self, statement: str | bytes, parameters: Sequence[Any] | Mapping[str, Any] = ()
    ) -> sqlalchemy.CursorResult[Any]:
        """Run one statement; its parameters are our own names."""
        text = statement.decode() if isinstance(statement, bytes) else statement
        if isinstance(parameters, Mapping):
            for name, value in parameters.items():
                text = text.replace(f"%({name})s", _literal(value))
        else:
            for value in parameters:
                text = text.replace("%s", _literal(value), 1)
        # Our percent signs are not placeholders.
        return self._connection.exec_driver_sql(text, execution_options={"no_parameters": True})

    def run(self, script: str) -> None:
        """Run several statements."""
        # Drivers begin the transaction with SQLAlchemy's first statement.
        self.execute("SELECT 1")
        driver = self._connection.dialect.driver
        pooled: Any = self._connection.connection
        if driver == "asyncpg":
            pooled.dbapi_connection.run_async(lambda connection: connection.execute(script))
        elif driver == "pg8000":
            pooled.driver_connection.execute_simple(script)
        else:
            self.execute(script)

    def is_in_transaction(self) -> bool:
        """Return True if statements share a transaction."""
        self.execute("SELECT set_config('drain.in_transaction', 'yes', true)")
        return bool(self.execute("SELECT current_setting('drain.in_transaction') = 'yes'").scalar_one())

    @contextmanager
    def kept_settings(self) -> Iterator[None]:
        """Restore settings that our scripts change."""
        before = [self.execute(f"SELECT current_setting('{name}')").scalar_one() for name in _KEPT]
        yield
        for name, value in zip(_KEPT, before, strict=True):
            quoted = str(value).replace("'", "''")
            self.execute(f"SELECT set_config('{name}', '{quoted}', true)")


@contextmanager
def explained() -> Iterator[None]:
    """Map any driver's known errors to one line.

    Raises:
        SchemaError: Tables in use, missing rights, or a read-only database.
    """
    try:
        yield
    except Exception as error:
        state = _sqlstate(error)
        if state in _IN_USE:
            raise SchemaError(
                "the tables of job-drain are in use by a long transaction; run the migration again"
            ) from error
        if state == _NO_RIGHT:
            raise SchemaError(
                "the role may not create the tables of job-drain, or change them: run the migration as their owner"
            ) from error
        if state == _READ_ONLY:
            raise SchemaError(
                "the database is read-only: a standby, or default_transaction_read_only is on"
            ) from error
        if state == _RAISED:
            raise SchemaError(_message(error)) from error
        raise


def _sqlstate(error: Exception) -> str | None:
    # SQLAlchemy keeps the driver's error in `orig`; psycopg2 and pg8000 name the code differently.
    cause = getattr(error, "orig", None) or error
    found = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if found is None and cause.args and isinstance(cause.args[0], dict):
        found = cause.args[0].get("C")
    return found


def _message(error: Exception) -> str:
    cause = getattr(error, "orig", None) or error
    if cause.args and isinstance(cause.args[0], dict):
        return str(cause.args[0].get("M"))
    return str(cause).partition("\n")[0]


def _literal(names: Sequence[str]) -> str:
    return "'{" + ",".join(names) + "}'"
