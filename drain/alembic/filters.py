"""Filter for `context.configure(include_object=...)`: which tables autogenerate leaves alone."""

from __future__ import annotations

import os
from typing import Any

from drain.config import VARIABLES
from drain.database import names, schema


def include_object(
    item: Any,
    name: str | None,
    type_: str,
    reflected: bool,  # noqa: FBT001
    compare_to: Any,
) -> bool:
    """Return False for job-drain's tables: autogenerate neither drops nor changes them.

    A table that is in the database alone is never dropped under one of our names, partitions and side tables included.
    One that the application has in its metadata too is left alone where our tables are: in the schema that DRAIN_SCHEMA
    names, or else in each. Our own migrations alone change our tables.

    Args:
        item: Table, or something else, which is always included.
        name: Name of it.
        type_: Kind of it.
        reflected: True if it comes from the database.
        compare_to: What the database has under the name of a table of the metadata; None if one of both lacks it.
    """
    if type_ != "table" or not names.is_table_of(schema.text(), name or ""):
        return True
    if compare_to is None:
        return not reflected
    ours = os.environ.get(VARIABLES["schema"], "").strip()
    return bool(ours) and item.schema is not None and item.schema != ours
