"""Databases of the tests: templates, and a copy of one for each test."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Identifier

from drain.embedded import EmbeddedPostgres
from tests.helpers import disconnect

# Day of the newest partitions of each template, by name.
_MADE_ON: dict[str, date] = {}
# Servers' process ids, and templates.
_WARM: set[tuple[int, str]] = set()


def new_template(server: EmbeddedPostgres, name: str) -> str:
    """Make an empty database, in the place of an earlier one of this name; returns its URL."""
    disconnect()
    with _administrator(server) as connection:
        connection.execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name)))
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
    _MADE_ON[name] = datetime.now(UTC).date()
    return server.url_of(name)


@contextmanager
def copy_of(server: EmbeddedPostgres, template: str) -> Iterator[str]:
    """Copy a template for as long as the block runs; yields the URL of the copy."""
    name = f"test_{uuid4().hex}"
    # A template with open connections cannot be copied.
    disconnect()
    with _administrator(server) as connection:
        _warm_up(server, template, connection)
        # A third of the time that copying through the WAL takes; PostgreSQL 14 always does it so.
        strategy = SQL("STRATEGY file_copy" if connection.info.server_version >= 150_000 else "")
        connection.execute(
            SQL("CREATE DATABASE {} TEMPLATE {} {}").format(Identifier(name), Identifier(template), strategy)
        )
    _bring_up_to_today(server.url_of(name), template)
    try:
        yield server.url_of(name)
    finally:
        disconnect()
        with _administrator(server) as connection:
            _let_backends_leave(connection, name)
            connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


def _warm_up(server: EmbeddedPostgres, template: str, administrator: psycopg.Connection) -> None:
    """Let PostgreSQL write the catalog cache file, which saves the first session of each copy 15 ms."""
    if (server.pid, template) not in _WARM:
        _WARM.add((server.pid, template))
        psycopg.connect(server.url_of(template)).close()
        _let_backends_leave(administrator, template)


def _bring_up_to_today(database_url: str, template: str) -> None:
    """Give a copy the partitions of today where midnight, by UTC, has passed since the template was made."""
    day = _MADE_ON.get(template, date.max)
    if day >= datetime.now(UTC).date():
        return
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SELECT drain_make_days(3)")
        connection.execute(f"DROP TABLE finished_jobs_{day:%Y%m%d}".encode())


def _let_backends_leave(connection: psycopg.Connection, database: str) -> None:
    # DROP sleeps for 100 ms when it finds one, though they leave within 2 ms of the disconnect.
    busy = "SELECT FROM pg_stat_activity WHERE datname = %s"
    deadline = time.monotonic() + 0.05
    while connection.execute(busy, [database]).rowcount and time.monotonic() < deadline:
        time.sleep(0.001)


@contextmanager
def _administrator(server: EmbeddedPostgres) -> Iterator[psycopg.Connection]:
    # Not kept open: a test may restart the server in between.
    with psycopg.connect(server.url_of("postgres"), autocommit=True) as connection:
        yield connection
