"""Poolers that refuse, or ignore, the settings that a client sends as it connects."""

from __future__ import annotations

from typing import LiteralString

import psycopg

from drain import urls
from drain.database.url import describe
from drain.errors import ConfigError

# Asks for the schema that `database.url` names in the settings of a session.
SCHEMA: LiteralString = "SELECT current_setting('drain.schema', true)"

# URLs of poolers that refuse settings. Forked children inherit the set.
_take_no_settings: set[str] = set()


def _refuses_settings(error: psycopg.OperationalError) -> bool:
    # PgBouncer's words, and those of RDS Proxy.
    return any(word in str(error) for word in ("startup parameter", "command-line options"))


def raise_if_the_schema_is_out_of_reach(database_url: str, error: psycopg.OperationalError) -> None:
    """Raise the error of a pooler that lets no client choose a schema, if this error is of that kind.

    Raises:
        ConfigError: A schema is named, and the pooler has refused it.
    """
    if urls.schema_of(database_url) and _refuses_settings(error):
        raise _no_way_to_the_schema(database_url) from None


def _no_way_to_the_schema(database_url: str) -> ConfigError:
    schema = urls.schema_of(database_url)
    return ConfigError(
        f"{describe(database_url)} is a pooler that takes no search_path as a client connects: unset DRAIN_SCHEMA "
        f"there, and lead the role to the schema instead: ALTER ROLE ... SET search_path = {schema}"
    )


def takes_settings(database_url: str) -> bool:
    """Return False if a pooler has refused settings there."""
    return database_url not in _take_no_settings


def note(database_url: str, error: psycopg.OperationalError) -> None:
    """Remember that a pooler has refused the settings of a session; raise any other error."""
    if not _refuses_settings(error):
        raise error
    _take_no_settings.add(database_url)


def require_schema(schema: str | None, database_url: str) -> None:
    """Make sure that a pooler has not ignored the search_path: another schema's tables would be taken for ours.

    Args:
        schema: What `SCHEMA` has returned.
        database_url: URL of the pooler.

    Raises:
        ConfigError: It has.
    """
    if schema != urls.schema_of(database_url):
        raise _no_way_to_the_schema(database_url)
