"""Statements in an application's or a job's transaction, with the schema of our tables before their names."""

from __future__ import annotations

import os
import re
from functools import cache, lru_cache

from drain.config import VARIABLES
from drain.database import names, schema
from drain.urls import require_schema_name


def qualified(statement: str) -> str:
    """Return the statement with the schema that DRAIN_SCHEMA names before our tables and functions, if it names one.

    Raises:
        ConfigError: That cannot be the name of a schema.
    """
    home = os.environ.get(VARIABLES["schema"], "").strip()
    if home:
        require_schema_name(home)
    return within(home, statement)


# The same few statements are sent again and again.
@lru_cache(maxsize=500)
def within(home: str, statement: str) -> str:
    """Do the same with a schema as `postgres.home_of` returns it; an empty one leaves the statement as it is."""
    return _pattern().sub(lambda name: f"{home}.{name[0]}", statement) if home else statement


def prepare() -> None:
    """Read the names of our tables, so that processes forked from here on need not."""
    _pattern()


@cache
def _pattern() -> re.Pattern[str]:
    tables = "|".join(names.tables_in(schema.text()))
    # A table stands behind one of these words; where it qualifies a column, it stays as it is.
    table = rf"(?:(?<=\bFROM\s)|(?<=\bINTO\s)|(?<=\bUPDATE\s)|(?<=\bJOIN\s))(?:{tables})\b"
    function = r"(?<![\w.])drain_\w+(?=\()"
    return re.compile(f"{table}|{function}")
