"""Tables installed by `manage.py migrate`."""

from __future__ import annotations

from typing import Any

from drain.contrib.django.connections import url
from drain.contrib.django.environment import databases
from drain.database import schema


def install(_apps: Any, schema_editor: Any) -> None:
    """Install or upgrade the tables, only in databases of tasks."""
    alias = schema_editor.connection.alias
    if alias in databases():
        schema.install(url(alias))
