"""Psycopg connection and URL of a Django database."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from django.db import connections

from drain.errors import ConfigError


def driver(alias: str) -> psycopg.Connection[Any]:
    """Return this thread's psycopg connection, opened if necessary.

    Statements join the open `atomic()` block; otherwise each is its own transaction.

    Raises:
        ConfigError: The database is not PostgreSQL, or Django uses psycopg 2.
        TransactionManagementError: The `atomic()` block can only be rolled back.
    """
    require_postgres(alias)
    connection = connections[alias]
    connection.validate_no_broken_transaction()
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    found = connection.connection
    if not isinstance(found, psycopg.Connection):
        raise ConfigError(
            f"DATABASES[{alias!r}] uses psycopg 2, and job-drain needs psycopg 3: pip install 'psycopg[binary]', and "
            "remove psycopg2"
        )
    return found


def require_postgres(alias: str) -> None:
    """Require PostgreSQL in DATABASES, without connecting."""
    if alias not in connections.settings:
        raise ConfigError(
            f"DATABASES has no {alias!r}, which OPTIONS['database'] names: there are {', '.join(connections)}"
        )
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise ConfigError(
            f"job-drain needs PostgreSQL, and DATABASES[{alias!r}] is {connection.vendor}: give it the engine "
            "django.db.backends.postgresql, or name another database in OPTIONS['database']"
        )


def url(alias: str) -> str:
    """Build a database's URL for separate programs."""
    require_postgres(alias)
    connection = connections[alias]
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    given = connection.get_connection_params()
    parts = {name: str(value) for name, value in given.items() if name in known and value is not None}
    parts.pop("client_encoding", None)
    if role := connection.settings_dict["OPTIONS"].get("assume_role"):
        parts["options"] = f"{parts.get('options', '')} -c role={role}".strip()
    user, password = parts.pop("user", ""), parts.pop("password", "")
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    name = quote(parts.pop("dbname", ""), safe="")
    query = f"?{urlencode(parts, quote_via=quote)}" if parts else ""
    return f"postgresql://{login}{'@' if login else ''}/{name}{query}"
