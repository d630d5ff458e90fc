"""Table fitted to the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from rich.table import Table
from rich.text import Text

_GAP = 2


class Column(NamedTuple):
    """Table column.

    Attributes:
        cut: End to cut if necessary; None never cuts.
        share: Weight in dividing room.
        least: Characters kept while another column has more than its own least.
    """

    title: str
    cell: Callable[[dict[str, Any], datetime], str | Text]
    cut: Literal["start", "end"] | None = None
    is_number: bool = False
    share: float = 1.0
    least: int = 13


def fitted_table(
    columns: Sequence[Column], rows: Sequence[dict[str, Any]], now: datetime, width: int
) -> Table:
    """Build a table with one line per row."""
    cells = [[_as_rich(column.cell(row, now)) for row in rows] for column in columns]
    widths = _widths(columns, cells, width)
    table = Table(
        box=None, pad_edge=False, padding=(0, _GAP, 0, 0), collapse_padding=True, header_style="bold"
    )
    for column, room in zip(columns, widths, strict=True):
        table.add_column(
            column.title, justify="right" if column.is_number else "left", width=room, no_wrap=True
        )
    for texts in zip(*cells, strict=True):
        table.add_row(*map(_cut, texts, columns, widths))
    return table


def _as_rich(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def _widths(columns: Sequence[Column], cells: Sequence[Sequence[Text]], width: int) -> list[int]:
    needed = [
        max(len(column.title), *(text.cell_len for text in texts))
        for column, texts in zip(columns, cells, strict=True)
    ]
    room = width - _GAP * (len(columns) - 1)
    while sum(needed) > room:
        can_be_cut = [
            at for at, column in enumerate(columns) if column.cut and needed[at] > len(column.title)
        ]
        if not can_be_cut:
            break
        has_more = [at for at in can_be_cut if needed[at] > columns[at].least]
        needed[max(has_more or can_be_cut, key=lambda at: needed[at] / columns[at].share)] -= 1
    return needed


def _cut(text: Text, column: Column, width: int) -> Text:
    if text.cell_len <= width:
        return text
    if column.cut == "start":
        plain = text.plain
        while Text(plain).cell_len >= width:
            plain = plain[1:]
        return Text(f"…{plain.lstrip('.')}", style=text.style)
    text.truncate(width, overflow="ellipsis")
    return text
