"""Table of schedules: a line for each, fitted to the width of the terminal; no colours when piped."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drain.visible import visible
from drain.wording import relative

# Fewest characters of a name that stay where there is no room.
_LEAST = 12


def with_next_tick(schedule: dict[str, Any]) -> dict[str, Any]:
    """Compute the next tick of a schedule of which the leader has not, and why it cannot."""
    # Imported here: most commands need no cron line.
    from drain.jobs.timetable import TimetableError, timetable

    if schedule["next_tick_at"] or schedule["error"] or schedule["paused"]:
        return schedule
    try:
        table = timetable(schedule["cron"], schedule["timezone"])
        return schedule | {"next_tick_at": table.after(schedule["changed_at"])}
    except TimetableError as error:
        return schedule | {"error": str(error)}


def show_schedules(schedules: Sequence[dict[str, Any]], now: datetime) -> None:
    """Print a table of schedules; below it, why some of them have no ticks.

    Args:
        schedules: Rows of `crons`, each with `gone`: True if the code does not declare it any more.
        now: Time by the database's clock.
    """
    console = Console(highlight=False, markup=False)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True, header_style="bold")
    for title in ("name", "cron", "zone", "job"):
        table.add_column(title, no_wrap=True, overflow="ellipsis", min_width=min(_LEAST, len(title)))
    for title in ("next tick", "last tick"):
        table.add_column(title, no_wrap=True, min_width=max(len(title), *_lengths(schedules, title, now)))
    for schedule in schedules:
        given = (schedule[column] for column in ("name", "cron", "timezone", "job_name"))
        table.add_row(*(Text(visible(text)) for text in given), _next(schedule, now), _last(schedule, now))
    console.print(table)
    for schedule in schedules:
        if schedule["error"]:
            _show_note(console, f"{schedule['name']} has no ticks: {schedule['error']}")
        elif schedule["gone"]:
            _show_note(
                console, f"{schedule['name']} is not declared any more; `drain cron remove` deletes it"
            )


def _lengths(schedules: Sequence[dict[str, Any]], title: str, now: datetime) -> list[int]:
    cell = _next if title == "next tick" else _last
    return [cell(schedule, now).cell_len for schedule in schedules]


def _next(schedule: dict[str, Any], now: datetime) -> Text:
    if schedule["paused"]:
        return Text("paused", style="yellow")
    if schedule["error"]:
        return Text("none", style="red")
    return Text(relative(schedule["next_tick_at"], now))


def _last(schedule: dict[str, Any], now: datetime) -> Text:
    at = schedule["last_tick_at"]
    return Text("" if at is None else relative(at, now))


def _show_note(console: Console, text: str) -> None:
    console.print(Text(visible(text), style="yellow"), soft_wrap=True)
