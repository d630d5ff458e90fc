"""Sanitized columns and fields of the admin."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.db import models
from django.utils import timezone
from django.utils.html import format_html

from drain.formatting import visible
from drain.read.queries import inflight_state
from drain.tables.columns import BLOCKED_UNTIL

_LONGEST = 200

Column = Callable[[Any], str | None]


def column(model: type[models.Model], name: str) -> Column | str:
    """Return a field's list column, sanitized on one line."""
    field = model._meta.get_field(name)
    if not isinstance(field, models.TextField):
        return name
    return _column(field, _line, ordering=name)


def whole(field: models.Field[Any, Any]) -> Column | str:
    """Return a field for a job's page, sanitized."""
    if field.name == "last_error":
        return _column(field, lambda found: _block(_error_text(found)))
    if isinstance(field, models.JSONField):
        return _column(field, lambda value: _block(_json(value)))
    if isinstance(field, models.TextField):
        return _column(field, _block)
    return str(field.name)


def _column(field: models.Field[Any, Any], write: Callable[[Any], str], **more: str) -> Column:
    def show(job: Any) -> str | None:
        value = getattr(job, field.name)
        return None if value is None else write(value)

    # Django derives the cell's CSS class from it.
    show.__name__ = field.name
    described: Column = admin.display(description=str(field.verbose_name), **more)(show)
    return described


@admin.display(description="error")
def error(job: Any) -> str | None:
    """Return why a job died, or its latest error, on one line."""
    found = job.last_error
    if isinstance(found, dict) and getattr(job, "reason", "failed") == "failed":
        return _line(_summary(found))
    return _line(job.explanation) if hasattr(job, "explanation") else None


@admin.display(description="scheduled at", ordering="scheduled_at")
def due(job: Any) -> Any:
    """Return a staged job's time, or `blocked`."""
    return "blocked" if job.scheduled_at == BLOCKED_UNTIL else job.scheduled_at


@admin.display(description="state")
def state(job: Any) -> str:
    """Return the one-word state of a job in flight."""
    return inflight_state(vars(job), timezone.now())


def _block(text: str) -> str:
    block: str = format_html("<pre>{}</pre>", visible(text, lines=True))
    return block


def _line(text: str) -> str:
    first = visible(text.strip().partition("\n")[0])
    return first if len(first) <= _LONGEST else f"{first[: _LONGEST - 1]}\u2026"


def _summary(found: dict[str, Any]) -> str:
    kind, message = found.get("type", "error"), found.get("message")
    return f"{kind}: {message}" if message else str(kind)


def _error_text(found: Any) -> str:
    if not isinstance(found, dict):
        return _json(found)
    return str(found.get("traceback") or _summary(found))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2)
