"""Table of schedules: a line for each, fitted to the width of the terminal; no colours when piped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from drain.terminal.fitted_table import Column, fitted_table
from drain.visible import visible
from drain.wording import relative


def show_schedules(schedules: Sequence[dict[str, Any]], now: datetime) -> None:
    """Print a table of schedules; below it, why some of them have no ticks.

    Args:
        schedules: Rows of `crons`, each with `gone`: True if the code does not declare it any more.
        now: Time by the database's clock.
    """
    console = Console(highlight=False, markup=False)
    columns = [column for column in _COLUMNS if column.title != "job" or console.width >= _WIDE]
    console.print(fitted_table(columns, schedules, now, console.width))
    for schedule in schedules:
        if schedule["error"]:
            _show_note(console, f"{schedule['name']} has no ticks: {schedule['error']}")
        elif schedule["gone"]:
            _show_note(
                console, f"{schedule['name']} is not declared any more; `drain cron remove` deletes it"
            )


def _next(schedule: dict[str, Any], now: datetime) -> Text:
    if schedule["paused"]:
        return Text("paused", style="yellow")
    if schedule["error"]:
        return Text("none", style="red")
    return Text(relative(schedule["next_tick_at"], now))


def _last(schedule: dict[str, Any], now: datetime) -> Text:
    at = schedule["last_tick_at"]
    return Text("" if at is None else relative(at, now))


def _field(name: str) -> Callable[[dict[str, Any], datetime], str]:
    return lambda schedule, _now: visible(schedule[name])


# Width from which there are jobs; most schedules have the name of their job.
_WIDE = 120
_COLUMNS = (
    Column("name", _field("name"), "end", share=3),
    Column("cron", _field("cron"), "end"),
    Column("zone", _field("timezone"), "end", least=8),
    Column("job", _field("job_name"), "start", share=2),
    Column("next tick", _next),
    Column("last tick", _last),
)


def _show_note(console: Console, text: str) -> None:
    console.print(Text(visible(text), style="yellow"))
