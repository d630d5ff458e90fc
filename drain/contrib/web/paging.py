"""Keyset pagination: no page counts or skips earlier rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from drain.contrib.web.forms import FormError, require_storable
from drain.contrib.web.views import View

T = TypeVar("T")

ROWS = 50


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page; `next` is the place after it for `?after=`, "" at the end."""

    rows: Sequence[T]
    next: str
    is_first: bool


def place_of(view: View, kinds: Sequence[type]) -> list[Any] | None:
    """Return the place in `?after=`, None for the first page; FormError unless its values have these types."""
    text = view.text("after")
    if not text:
        return None
    try:
        place = json.loads(base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)))
    except (ValueError, RecursionError):
        place = None
    is_place = isinstance(place, list) and [type(value) for value in place] == list(kinds)
    # Beyond PostgreSQL's bigint.
    if not is_place or any(isinstance(value, int) and abs(value) >= 2**63 for value in place):
        raise FormError("the address is not a page of this list: start from the first page")
    require_storable(value for value in place if isinstance(value, str))
    return list(place)


def page_of(view: View, rows: Sequence[T], place: Callable[[T], Sequence[Any]], size: int = ROWS) -> Page[T]:
    """Build a page from rows read with a limit of `size + 1`.

    `place` returns a row's sort key: integers and texts, a unique one last.
    """
    following = ""
    if len(rows) > size:
        text = json.dumps(list(place(rows[size - 1])), separators=(",", ":"))
        following = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    return Page(rows[:size], following, is_first=not view.text("after"))
