"""Forms, parsed within bounds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qsl

from starlette.requests import Request

from drain.errors import DrainError

_BYTES = 65_536
_FIELDS = 200
# A slow sender would hold a connection.
_ARRIVAL_SECONDS = 30.0
# Characters that PostgreSQL text cannot hold.
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")


class FormError(DrainError):
    """A form cannot be read, or lacks a field."""


class Form:
    """Fields of a form, in order."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self.fields = fields

    def text(self, name: str) -> str:
        """Return a field, stripped, or ""."""
        return next((text.strip() for field, text in self.fields if field == name), "")

    def texts(self, name: str) -> list[str]:
        """Return all values of a repeated field."""
        return [text.strip() for field, text in self.fields if field == name]

    def numbers(self, name: str) -> list[int]:
        """Return a repeated field's numbers; FormError for others."""
        try:
            return [int(text) for text in self.texts(name)]
        except ValueError:
            raise FormError(f"{name} must be a whole number") from None

    def seen_at(self) -> datetime:
        """Return when the form's page was read; FormError if unknown."""
        try:
            at = datetime.fromisoformat(self.text("seen_at"))
            if at.tzinfo is not None:
                return at.astimezone(UTC)
        except (ValueError, OverflowError):
            pass
        raise FormError("the form does not say when the page was loaded: go back and load it again")

    def as_dict(self) -> Mapping[str, str]:
        """Return the first value of each field."""
        return dict(reversed(self.fields))


async def read_form(request: Request) -> Form:
    """Read a request body as a form.

    Raises:
        FormError: The body is not a form, too long, too slow, or not storable.
    """
    if (
        request.headers.get("content-type", "").partition(";")[0].strip()
        != "application/x-www-form-urlencoded"
    ):
        raise FormError("only a form of this page is read here")
    try:
        async with asyncio.timeout(_ARRIVAL_SECONDS):
            body = await _body(request)
    except TimeoutError:
        raise FormError(f"the form has not arrived within {_ARRIVAL_SECONDS:g} seconds") from None
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS, errors="strict")
    except ValueError:
        raise FormError("the form cannot be read") from None
    require_storable(text for _, text in fields)
    return Form(fields)


async def _body(request: Request) -> bytearray:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _BYTES:
            raise FormError(f"the form has more than {_BYTES:,} bytes")
    return body


def require_storable(texts: Iterable[str]) -> None:
    """Raise FormError for NUL or a lone surrogate."""
    if any(_NOT_STORABLE.search(text) for text in texts):
        raise FormError("an address or a form has a character that no text can have")
