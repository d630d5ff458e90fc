"""Filters for `context.configure`: which tables autogenerate leaves alone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from alembic import context

from drain.config import VARIABLES
from drain.database import names, schema


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Return False for job-drain's tables in the database: autogenerate does not look at them, and drops none.

    Partitions and side tables are among them. Where DRAIN_SCHEMA names a schema, tables of another one are not ours.

    Args:
        name: Name of a table, or of something else, which is always included.
        type_: Kind of it.
        parent_names: Name of its schema, None for the default one, under `schema_name`.
    """
    return type_ != "table" or not _is_ours(name or "", parent_names.get("schema_name"))


def include_object(
    item: Any,
    name: str | None,
    type_: str,
    reflected: bool,  # noqa: ARG001, FBT001
    compare_to: Any,  # noqa: ARG001
) -> bool:
    """Return False for job-drain's tables, also in the metadata of an application that reads them.

    Args:
        item: Table, or something else, which is always included.
        name: Name of it.
        type_: Kind of it.
        reflected: True if it comes from the database; not used.
        compare_to: Its counterpart; not used.
    """
    return type_ != "table" or not _is_ours(name or "", item.schema)


def _is_ours(name: str, home: str | None) -> bool:
    if name not in _tables() and not names.is_made_later(name):
        return False
    ours = os.environ.get(VARIABLES["schema"], "").strip()
    return not ours or (home or _default_schema() or ours) == ours


@cache
def _tables() -> frozenset[str]:
    return frozenset(names.tables_in(schema.text()))


def _default_schema() -> str | None:
    try:
        return context.get_context().dialect.default_schema_name
    except NameError:
        # No env.py is running: the application compares by itself.
        return None
