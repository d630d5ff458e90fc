"""Screen of `drain top`: totals, queues, and the longest-running jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from textwrap import wrap
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from drain.formatting import clock, count, duration, figure, visible
from drain.read.causes import CAUSES
from drain.read.queue import Queue
from drain.read.system import GROUPED_UP_TO, System
from drain.terminal.fitted_table import Column, fitted_table

# Sort order by key.
SORTS = {"w": "waiting", "r": "rate", "o": "oldest", "b": "busy", "n": "name"}
_ORDERS: dict[str, Callable[[tuple[str, Queue]], Any]] = {
    "waiting": lambda pair: (-pair[1].waits, pair[0]),
    "rate": lambda pair: (-pair[1].per_second, pair[0]),
    "oldest": lambda pair: (-pair[1].oldest_seconds, pair[0]),
    "busy": lambda pair: (-pair[1].running, pair[0]),
    "name": lambda pair: pair[0],
}
# Lines around both tables.
_OTHER_LINES = 9
# Minimum height for running jobs; lines around the queues without them.
_HIGH = 14
_OTHER_LINES_OF_QUEUES = 7
_PROBLEM_LINES = 4
# Share of the rows for queues, if there are enough running jobs.
_QUEUES_PART = 0.6


def top_view(
    system: System,
    width: int,
    height: int | None,
    sort: str,
    problem: str | None,
    *,
    paused: bool = False,
) -> RenderableType:
    """Build the screen.

    Args:
        height: Lines of the terminal; None for no bound and no keys.
        sort: One of the values of `SORTS`.
        problem: Why the data are old or incomplete, if they are.
        paused: Updates are paused.
    """
    rows, jobs = len(system.queues), len(system.running)
    lines = wrap(visible(problem or ""), width)[:_PROBLEM_LINES]
    if height is not None:
        jobs = jobs if height >= _HIGH else 0
        others = _OTHER_LINES if jobs else _OTHER_LINES_OF_QUEUES
        # A very small terminal shows no problem.
        lines = lines[: max(0, height - others - 1)]
        room = max(1, height - others - len(lines))
        rows = min(rows, max(1, int(_QUEUES_PART * room), room - jobs))
        jobs = min(jobs, room - rows)
    parts: list[RenderableType] = [*_totals(system, width)]
    parts += [_cut(Text(line, style="red"), width) for line in lines]
    parts += [Text(), *_queues(system, width, sort, rows)]
    if jobs:
        parts += [Text(), _running(system, width, jobs)]
    if height is not None:
        parts += [Text(), _keys(width, sort, paused=paused)]
    return Group(*parts)


def _totals(system: System, width: int) -> list[Text]:
    leader = system.leader
    name = (
        f"leader {visible(leader['name'])} since {_since(leader)}"
        if leader
        else "no leader: start `drain run`"
    )
    first = Text.assemble(f"{clock(system.now)}  ", (name, "" if leader else "red"))
    waits, running = (f"{_about(system, name)}{system.total(name):,}" for name in ("waits", "running"))
    second = Text(f"{waits} waiting, {running} running, {figure(system.total('per_second'))}/s completed, ")
    second.append(_dead(system), "red" if system.total("dead") else "")
    return [_cut(first, width), _cut(second, width)]


def _since(leader: dict[str, str]) -> str:
    return clock(datetime.fromisoformat(leader["since"]))


def _dead(system: System) -> str:
    dead = system.total("dead")
    if not dead:
        return "none dead"
    of_them = " or more" if dead > GROUPED_UP_TO else ""
    groups = f"{system.dead_groups}{of_them} {'group' if system.dead_groups == 1 else 'groups'}"
    return f"{_about(system, 'dead')}{dead:,} dead in {groups}"


def _about(of: System | Queue, name: str) -> str:
    return "~" if of.is_estimate(name) else ""


def _queues(system: System, width: int, sort: str, most: int) -> list[RenderableType]:
    pairs = sorted(system.queues.items(), key=_ORDERS[sort])
    if not pairs:
        return [Text("no queue has jobs")]
    rows = [{"name": name, "queue": queue} for name, queue in pairs[:most]]
    shown: list[RenderableType] = [fitted_table(_QUEUE_COLUMNS, rows, system.now, width)]
    if len(pairs) > most:
        shown.append(_cut(Text(f"and {count(len(pairs) - most, 'more queue')}", style="dim"), width))
    return shown


def _running(system: System, width: int, most: int) -> RenderableType:
    rows = [{"job": job} for job in system.running[:most]]
    return fitted_table(_JOB_COLUMNS, rows, system.now, width)


def _keys(width: int, sort: str, *, paused: bool) -> Text:
    line = Text("PAUSED  " if paused else "", style="bold yellow")
    line.append(f"q quit  p {'resume' if paused else 'pause'}  sort by:", style="dim")
    for key, word in SORTS.items():
        line.append(f" {key} {word}", style="bold" if word == sort else "dim")
    return _cut(line, width)


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    text.no_wrap = True
    return text


def _shown(name: str) -> Callable[[dict[str, Any], datetime], str]:
    return lambda row, _now: f"{_about(row['queue'], name)}{getattr(row['queue'], name):,}"


def _oldest(row: dict[str, Any], _now: datetime) -> str:
    seconds = row["queue"].oldest_seconds
    return duration(seconds) if seconds >= 0.01 else ""


def _workers(row: dict[str, Any], _now: datetime) -> Text:
    queue: Queue = row["queue"]
    if queue.is_unattended:
        return Text("none", style="bold red")
    return Text("?" if queue.workers is None else f"{queue.free or 0:,}/{queue.workers:,}")


def _why(row: dict[str, Any], _now: datetime) -> Text:
    queue: Queue = row["queue"]
    text = Text()
    text.append("FAILING " if queue.failing else "", "red")
    text.append("STALLED " if queue.is_stalled else "", "red")
    text.append("PAUSED " if queue.paused else "", "yellow")
    parts = [
        f"{_about(queue, cause)}{number:,} {word}"
        for cause, word in CAUSES.items()
        if (number := queue.waiting.get(cause))
    ]
    return text.append(", ".join(parts))


def _running_for(row: dict[str, Any], _now: datetime) -> str:
    job = row["job"]
    return duration((job["now"] - job["claimed_at"]).total_seconds()) if job["claimed_at"] else "?"


def _worker(row: dict[str, Any], _now: datetime) -> Text:
    job = row["job"]
    host, *process = (job["claimed_by"] or "").split(":")
    name = visible(":".join([host.partition(".")[0], *process[:1]]))
    return Text(f"{name} expired", style="red") if job["is_over"] else Text(name)


_QUEUE_COLUMNS = (
    Column("queue", lambda row, _now: visible(row["name"]), "end", least=12),
    Column("rate/s", lambda row, _now: figure(row["queue"].per_second), is_number=True),
    Column("waiting", _shown("waits"), is_number=True),
    Column("oldest", _oldest, is_number=True),
    Column("running", _shown("running"), is_number=True),
    Column("workers", _workers, is_number=True),
    Column("waiting jobs", _why, "end", share=1.5, least=20),
)
_JOB_COLUMNS = (
    Column(
        "running for",
        lambda row, _now: duration((row["job"]["now"] - row["job"]["claimed_at"]).total_seconds()),
        is_number=True,
    ),
    Column("id", lambda row, _now: str(row["job"]["id"]), is_number=True),
    Column("attempt", lambda row, _now: str(row["job"]["attempt"]), is_number=True),
    Column("job", lambda row, _now: visible(row["job"]["job_name"]), "start", share=1.5, least=12),
    Column("queue", lambda row, _now: visible(row["job"]["queue"]), "end", least=8),
    Column("worker", _worker, "start", least=8),
)
