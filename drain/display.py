"""What people see of the jobs: lines and tables that fit their terminal, and no colours when piped."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drain.visible import visible

# What takes no longer than this needs no announcement.
_PROGRESS_AFTER_SECONDS = 2.0


def show_jobs(state: str, jobs: Sequence[dict[str, Any]]) -> None:
    """Print a table of jobs of one state."""
    console = Console()
    console.print(_job_table(state, jobs, console.width))


def show_job(job: dict[str, Any]) -> None:
    """Print all that is known about one job; then its former lives, each with the traceback of its end."""
    _show_fields(job)
    history = job.get("history") or []
    for number, life in enumerate(history if isinstance(history, list) else [history], 1):
        print(f"\nformer life {number}")
        _show_fields(life if isinstance(life, dict) else {"life": life})


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being done, once it has taken two seconds; standard output stays clean."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _step: None
        return
    status = console.status("")
    timer = threading.Timer(_PROGRESS_AFTER_SECONDS, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda step: status.update(Text(visible(step)))
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def _show_fields(fields: dict[str, Any]) -> None:
    width = max(map(len, fields), default=0)
    error = fields.get("last_error")
    for name, value in fields.items():
        if value is not None and name not in ("last_error", "history"):
            print(f"{visible(name):{width}}  {visible(_text(value))}")
    if error:
        texts = error if isinstance(error, dict) else {"message": error}
        told = f"{texts.get('type', 'error')}: {texts.get('message', '')}\n{texts.get('traceback', '')}"
        print(f"{'last_error':{width}}  {visible(told, lines=True)}")


def plain(value: Any) -> str:
    """A value that JSON has no type for, as a text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


_COLUMNS = {
    "staged": ("priority", "scheduled_at"),
    "inflight": ("attempts", "moved_at"),
    "finished": ("attempts", "finished_at"),
    "dead": ("died_at", "explanation"),
}
# Terminals with less room than this do without the arguments and the tag; `drain show` has them.
_WIDE = 120
# The most that a text may take of the terminal's width, so that numbers and times keep their room.
_SHARES = {"job_name": 0.35, "queue": 0.2, "tag": 0.12, "job_args": 0.15}


def _job_table(state: str, jobs: Sequence[dict[str, Any]], width: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    wide = ("tag", "job_args") if width >= _WIDE else ()
    columns: Sequence[str] = ("id", "job_name", "queue", *wide, *_COLUMNS[state])
    for column in columns:
        # Only the explanation may take a second line.
        table.add_column(column, overflow="fold", no_wrap=column != "explanation")
    for job in jobs:
        cells = [Text(_cell(job[column])) for column in columns]
        for cell, column in zip(cells, columns, strict=True):
            cell.truncate(int(_SHARES.get(column, 1) * width), overflow="ellipsis")
        table.add_row(*cells)
    return table


def _cell(value: Any) -> str:
    """A value short enough for a table: times to the second, texts on one line."""
    if isinstance(value, datetime):
        return value.strftime("%m-%d %H:%M:%S")
    return " ".join(visible(_text(value), lines=True).split())


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=plain)
