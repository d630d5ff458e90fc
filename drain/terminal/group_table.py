"""Table of groups of dead jobs: a line for each group, fitted to the width of the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from drain.tables.deaths import Group, Groups
from drain.terminal.fitted_table import Column, fitted_table
from drain.visible import visible
from drain.wording import relative


def show_groups(groups: Sequence[Group], now: datetime) -> None:
    """Print a table of groups, a line for each; `now` by the database's clock."""
    console = Console(highlight=False, markup=False)
    rows = [{"group": group} for group in groups]
    console.print(fitted_table(_COLUMNS, rows, now, console.width))


def groups_as_json(found: Groups) -> dict[str, Any]:
    """Convert groups to an object of JSON types, but for times."""
    return {
        "looked_at": found.looked_at,
        "has_more": found.has_more,
        "groups": [_as_json(group) for group in found.groups],
    }


def _as_json(group: Group) -> dict[str, Any]:
    latest = group.latest
    return {
        "group": group.digest,
        "job_name": latest.job_name,
        "frame": latest.frame._asdict() if latest.frame else None,
        "reason": latest.reason,
        "jobs": len(group.deaths),
        "first_died_at": group.first_died_at,
        "last_died_at": latest.died_at,
        "error": latest.error,
        "message": latest.message,
        "ids": group.ids,
    }


def _error(row: dict[str, Any], _now: datetime) -> Text:
    latest = row["group"].latest
    kind = (latest.error or "").rpartition(".")[2]
    first = latest.message.strip().partition("\n")[0]
    return Text(visible(f"{kind}: {first}" if kind and latest.frame else first), style="red")


def _where(row: dict[str, Any], _now: datetime) -> str:
    """Shorten the place to file, line and function: --json has the path."""
    latest = row["group"].latest
    return visible(latest.where.rpartition("/")[2] if latest.frame else latest.where)


_COLUMNS = (
    Column("jobs", lambda row, _: f"{len(row['group'].deaths):,}", is_number=True),
    Column("last died", lambda row, now: relative(row["group"].latest.died_at, now)),
    Column("job", lambda row, _: visible(row["group"].latest.job_name), "start", share=1.5, least=15),
    Column("where", _where, "end", share=2, least=15),
    Column("error", _error, "end", share=2),
)
