"""Pages of a long list, each behind the last place of the one before: no page counts or steps over earlier rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from drain.contrib.web.forms import FormError, require_storable
from drain.contrib.web.views import View

T = TypeVar("T")

# Rows of a page.
ROWS = 50


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list.

    Attributes:
        rows: Rows to show.
        next: Text of the place behind the last row, for `?after=`; "" if the list ends here.
        is_first: The list begins here.
    """

    rows: Sequence[T]
    next: str
    is_first: bool


def place_of(view: View, kinds: Sequence[type]) -> list[Any] | None:
    """Return the place behind which the page begins; None for the first page.

    Args:
        view: View of the page, whose address may have `?after=`.
        kinds: Type of each value of a place: int or str.

    Raises:
        FormError: The text is no place of such a list.
    """
    text = view.text("after")
    if not text:
        return None
    try:
        place = json.loads(base64.urlsafe_b64decode(text.encode() + b"=" * (-len(text) % 4)))
    except (ValueError, RecursionError):
        place = None
    is_place = isinstance(place, list) and [type(value) for value in place] == list(kinds)
    # A number that PostgreSQL's bigint cannot hold.
    if not is_place or any(isinstance(value, int) and abs(value) >= 2**63 for value in place):
        raise FormError("the address is not a page of this list: start from the first page")
    require_storable(value for value in place if isinstance(value, str))
    return list(place)


def page_of(view: View, rows: Sequence[T], place: Callable[[T], Sequence[Any]], size: int = ROWS) -> Page[T]:
    """Make a page of rows that were read with a limit of one more than its size.

    Args:
        view: View of the page.
        rows: At most `size + 1` rows, in their order.
        place: Returns the place of a row: whole numbers and texts by which the list is sorted, a unique one last.
        size: Rows of a page.
    """
    following = ""
    if len(rows) > size:
        text = json.dumps(list(place(rows[size - 1])), separators=(",", ":"))
        following = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
    return Page(rows[:size], following, is_first=not view.text("after"))
