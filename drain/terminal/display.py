"""What people see of the jobs: lines and tables that fit their terminal, and no colours when piped."""

from __future__ import annotations

import json
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import zip_longest
from typing import Any, Literal, NamedTuple, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drain.tables import queries
from drain.visible import visible
from drain.wording import clock, duration, relative

Job: TypeAlias = dict[str, Any]

# What takes no longer than this needs no announcement.
_PROGRESS_AFTER_SECONDS = 2.0


def show_jobs(state: str, jobs: Sequence[Job], now: datetime) -> None:
    """Print a table of jobs of one state, a line for each.

    Args:
        state: One of `queries.TABLES`.
        jobs: Rows of its table.
        now: By the database's clock.
    """
    console = Console(highlight=False, markup=False)
    console.print(_job_table(state, jobs, now, console.width))


def show_job(job: Job, now: datetime) -> None:
    """Print all that is known about one job; then its former lives, each with the traceback of its end."""
    console = Console(highlight=False, markup=False)
    _show_fields(job, now, console)
    history = job.get("history") or []
    for number, life in enumerate(history if isinstance(history, list) else [history], 1):
        console.print(f"\nformer life {number}")
        _show_fields(life if isinstance(life, dict) else {"life": life}, now, console)


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


def plain(value: Any) -> str:
    """A value that JSON has no type for, as a text."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


class _Column(NamedTuple):
    """A column of a table of jobs.

    Attributes:
        title: Its heading.
        cell: Its text for a job, given the time that it is.
        cut: What is left out where there is no room: "start" or "end" of the text; None if it is never cut.
        is_number: Set to the right.
        share: How much of the room it gets where texts are cut, beside the others.
        least: Characters that are left as long as another column has more than its own.
    """

    title: str
    cell: Callable[[Job, datetime], str | Text]
    cut: Literal["start", "end"] | None = None
    is_number: bool = False
    share: float = 1.0
    least: int = 13


def _ago(name: str) -> Callable[[Job, datetime], str]:
    return lambda job, now: relative(job[name], now)


def _field(name: str) -> Callable[[Job, datetime], str]:
    return lambda job, _now: " ".join(visible(_text(job[name]), lines=True).split())


def _took(job: Job, _now: datetime) -> str:
    return duration((job["finished_at"] - job["claimed_at"]).total_seconds())


def _tries(job: Job, _now: datetime) -> Text:
    tries = job["attempts"] + bool(job.get("batched"))
    return Text(str(tries), style="yellow" if tries > 1 else "")


def _state(job: Job, now: datetime) -> Text:
    word = queries.inflight_state(job, now)
    return Text(word, style={"stalled": "red", "retrying": "yellow"}.get(word, ""))


def _since(job: Job, now: datetime) -> str:
    is_queued = queries.inflight_state(job, now) == "queued"
    times = (job["moved_at"],) if is_queued else (job["claimed_at"], job["failed_at"])
    # A job whose claim was undone may wait without a time of any claim.
    latest = max(filter(None, times), default=job["moved_at"])
    return duration(max(0.0, (now - latest).total_seconds()))


def _next_try(job: Job, now: datetime) -> str:
    at = job["next_run_at"]
    return "" if at is None else relative(max(at, now), now)


def _worker(job: Job, _now: datetime) -> str:
    """Host and process, without the host's domain; `drain show` has the whole name."""
    if not job.get("finished_by") and job.get("lease_expires_at") is None:
        return ""
    name: str = job.get("finished_by") or job.get("claimed_by") or ""
    host, *process = name.split(":")
    return visible(":".join([host.partition(".")[0], *process[:1]]))


def _error(job: Job, _now: datetime) -> Text:
    error = job["last_error"]
    if job["reason"] != "failed" or not isinstance(error, dict):
        return Text(_field("explanation")(job, _now), style="red")
    kind = str(error.get("type", "")).rpartition(".")[2]
    first = str(error.get("message", "")).strip().partition("\n")[0]
    return Text(visible(f"{kind}: {first}" if first else kind), style="red")


_ID = _Column("id", _field("id"), is_number=True)
_JOB = _Column("job", _field("job_name"), "start", share=1.5, least=15)
_QUEUE = _Column("queue", _field("queue"), "end")
_TRIES = _Column("tries", _tries, is_number=True)
_WORKER = _Column("worker", _worker, "start")
_ARGUMENTS = (_Column("tag", _field("tag"), "end"), _Column("arguments", _field("job_args"), "end"))
_SINCE = _Column("since", _since)
_COLUMNS: dict[str, tuple[_Column, ...]] = {
    "staged": (
        _ID,
        _Column("staged", _ago("staged_at")),
        _Column("due", _ago("scheduled_at")),
        _Column("priority", _field("priority"), is_number=True),
        *(_JOB, _QUEUE),
    ),
    "inflight": (
        *(_ID, _Column("state", _state), _SINCE, _Column("next try", _next_try)),
        *(_TRIES, _JOB, _QUEUE, _WORKER),
    ),
    "finished": (
        _ID,
        _Column("finished", _ago("finished_at")),
        _Column("took", _took, is_number=True),
        *(_TRIES, _JOB, _QUEUE, _WORKER),
    ),
    "dead": (
        _ID,
        _Column("died", _ago("died_at")),
        _TRIES,
        _JOB,
        _QUEUE,
        _Column("error", _error, "end", share=3),
    ),
}
# Fields of a job that are shown apart, or say nothing to people; --json has them.
_NOT_SHOWN = frozenset({"last_error", "history", "salt", "finished_xid"})
# Terminals with less room than this do without tag and arguments; `drain show` has them.
_WIDE = 120
_GAP = 2


def _job_table(state: str, jobs: Sequence[Job], now: datetime, width: int) -> Table:
    """A line for each job, in which texts are cut where there is no room for all of them."""
    columns: Sequence[_Column] = _COLUMNS[state]
    if width >= _WIDE:
        # An error is the last column in any case.
        at = len(columns) - (columns[-1].title == "error")
        columns = (*columns[:at], *_ARGUMENTS, *columns[at:])
    cells = [[_as_text(column.cell(job, now)) for job in jobs] for column in columns]
    widths = _widths(columns, cells, width)
    table = Table(
        box=None, pad_edge=False, padding=(0, _GAP, 0, 0), collapse_padding=True, header_style="bold"
    )
    for column, room in zip(columns, widths, strict=True):
        table.add_column(
            column.title, justify="right" if column.is_number else "left", width=room, no_wrap=True
        )
    for row in zip(*cells, strict=True):
        table.add_row(*map(_cut, row, columns, widths))
    return table


def _as_text(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def _widths(columns: Sequence[_Column], cells: Sequence[Sequence[Text]], width: int) -> list[int]:
    """The width of each column: what it needs, less where that is too much: the widest text is cut first."""
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


def _cut(text: Text, column: _Column, width: int) -> Text:
    if text.cell_len <= width:
        return text
    if column.cut == "start":
        plain = text.plain
        while Text(plain).cell_len >= width:
            plain = plain[1:]
        return Text(f"…{plain.lstrip('.')}", style=text.style)
    text.truncate(width, overflow="ellipsis")
    return text


def _show_fields(fields: Job, now: datetime, console: Console) -> None:
    width = max(map(len, fields), default=0) + _GAP
    for name, value in fields.items():
        if value is not None and name not in _NOT_SHOWN:
            lines = _folded(_lines(name, value, now, console.width - width), console.width - width)
            for title, line in zip_longest([visible(name)], lines, fillvalue=""):
                console.print(f"{title:{width}}{line}", soft_wrap=True)
    if error := fields.get("last_error"):
        texts = error if isinstance(error, dict) else {"message": error}
        told = visible(f"{texts.get('type', 'error')}: {texts.get('message', '')}", lines=True)
        for title, line in zip_longest(
            ["last_error"], _folded(told.splitlines(), console.width - width), fillvalue=""
        ):
            console.print(f"{title:{width}}{line}", style="red", soft_wrap=True)
        # Not folded: what is copied from here is to be a traceback still.
        console.print(visible(str(texts.get("traceback", "")).rstrip("\n"), lines=True), soft_wrap=True)


def _lines(name: str, value: Any, now: datetime, width: int) -> list[str]:
    """A value in lines that may still be too long."""
    if name.endswith("_at") and isinstance(value, str):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if isinstance(value, datetime) and value.tzinfo:
        return [f"{clock(value)}, {relative(value, now)}"]
    text = visible(_text(value))
    if isinstance(value, dict | list) and len(text) > width:
        indented = json.dumps(value, ensure_ascii=False, default=plain, indent=2)
        return [visible(line) for line in indented.splitlines()]
    return [text]


def _folded(lines: Sequence[str], width: int) -> list[str]:
    """Lines no longer than that, those that go on indented."""
    folded: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        folded += textwrap.wrap(
            line, max(width, 20), subsequent_indent=indent if len(lines) > 1 else "", break_on_hyphens=False
        ) or [""]
    return folded


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return clock(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=plain)
