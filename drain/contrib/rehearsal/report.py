"""Report for humans and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, Protocol

import click
from rich.console import Console

from drain.formatting import count, duration, visible
from drain.terminal.fitted_table import Column, fitted_table


class End(Protocol):
    """End of a job."""

    @property
    def kind(self) -> str:
        """Kind."""

    @property
    def error(self) -> str | None:
        """Exception type's name."""

    @property
    def message(self) -> str | None:
        """Exception's message."""

    @property
    def seconds(self) -> float | None:
        """Duration."""


def as_json(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert to JSON types."""
    return [
        {
            "id": row["id"],
            "job_name": row["job_name"],
            "queue": row["queue"],
            "differs": row["difference"] is not None,
            "difference": row["difference"],
            "before": asdict(row["before"]),
            "now": asdict(row["now"]),
            "rolled_back": {"staged": row["staged"], "tables": row["tables"]},
        }
        for row in rows
    ]


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print jobs, differences and totals."""
    console = Console(highlight=False, markup=False)
    console.print(fitted_table(_COLUMNS, [dict(row) for row in rows], datetime.now(UTC), console.width))
    differing = [row for row in rows if row["difference"] is not None]
    for row in differing:
        click.echo(visible(f"job {row['id']}: {row['difference']}"))
    written: Counter[str] = Counter()
    for row in rows:
        for table, numbers in row["tables"].items():
            written.update({f"{table} {sign}": numbers[kind] for kind, sign in _SIGNS.items()})
    changes = ", ".join(f"{name}{number}" for name, number in sorted(written.items()) if number)
    click.echo(visible(f"rolled back: {changes or 'nothing was written'}"))
    staged = sum(row["staged"] for row in rows)
    if staged:
        click.echo(f"{count(staged, 'staged job')} rolled back too")
    click.echo(
        f"{len(differing)} of {count(len(rows), 'job')} {'differs' if len(differing) == 1 else 'differ'}"
    )


_SIGNS = {"inserted": "+", "updated": "~", "deleted": "-"}


def _ended(end: End) -> str:
    if end.kind != "raised":
        return end.kind
    name = (end.error or "").rpartition(".")[2]
    message = (end.message or "").partition("\n")[0]
    return visible(f"{name}: {message}" if message else name)


def _seconds(end: End) -> str:
    return "" if end.seconds is None else duration(end.seconds)


_COLUMNS = [
    Column("job", lambda row, _now: str(row["id"]), is_number=True),
    Column("name", lambda row, _now: visible(str(row["job_name"])), cut="start"),
    Column("before", lambda row, _now: _ended(row["before"]), cut="end"),
    Column("now", lambda row, _now: _ended(row["now"]), cut="end"),
    Column("took", lambda row, _now: _seconds(row["now"]), is_number=True),
    Column("", lambda row, _now: "same" if row["difference"] is None else "differs"),
]
