"""Installation of the tables by `manage.py migrate`: a migration brings the schema to the version of this program."""

from __future__ import annotations

from typing import Any

from drain.contrib.django.connections import url
from drain.contrib.django.environment import databases
from drain.database import schema


def install(_apps: Any, schema_editor: Any) -> None:
    """Make the tables or bring them up to date, in the databases in which tasks are staged; in others do nothing.

    On a connection of its own, as `drain init`: a migration that calls this has `atomic = False`.

    Raises:
        DrainError: As `drain.database.schema.install`; or the database is not PostgreSQL.
    """
    alias = schema_editor.connection.alias
    if alias in databases():
        schema.install(url(alias))
