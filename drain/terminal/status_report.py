"""Report of `drain status`: totals, a table of the queues, and advice on queues without a worker."""

from __future__ import annotations

from datetime import datetime

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from drain.read.system import WAITING_UP_TO, QueueCounts, Status
from drain.visible import visible
from drain.wording import clock, count, duration

# Causes for which due jobs wait though workers may be free, and their words for people.
_HELD = {
    "paused": "paused",
    "called_back": "called back by a pause",
    "limited": "behind a limit",
    "rate": "behind a rate",
    "list_full": "behind a full list",
}
# Width of a console with room for every table, and of a queue's name that may be broken.
_WIDEST = 10_000
_NAME_WIDTH = 16
# Upper bound of the lines that say what to do about a queue.
_ADVICE_LINES = 10


def show_status(result: Status) -> None:
    """Print the report."""
    console = Console(highlight=False, markup=False)
    console.print(status_view(result, console.width))


def status_view(result: Status, width: int) -> RenderableType:
    """Build the report for a terminal of this width."""
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


def _totals(result: Status) -> list[Text]:
    in_flight = f"{result.queued:,} queued, {result.running:,} running, {result.retrying:,} retrying"
    about = "about " if result.finished_is_estimate else ""
    due = result.oldest_staged_age_seconds
    return [
        Text(f"leader    {_leader(result)}", style="" if result.leader else "red"),
        Text.assemble(
            f"staged    {result.staged:,}: {result.scheduled:,} scheduled for later, ",
            (f"{result.overdue:,} overdue", "red" if result.overdue else ""),
        ),
        Text(f"in flight {result.inflight:,}: {in_flight}"),
        Text(f"finished  {about}{result.finished:,}"),
        Text(f"dead      {result.dead:,}", style="red" if result.dead else ""),
        Text(f"oldest    {f'staged job due for {duration(due)}' if due else 'no staged job is due'}"),
    ]


def _leader(result: Status) -> str:
    if result.leader is None:
        return "none; start `drain run`"
    return visible(f"{result.leader['name']} since {clock(datetime.fromisoformat(result.leader['since']))}")


def _fits(table: Table, width: int) -> bool:
    """Return whether only long names of queues must be broken."""
    name = table.columns[0]
    name.max_width = _NAME_WIDTH
    natural = Console(width=_WIDEST).measure(table).maximum
    name.max_width = None
    return natural <= width


def _table(result: Status, *, wide: bool) -> Table:
    """Build the table; a wide one has more columns of staged jobs and the length of the list in Redis."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("queue", overflow="fold")
    more = ("scheduled", "overdue") if wide else ()
    for column in ("workers", "staged", *more, "queued", "running", "retrying", "dead"):
        table.add_column(column, justify="right", no_wrap=wide, overflow="fold")
    if wide:
        table.add_column("ids in Redis", justify="right", no_wrap=True)
    table.add_column("oldest unclaimed", no_wrap=wide, overflow="fold")
    for name, counts in sorted(result.queues.items()):
        staged = (counts.staged, counts.scheduled, counts.overdue) if wide else (counts.staged,)
        numbers = (*staged, counts.queued, counts.running, counts.retrying, counts.dead)
        listed = [_number(counts.redis_depth)] if wide else []
        failing = (" failing", "red") if counts.failing else ""
        stalled = (" stalled", "red") if _stalls(counts) else ""
        paused = (" paused", "yellow") if counts.paused is not None else ""
        held = (" held", "red") if counts.held is not None else ""
        shown = Text.assemble(visible(name), failing, stalled, paused, held)
        table.add_row(shown, _workers(counts), *map(_number, numbers), *listed, _oldest(counts))
    return table


def _held(result: Status) -> list[Text]:
    """Build a line for each queue of which jobs wait for something that a person may want to know of."""
    lines = [(name, text) for name, counts in sorted(result.queues.items()) if (text := _causes(counts))]
    shown = [Text(f"{visible(name)}: {text}") for name, text in lines[:_ADVICE_LINES]]
    if len(lines) > _ADVICE_LINES:
        shown.append(Text(f"{count(len(lines) - _ADVICE_LINES, 'more queue')} with jobs that wait so"))
    return shown


def _causes(counts: QueueCounts) -> str:
    parts = [
        f"{_counted(number)} {words}"
        for cause, words in _HELD.items()
        if (number := counts.waiting.get(cause))
    ]
    return ", ".join(parts)


def _counted(number: int) -> str:
    return f"{number:,} or more" if number >= WAITING_UP_TO else f"{number:,}"


def _workers(counts: QueueCounts) -> Text:
    if counts.is_unattended:
        return Text("none", style="bold red")
    return Text("?" if counts.workers is None else f"{counts.free or 0:,}/{counts.workers:,}")


def _number(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _oldest(counts: QueueCounts) -> str:
    if counts.oldest_unclaimed_seconds is None:
        return ""
    return f"{duration(counts.oldest_unclaimed_seconds)} #{counts.oldest_unclaimed_id}"


def _advice(result: Status) -> list[Text]:
    troubled = sorted(
        name for name, counts in result.queues.items() if counts.is_unattended or _stalls(counts)
    )
    lines = [_advice_on(name, result.queues[name]) for name in troubled[:_ADVICE_LINES]]
    if len(troubled) > _ADVICE_LINES:
        lines.append(f"{count(len(troubled) - _ADVICE_LINES, 'more queue')} without a worker, or stalled")
    lines += [
        f"{visible(name)}: held, since its rules cannot be followed: {visible(counts.held)}"
        for name, counts in sorted(result.queues.items())
        if counts.held is not None
    ][:_ADVICE_LINES]
    return [Text(line, style="red") for line in lines]


def _stalls(counts: QueueCounts) -> bool:
    return counts.stalled_seconds is not None and not counts.is_unattended


def _advice_on(name: str, counts: QueueCounts) -> str:
    if counts.stalled_seconds is not None and not counts.is_unattended:
        busy = (
            f"{count(counts.workers, 'worker')}, none free, and "
            if counts.workers and not counts.free
            else ""
        )
        waited = duration(counts.stalled_seconds)
        return f"{visible(name)}: {busy}no job finishes; one has waited for {waited}: see `drain top`"
    waiting = counts.staged - counts.scheduled + counts.queued + counts.retrying
    return f"{visible(name)}: {count(waiting, 'job')} and no worker; start `drain work {visible(name)}`"
