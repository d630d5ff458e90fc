"""Texts of a form, read with an upper bound: forms of ours are short."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

from starlette.requests import Request

from drain.errors import DrainError

# Upper bounds of a form.
_BYTES = 65_536
_FIELDS = 200
# Time in which a form has to arrive, in seconds: a visitor who sends a byte now and then would occupy a connection.
_ARRIVAL_SECONDS = 30.0
# Characters that no text of PostgreSQL has.
_NOT_STORABLE = re.compile("[\x00\ud800-\udfff]")


class FormError(DrainError):
    """A form cannot be read, or misses what it needs."""


class Form:
    """Texts of a form by the names of its fields.

    Args:
        fields: Names and texts, in their order.
    """

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self.fields = fields

    def text(self, name: str) -> str:
        """Return the text of a field, without blanks at its ends; "" if there is none."""
        return next((text.strip() for field, text in self.fields if field == name), "")

    def texts(self, name: str) -> list[str]:
        """Return all texts of a field that may be there several times."""
        return [text.strip() for field, text in self.fields if field == name]

    def numbers(self, name: str) -> list[int]:
        """Return all numbers of a field that may be there several times, such as the ids of selected jobs.

        Raises:
            FormError: One is no whole number.
        """
        try:
            return [int(text) for text in self.texts(name)]
        except ValueError:
            raise FormError(f"{name} must be a whole number") from None

    def as_dict(self) -> Mapping[str, str]:
        """Return the first text of each field."""
        return dict(reversed(self.fields))


async def read_form(request: Request) -> Form:
    """Read the body of a request as a form.

    Raises:
        FormError: It is none, too long, too slow, or has a character that cannot be stored.
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
    """Make sure that PostgreSQL can be asked about texts of a visitor.

    Raises:
        FormError: One has a NUL or half of a character.
    """
    if any(_NOT_STORABLE.search(text) for text in texts):
        raise FormError("an address or a form has a character that no text can have")
