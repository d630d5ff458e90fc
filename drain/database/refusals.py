"""Poolers that refuse or ignore startup settings."""

from __future__ import annotations

from typing import LiteralString

import psycopg

from drain import urls
from drain.database.url import describe
from drain.errors import ConfigError

# Reads back the schema.
SCHEMA: LiteralString = "SELECT current_setting('drain.schema', true)"

# URLs of such poolers; forked children inherit the set.
_take_no_settings: set[str] = set()


def _refuses_settings(error: psycopg.OperationalError) -> bool:
    # Wording of PgBouncer and RDS Proxy.
    return any(word in str(error) for word in ("startup parameter", "command-line options"))


def raise_if_the_schema_is_out_of_reach(database_url: str, error: psycopg.OperationalError) -> None:
    """Raise a ConfigError if a pooler refused the schema."""
    if urls.schema_of(database_url) and _refuses_settings(error):
        raise _no_way_to_the_schema(database_url) from None


def _no_way_to_the_schema(database_url: str) -> ConfigError:
    schema = urls.schema_of(database_url)
    return ConfigError(
        f"{describe(database_url)} is a pooler that takes no search_path from clients: unset DRAIN_SCHEMA "
        f"there, and set the role's search_path instead: ALTER ROLE ... SET search_path = {schema}"
    )


def takes_settings(database_url: str) -> bool:
    """Return False once this pooler refused settings."""
    return database_url not in _take_no_settings


def note(database_url: str, error: psycopg.OperationalError) -> None:
    """Remember a refusal of settings; raise any other error."""
    if not _refuses_settings(error):
        raise error
    _take_no_settings.add(database_url)


def require_schema(schema: str | None, database_url: str) -> None:
    """Raise a ConfigError if a pooler ignored the search_path."""
    if schema != urls.schema_of(database_url):
        raise _no_way_to_the_schema(database_url)
