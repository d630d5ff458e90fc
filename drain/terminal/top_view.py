"""Screen of `drain top`: totals, the queues, and the jobs that have run for longest, fitted to the terminal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from textwrap import wrap
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from drain.read.activity import GROUPED_UP_TO, UP_TO, Activity, QueueActivity, RunningJob
from drain.terminal.fitted_table import Column, fitted_table
from drain.visible import visible
from drain.wording import clock, count, duration, figure

# Keys that choose the order of the queues, each with the word for it.
SORTS = {"w": "waiting", "r": "rate", "o": "oldest", "b": "busy", "n": "name"}
# Words for causes, the most telling first.
_CAUSES = {
    "paused": "paused",
    "called_back": "called back",
    "limited": "limited",
    "rate": "rate",
    "list_full": "list full",
    "due": "due",
    "queued": "queued",
    "retrying": "retrying",
    "scheduled": "scheduled",
}
_ORDERS: dict[str, Callable[[tuple[str, QueueActivity]], Any]] = {
    "waiting": lambda pair: (-pair[1].waits, pair[0]),
    "rate": lambda pair: (-pair[1].per_second, pair[0]),
    "oldest": lambda pair: (-pair[1].oldest_seconds, pair[0]),
    "busy": lambda pair: (-pair[1].running, pair[0]),
    "name": lambda pair: pair[0],
}
# Lines besides the rows of both tables: totals, headings, blank ones, one for what has no room, and keys.
_OTHER_LINES = 9
# Height from which there is a table of running jobs, and the lines besides the rows where there is none.
_HIGH = 14
_OTHER_LINES_OF_QUEUES = 7
# Upper bound of the lines of a problem.
_PROBLEM_LINES = 4
# Part of the rows that the queues may take, if there are that many running jobs.
_QUEUES_PART = 0.6


def top_view(
    activity: Activity,
    width: int,
    height: int | None,
    sort: str,
    problem: str | None,
    *,
    paused: bool = False,
) -> RenderableType:
    """Build the screen.

    Args:
        activity: What is shown.
        width: Columns of the terminal.
        height: Lines of the terminal; None for as many as it takes, and no keys.
        sort: One of the values of `SORTS`.
        problem: Reason why what is shown is old, or not complete; None if it is neither.
        paused: The screen stays as it is.
    """
    rows, jobs = len(activity.queues), len(activity.running)
    lines = wrap(visible(problem or ""), width)[:_PROBLEM_LINES]
    if height is not None:
        jobs = jobs if height >= _HIGH else 0
        others = _OTHER_LINES if jobs else _OTHER_LINES_OF_QUEUES
        # In a very small terminal a problem has no line.
        lines = lines[: max(0, height - others - 1)]
        room = max(1, height - others - len(lines))
        rows = min(rows, max(1, int(_QUEUES_PART * room), room - jobs))
        jobs = min(jobs, room - rows)
    parts: list[RenderableType] = [*_totals(activity, width)]
    parts += [_cut(Text(line, style="red"), width) for line in lines]
    parts += [Text(), *_queues(activity, width, sort, rows)]
    if jobs:
        parts += [Text(), _running(activity, width, jobs)]
    if height is not None:
        parts += [Text(), _keys(width, sort, paused=paused)]
    return Group(*parts)


def _totals(activity: Activity, width: int) -> list[Text]:
    queues = activity.queues.values()
    leader = activity.leader
    name = (
        f"leader {visible(leader['name'])} since {_since(leader)}"
        if leader
        else "no leader: start `drain run`"
    )
    first = Text.assemble(f"{clock(activity.now)}  ", (name, "" if leader else "red"))
    waits = sum(queue.waits for queue in queues)
    running = sum(queue.running for queue in queues)
    rate = sum(queue.per_second for queue in queues)
    second = Text(f"{waits:,} waiting, {running:,} running, {figure(rate)}/s finishing, ")
    second.append(_dead(activity), "red" if activity.dead else "")
    return [_cut(first, width), _cut(second, width)]


def _since(leader: dict[str, str]) -> str:
    return clock(datetime.fromisoformat(leader["since"]))


def _dead(activity: Activity) -> str:
    if not activity.dead:
        return "none dead"
    number = f"{UP_TO:,} or more" if activity.dead >= UP_TO else f"{activity.dead:,}"
    of_them = " or more" if activity.dead > GROUPED_UP_TO else ""
    return f"{number} dead in {activity.dead_groups}{of_them} {'group' if activity.dead_groups == 1 else 'groups'}"


def _queues(activity: Activity, width: int, sort: str, most: int) -> list[RenderableType]:
    pairs = sorted(activity.queues.items(), key=_ORDERS[sort])
    if not pairs:
        return [Text("no queue has a job, or has had one today")]
    rows = [{"name": name, "queue": queue, "up_to": activity.up_to} for name, queue in pairs[:most]]
    shown: list[RenderableType] = [fitted_table(_QUEUE_COLUMNS, rows, activity.now, width)]
    if len(pairs) > most:
        shown.append(_cut(Text(f"and {count(len(pairs) - most, 'more queue')}", style="dim"), width))
    return shown


def _running(activity: Activity, width: int, most: int) -> RenderableType:
    rows = [{"job": job} for job in activity.running[:most]]
    return fitted_table(_JOB_COLUMNS, rows, activity.now, width)


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


def _short(number: int, up_to: int = UP_TO) -> str:
    return f"{number:,}+" if number >= up_to else f"{number:,}"


def _oldest(row: dict[str, Any], _now: datetime) -> str:
    seconds = row["queue"].oldest_seconds
    return duration(seconds) if seconds >= 0.01 else ""


def _workers(row: dict[str, Any], _now: datetime) -> Text:
    queue: QueueActivity = row["queue"]
    if queue.is_unattended:
        return Text("none", style="bold red")
    return Text("?" if queue.workers is None else f"{queue.free or 0:,}/{queue.workers:,}")


def _why(row: dict[str, Any], _now: datetime) -> Text:
    queue: QueueActivity = row["queue"]
    text = Text()
    text.append("FAILING " if queue.failing else "", "red")
    text.append("STALLED " if queue.stalled_seconds and not queue.is_unattended else "", "red")
    text.append("PAUSED " if queue.paused else "", "yellow")
    counts = [(queue.waiting.get(cause, 0), word) for cause, word in _CAUSES.items()]
    return text.append(
        ", ".join(f"{_short(number, row['up_to'])} {word}" for number, word in counts if number)
    )


def _worker(row: dict[str, Any], _now: datetime) -> Text:
    job: RunningJob = row["job"]
    host, *process = (job.worker or "").split(":")
    name = visible(":".join([host.partition(".")[0], *process[:1]]))
    return Text(f"{name} lapsed", style="red") if job.has_lapsed else Text(name)


_QUEUE_COLUMNS = (
    Column("queue", lambda row, _now: visible(row["name"]), "end", least=12),
    Column("rate/s", lambda row, _now: figure(row["queue"].per_second), is_number=True),
    Column("waiting", lambda row, _now: _short(row["queue"].waits, row["up_to"]), is_number=True),
    Column("oldest", _oldest, is_number=True),
    Column("running", lambda row, _now: _short(row["queue"].running), is_number=True),
    Column("workers", _workers, is_number=True),
    Column("why they wait", _why, "end", share=1.5, least=20),
)
_JOB_COLUMNS = (
    Column("running for", lambda row, _now: duration(row["job"].seconds), is_number=True),
    Column("id", lambda row, _now: str(row["job"].id), is_number=True),
    Column("try", lambda row, _now: str(row["job"].attempt), is_number=True),
    Column("job", lambda row, _now: visible(row["job"].job_name), "start", share=1.5, least=12),
    Column("queue", lambda row, _now: visible(row["job"].queue), "end", least=8),
    Column("worker", _worker, "start", least=8),
)
