"""Filters for `context.configure`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from alembic import context

from drain.config import VARIABLES
from drain.database import names, schema


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Return False for job-drain's tables, partitions included, so that autogenerate drops none.

    With DRAIN_SCHEMA set, tables of other schemas are not ours.

    Args:
        parent_names: Schema under `schema_name`; None for the default.
    """
    return type_ != "table" or not _is_ours(name or "", parent_names.get("schema_name"))


def include_object(
    item: Any,
    name: str | None,
    type_: str,
    reflected: bool,  # noqa: ARG001, FBT001
    compare_to: Any,  # noqa: ARG001
) -> bool:
    """Return False for job-drain's tables, also in the metadata."""
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
        # Outside env.py, the application compares on its own.
        return None
