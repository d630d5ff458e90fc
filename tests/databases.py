"""Databases of the tests: templates, and a copy of one for each test."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Identifier

from drain import urls
from drain.embedded import EmbeddedPostgres
from tests.helpers import disconnect, is_open

# Day of the newest partitions of each template, by URL.
_MADE_ON: dict[str, date] = {}
# By the URL of their servers.
_administrators: dict[str, psycopg.Connection] = {}
# Servers' process ids, and templates.
_WARM: set[tuple[int, str]] = set()


def new_template(server: EmbeddedPostgres, name: str) -> str:
    """Make an empty database, in the place of an earlier one of this name; returns its URL."""
    disconnect()
    drop(server, name)
    _administrator(server).execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
    url = server.url_of(name)
    _MADE_ON[url] = datetime.now(UTC).date()
    return url


def drop(server: EmbeddedPostgres, name: str) -> None:
    """Drop a database, if there is one of this name."""
    _administrator(server).execute(SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(Identifier(name)))


@contextmanager
def copy_of(
    server: EmbeddedPostgres, template: str, name: str | None = None, *, schema: str = ""
) -> Iterator[str]:
    """Copy a template, and drop the copy after the block; yields its URL.

    The block may restart the server. `schema` names the schema of the tables, if they have their own.
    """
    name = name or f"test_{uuid4().hex}"
    # A template with open connections cannot be copied.
    disconnect()
    administrator = _administrator(server)
    _warm_up(server, template, administrator)
    # A third of the time that copying through the WAL takes; PostgreSQL 14 always does it so.
    strategy = SQL("STRATEGY file_copy" if administrator.info.server_version >= 150_000 else "")
    administrator.execute(
        SQL("CREATE DATABASE {} TEMPLATE {} {}").format(Identifier(name), Identifier(template), strategy)
    )
    _bring_up_to_today(in_schema(server.url_of(name), schema), server.url_of(template))
    try:
        yield server.url_of(name)
    finally:
        disconnect()
        _let_backends_leave(_administrator(server), name)
        drop(server, name)


def in_schema(url: str, schema: str) -> str:
    """Add a schema to the search path of a URL, unless its name is empty."""
    return urls.in_schema(url, schema) if schema else url


def _warm_up(server: EmbeddedPostgres, template: str, administrator: psycopg.Connection) -> None:
    """Let PostgreSQL write the catalog cache file, which saves the first session of each copy 15 ms."""
    if (server.pid, template) not in _WARM:
        _WARM.add((server.pid, template))
        psycopg.connect(server.url_of(template)).close()
        _let_backends_leave(administrator, template)


def _bring_up_to_today(database_url: str, template_url: str) -> None:
    """Give a copy the partitions of today where midnight, by UTC, has passed since the template was made."""
    day = _MADE_ON.get(template_url, date.max)
    if day >= datetime.now(UTC).date():
        return
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("SELECT drain_make_days(3)")
        # Midnight may have passed while the template was made.
        connection.execute(f"DROP TABLE IF EXISTS finished_jobs_{day:%Y%m%d}".encode())


def _let_backends_leave(connection: psycopg.Connection, database: str) -> None:
    # DROP sleeps for 100 ms when it finds one, though they leave within 2 ms of the disconnect.
    busy = "SELECT FROM pg_stat_activity WHERE datname = %s"
    deadline = time.monotonic() + 0.05
    while connection.execute(busy, [database]).rowcount and time.monotonic() < deadline:
        time.sleep(0.001)


def _administrator(server: EmbeddedPostgres) -> psycopg.Connection:
    """Return a connection that stays open until the server stops."""
    url = server.url_of("postgres")
    kept = _administrators.get(url)
    if kept and not is_open(kept):
        kept.close()
    if kept is None or kept.closed:
        kept = _administrators[url] = psycopg.connect(url, autocommit=True)
    return kept
