"""Async connections, as in `postgres`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import psycopg

from drain import urls
from drain.database import postgres, refusals
from drain.database.url import conninfo

Connection = psycopg.AsyncConnection[Any]
Kind = TypeVar("Kind", bound=Connection)


async def connect(
    database_url: str,
    application_name: str,
    *,
    kind: type[Kind],
    settings: Mapping[str, str] = postgres.NEVER_COMPILE,
) -> Kind:
    """Open a connection, as `postgres.connect` does."""
    with postgres.reachable(database_url):
        connection = await _dial(database_url, application_name, settings, kind)
    try:
        with (
            postgres.reachable(database_url),
            postgres.time_limit(connection, postgres.FIRST_ANSWER_SECONDS),
        ):
            cursor = await connection.execute(postgres.SESSION)
            pid, home = await cursor.fetchone() or (0, None)
            postgres.note_session(connection, pid, home)
            if postgres.is_pooled(connection) and urls.schema_of(database_url):
                cursor = await connection.execute(refusals.SCHEMA)
                (schema,) = await cursor.fetchone() or (None,)
                refusals.require_schema(schema, database_url)
    except BaseException:
        await connection.close()
        raise
    if postgres.is_pooled(connection):
        connection.prepare_threshold = None
    return connection


async def _dial(
    database_url: str, application_name: str, settings: Mapping[str, str], kind: type[Kind]
) -> Kind:
    with postgres.readable_host():
        if settings and refusals.takes_settings(database_url):
            try:
                return await kind.connect(conninfo(database_url, application_name, settings), autocommit=True)
            except psycopg.OperationalError as error:
                refusals.note(database_url, error)
        try:
            return await kind.connect(conninfo(database_url, application_name), autocommit=True)
        except psycopg.OperationalError as error:
            refusals.raise_if_the_schema_is_out_of_reach(database_url, error)
            raise
