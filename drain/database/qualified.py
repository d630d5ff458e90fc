"""Schema-qualified statements for transactions of applications and jobs."""

from __future__ import annotations

import os
import re
from functools import cache, lru_cache

from drain.config import VARIABLES
from drain.database import names, schema
from drain.urls import require_schema_name


def qualified(statement: str) -> str:
    """Qualify our names with DRAIN_SCHEMA; raise a ConfigError if invalid."""
    home = os.environ.get(VARIABLES["schema"], "").strip()
    if home:
        require_schema_name(home)
    return within(home, statement)


@lru_cache(maxsize=500)
def within(home: str, statement: str) -> str:
    """Qualify our names with a schema; empty changes nothing."""
    return _pattern().sub(lambda name: f"{home}.{name[0]}", statement) if home else statement


def prepare() -> None:
    """Read names before forking."""
    _pattern()


@cache
def _pattern() -> re.Pattern[str]:
    tables = "|".join(names.tables_in(schema.text()))
    # A table name follows one of these; column qualifiers stay.
    table = rf"(?:(?<=\bFROM\s)|(?<=\bINTO\s)|(?<=\bUPDATE\s)|(?<=\bJOIN\s))(?:{tables})\b"
    function = r"(?<![\w.])drain_\w+(?=\()"
    return re.compile(f"{table}|{function}")
