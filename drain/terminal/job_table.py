"""Table of jobs of one state: a line for each job, fitted to the width of the terminal; no colours when piped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drain.tables import queries
from drain.terminal.values import as_text
from drain.visible import visible
from drain.wording import duration, relative

Job: TypeAlias = dict[str, Any]


def show_jobs(state: str, jobs: Sequence[Job], now: datetime) -> None:
    """Print a table of jobs of one state, a line for each.

    Args:
        state: One of `queries.TABLES`.
        jobs: Rows of the table of that state.
        now: Time by the database's clock.
    """
    console = Console(highlight=False, markup=False)
    console.print(_job_table(state, jobs, now, console.width))


class _Column(NamedTuple):
    """A column of a table of jobs.

    Attributes:
        title: Heading.
        cell: Text for a job, at the current time.
        cut: Part of the text that is left out if there is no room, "start" or "end"; None if it is never cut.
        is_number: True to align it to the right.
        share: Weight of the column when room is divided among columns that are cut.
        least: Characters that stay while another column has more than its own least.
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
    return lambda job, _now: " ".join(visible(as_text(job[name]), lines=True).split())


def _took(job: Job, _now: datetime) -> str:
    if job.get("superseded_by"):
        return ""
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
    """Shorten the name of a worker to host and process id; `drain show` has the whole name."""
    if job.get("superseded_by"):
        return f"gave way: {job['superseded_by']}"
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
# Columns by state.
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
# Width from which there are tags and arguments; `drain show` has them in any case.
_WIDE = 120
# Blanks between two columns.
_GAP = 2


def _job_table(state: str, jobs: Sequence[Job], now: datetime, width: int) -> Table:
    """Build a table with a line for each job, cutting texts to fit the width."""
    columns: Sequence[_Column] = _COLUMNS[state]
    if width >= _WIDE:
        # An error stays the last column.
        at = len(columns) - (columns[-1].title == "error")
        columns = (*columns[:at], *_ARGUMENTS, *columns[at:])
    cells = [[_as_rich(column.cell(job, now)) for job in jobs] for column in columns]
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


def _as_rich(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)


def _widths(columns: Sequence[_Column], cells: Sequence[Sequence[Text]], width: int) -> list[int]:
    """Compute the width of each column: that of its longest text; if there is no room, the widest are cut first."""
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
