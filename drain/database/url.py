"""Database URLs: the connection string that libpq gets, and texts for people, which never show the password."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from drain.errors import ConfigError

# Encoding of our texts, whatever the database's own encoding is.
_SESSION = {"client_encoding": "utf8"}
# Upper bounds of libpq's waits. For a server that accepts and then is silent, tcp_user_timeout ends the wait for what
# was sent, and the keepalives end the wait for an answer: after 10 + 3 x 5 seconds.
_BOUNDS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}


def conninfo(database_url: str, application_name: str, settings: Mapping[str, str] | None = None) -> str:
    """Build the connection string for libpq: the URL, upper bounds for libpq's waits, and settings of the session.

    Raises:
        ConfigError: The URL cannot be read.
    """
    return _conninfo(database_url, application_name, tuple((settings or {}).items()))


# Cached for forked children, each of which runs one job: building the string takes 0.45 ms.
@cache
def _conninfo(database_url: str, application_name: str, settings: tuple[tuple[str, str], ...]) -> str:
    try:
        given = conninfo_to_dict(database_url)
    except psycopg.ProgrammingError as error:
        raise ConfigError(
            f"DRAIN_DATABASE_URL cannot be read: {without_password(error, database_url)}"
        ) from None
    except UnicodeError:
        raise ConfigError("DRAIN_DATABASE_URL cannot be read: a part of it is no UTF-8") from None
    added = {name: value for name, value in _BOUNDS.items() if name not in given}
    if settings:
        # The last one of a name counts, so these come after those of the URL.
        words = [given.get("options", ""), *(f"-c {name}={value}" for name, value in settings)]
        added["options"] = " ".join(filter(None, map(str, words)))
    return make_conninfo(database_url, **_SESSION, **added, application_name=application_name)


def describe(database_url: str) -> str:
    """Name host, port and database of the URL, for people to read."""
    try:
        parts = conninfo_to_dict(database_url)
    except psycopg.ProgrammingError:
        return "the given URL"
    host, port = parts.get("host") or "localhost", parts.get("port") or 5432
    return f"{host}:{port}/{parts.get('dbname') or parts.get('user') or ''}"


def without_password(error: BaseException, database_url: str) -> str:
    """Return the error's text on one line, without the password of the URL."""
    text = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    try:
        password = conninfo_to_dict(database_url).get("password")
    except psycopg.ProgrammingError:
        # libpq quotes the part that it cannot read, and that part may be the password.
        return "it is no valid PostgreSQL URL (is a character of the password not percent-encoded?)"
    return text.replace(str(password), "***") if password else text
