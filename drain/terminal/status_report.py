"""Report of `drain status`: totals, a table of the queues, and advice."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from drain.formatting import clock, count, duration, visible
from drain.read.causes import CAUSES
from drain.read.queue import Queue
from drain.read.system import System

# Causes that apply even if workers are free.
_HELD = ("paused", "called_back", "limited", "rate", "list_full")
_COLUMNS = ("staged", "scheduled", "blocked", "overdue", "queued", "running", "retrying", "parked", "dead")
_IN_FLIGHT = ("queued", "running", "retrying", "parked")
# Columns and totals without numbers are left out.
_RARE = ("blocked", "parked")
_NARROW = tuple(name for name in _COLUMNS if name not in ("scheduled", "blocked", "overdue"))
# Wider than any table; width kept for queue names.
_WIDEST = 10_000
_NAME_WIDTH = 16
_ADVICE_LINES = 10


def show_status(result: System) -> None:
    """Print the report."""
    console = Console(highlight=False, markup=False)
    console.print(status_view(result, console.width))


def status_view(result: System, width: int) -> RenderableType:
    """Build the report for this width."""
    parts: list[RenderableType] = [*_totals(result)]
    if result.queues:
        wide = _table(result, wide=True)
        parts += [Text(), wide if _fits(wide, width) else _table(result, wide=False)]
    for section in result.sections.values():
        if lines := list(section.lines()):
            parts += [Text(), *lines]
    if held := _held(result):
        parts += [Text(), *held]
    if advice := _advice(result):
        parts += [Text(), *advice]
    return Group(*parts)


def _totals(result: System) -> list[Text]:
    states = [state for state in _IN_FLIGHT if state not in _RARE or result.total(state)]
    in_flight = ", ".join(f"{_total(result, state)} {state}" for state in states)
    about = "~" if result.finished_is_estimate else ""
    due, dead, overdue = result.ready_seconds, result.total("dead"), result.total("overdue")
    return [
        Text(f"leader    {_leader(result)}", style="" if result.leader else "red"),
        Text.assemble(
            f"staged    {_total(result, 'staged')}: {_total(result, 'scheduled')} scheduled, "
            f"{_total(result, 'blocked')} blocked, ",
            (f"{_total(result, 'overdue')} overdue", "red" if overdue else ""),
        ),
        Text(f"in flight {_total(result, 'inflight')}: {in_flight}"),
        Text(f"completed {about}{result.finished:,}"),
        Text(f"dead      {_total(result, 'dead')}", style="red" if dead else ""),
        Text(f"oldest    {f'due for {duration(due)}' if due else 'no job is due'}"),
    ]


def _total(result: System, name: str) -> str:
    return f"{'~' if result.is_estimate(name) else ''}{result.total(name):,}"


def _leader(result: System) -> str:
    if result.leader is None:
        return "none; start `drain run`"
    return visible(f"{result.leader['name']} since {clock(datetime.fromisoformat(result.leader['since']))}")


def _fits(table: Table, width: int) -> bool:
    """Return True if only long queue names must wrap."""
    name = table.columns[0]
    name.max_width = _NAME_WIDTH
    natural = Console(width=_WIDEST).measure(table).maximum
    name.max_width = None
    return natural <= width


def _table(result: System, *, wide: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("queue", overflow="fold")
    columns = _COLUMNS if wide else _NARROW
    columns = tuple(name for name in columns if name not in _RARE or result.total(name))
    for column in ("workers", *columns):
        table.add_column(column, justify="right", no_wrap=wide, overflow="fold")
    if wide:
        table.add_column("ids in Redis", justify="right", no_wrap=True)
    table.add_column("oldest unclaimed", no_wrap=wide, overflow="fold")
    for name, counts in sorted(result.queues.items()):
        numbers = [_number_of(counts, column) for column in columns]
        listed = [_number(counts.redis_depth)] if wide else []
        failing = (" failing", "red") if counts.failing else ""
        stalled = (" stalled", "red") if counts.is_stalled else ""
        paused = (" paused", "yellow") if counts.paused is not None else ""
        held = (" held", "red") if counts.held is not None else ""
        shown = Text.assemble(visible(name), failing, stalled, paused, held)
        table.add_row(shown, _workers(counts), *numbers, *listed, _oldest(counts))
    return table


def _held(result: System) -> list[Text]:
    lines = [(name, text) for name, counts in sorted(result.queues.items()) if (text := _causes(counts))]
    shown = [Text(f"{visible(name)}: {text}") for name, text in lines[:_ADVICE_LINES]]
    if len(lines) > _ADVICE_LINES:
        shown.append(Text(f"{count(len(lines) - _ADVICE_LINES, 'more queue')} with such jobs"))
    return shown


def _causes(counts: Queue) -> str:
    parts = [
        f"{'~' if counts.is_estimate(cause) else ''}{number:,} {CAUSES[cause]}"
        for cause in _HELD
        if (number := counts.waiting.get(cause))
    ]
    return ", ".join(parts)


def _workers(counts: Queue) -> Text:
    if counts.is_unattended:
        return Text("none", style="bold red")
    return Text("?" if counts.workers is None else f"{counts.free or 0:,}/{counts.workers:,}")


def _number_of(counts: Queue, name: str) -> str:
    number = getattr(counts, name)
    return f"{'~' if number and counts.is_estimate(name) else ''}{number:,}"


def _number(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _oldest(counts: Queue) -> str:
    return f"{duration(counts.queued_seconds)} #{counts.oldest_queued_id}" if counts.oldest_queued_id else ""


def _advice(result: System) -> list[Text]:
    troubled = sorted(
        name for name, counts in result.queues.items() if counts.is_unattended or counts.is_stalled
    )
    lines = [_advice_on(name, result.queues[name]) for name in troubled[:_ADVICE_LINES]]
    if len(troubled) > _ADVICE_LINES:
        lines.append(f"{count(len(troubled) - _ADVICE_LINES, 'more queue')} without a worker, or stalled")
    lines += [
        f"{visible(name)}: held, because its rules cannot be applied: {visible(counts.held)}"
        for name, counts in sorted(result.queues.items())
        if counts.held is not None
    ][:_ADVICE_LINES]
    return [Text(line, style="red") for line in lines]


def _advice_on(name: str, counts: Queue) -> str:
    if counts.is_stalled:
        busy = (
            f"{count(counts.workers, 'worker')}, none free, and "
            if counts.workers and not counts.free
            else ""
        )
        waited = duration(counts.stalled_seconds)
        return (
            f"{visible(name)}: {busy}no jobs are completing; the oldest has waited {waited}: see `drain top`"
        )
    waiting = counts.ready + counts.queued + counts.retrying
    return f"{visible(name)}: {count(waiting, 'job')} and no worker; start `drain work {visible(name)}`"
