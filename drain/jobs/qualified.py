"""Statements in an application's transaction, with the schema of our tables, which its search_path may lack."""

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
    home = os.environ.get(VARIABLES["schema"])
    return _in(home.strip(), statement) if home and home.strip() else statement


# An application sends the same few statements again and again.
@lru_cache(maxsize=500)
def _in(home: str, statement: str) -> str:
    require_schema_name(home)
    return _pattern().sub(rf"{home}.\g<0>", statement)


@cache
def _pattern() -> re.Pattern[str]:
    tables = "|".join(names.tables_in(schema.text()))
    # A table stands behind one of these words; where it qualifies a column, it stays as it is.
    table = rf"(?:(?<=\bFROM\s)|(?<=\bINTO\s)|(?<=\bUPDATE\s)|(?<=\bJOIN\s))(?:{tables})\b"
    function = r"(?<![\w.])drain_\w+(?=\()"
    return re.compile(f"{table}|{function}")
