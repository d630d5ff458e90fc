"""Screen of `drain top`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from textwrap import wrap
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from drain.formatting import clock, count, duration, visible
from drain.read.causes import CAUSES
from drain.read.queue import TROUBLES, Queue
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
# Shown as the state of a healthy queue.
_RULES = ("paused", "rate", "limited", "list_full")
# Labels, numbers of `System.total`, and styles.
_STATS = (
    ("Throughput", "per_minute", ""),
    ("Waiting", "waits", ""),
    ("Running", "running", ""),
    ("Retrying", "retrying", ""),
    ("Dead", "dead", "red"),
)
# Numbers drawn as curves; the dead only accumulate.
CURVES = ("per_minute", "waits", "running", "retrying")
_BARS = "▁▂▃▄▅▆▇█"
_WIDEST_STAT = 24
# Minimum heights for totals, jobs and curves.
_LOW, _HIGH, _HIGHEST = 10, 14, 20
_WIDE = 110
_PROBLEM_LINES = 4
# Queues' share of the rows.
_QUEUES_PART = 0.6


def top_view(
    system: System,
    width: int,
    height: int | None,
    sort: str,
    problem: str | None,
    *,
    paused: bool = False,
    samples: Sequence[Sequence[int]] = (),
) -> RenderableType:
    """Build the screen.

    Args:
        height: None for no bound and no keys.
        sort: One of `SORTS`.
        problem: Why the data are old or incomplete.
        paused: Updates are paused.
        samples: Numbers in the order of `CURVES`.
    """
    head = _head(system, width, height, problem, samples)
    rows, jobs = len(system.queues), len(system.running)
    if height is not None:
        jobs = jobs if height >= _HIGH else 0
        # A blank line, the header, more queues, and the keys; with jobs, a blank line and a header.
        room = max(1, height - len(head) - (7 if jobs else 5))
        rows = min(rows, max(1, int(_QUEUES_PART * room), room - jobs))
        jobs = min(jobs, room - rows)
    parts: list[RenderableType] = [*head, Text(), *_queues(system, width, sort, rows)]
    if jobs:
        parts += [Text(), _running(system, width, jobs)]
    if height is not None:
        parts += [Text(), _keys(width, sort, paused=paused)]
    return Group(*parts)


def _head(
    system: System, width: int, height: int | None, problem: str | None, samples: Sequence[Sequence[int]]
) -> list[Text]:
    room = height or _HIGHEST
    totals = _stats(system, width, samples if room >= _HIGHEST else ()) if room >= _LOW else []
    if room >= _HIGH:
        causes = _causes(system.queues.values())
        totals = [Text(), *totals, *([_cut(Text(causes, style="dim"), width)] if causes else [])]
    most = _PROBLEM_LINES if height is None else min(_PROBLEM_LINES, height - len(totals) - 7)
    lines = wrap(visible(problem or ""), width)[: max(0, most)]
    problems = [_cut(Text(line, style="red"), width) for line in lines]
    return [_health(system, width, is_current=problem is None), *problems, *totals]


def _health(system: System, width: int, *, is_current: bool) -> Text:
    troubled = [f"{visible(name)} {_state(system, queue)}" for name, queue in _troubled(system)]
    time = clock(system.now)[11:]
    if system.leader is None:
        line = Text.assemble(("No leader", "bold red"), "  Jobs are not drained: start `drain run`.")
    elif troubled:
        number = f"{len(troubled):,} of {count(len(system.queues), 'queue')}"
        line = Text.assemble(("Needs attention", "bold yellow"), f"  {number}: {', '.join(troubled)}")
    else:
        line = Text.assemble(("OK", "bold green") if is_current else ("Not current", "bold red"))
        line.append(f"  leader {visible(system.leader['name'])} since {_since(system.leader)}", "dim")
    room = max(1, width - len(time) - 2)
    line.truncate(room, overflow="ellipsis", pad=True)
    return _cut(line.append(f"  {time}", "dim"), width)


def _troubled(system: System) -> list[tuple[str, Queue]]:
    troubled = [(name, queue) for name, queue in sorted(system.queues.items()) if queue.troubles]
    return sorted(troubled, key=lambda pair: pair[1].troubles == [TROUBLES["paused"]])


def _since(leader: dict[str, str]) -> str:
    return clock(datetime.fromisoformat(leader["since"]))


def _stats(system: System, width: int, samples: Sequence[Sequence[int]]) -> list[Text]:
    room = min(_WIDEST_STAT, width // len(_STATS))
    labels, numbers, curves = Text(), Text(), Text()
    for label, name, style in _STATS:
        number = f"{_about(system, name)}{system.total(name):,}{_unit(system, name)}"
        labels.append(_padded(label, room), "dim")
        numbers.append(_padded(number, room), f"bold {style}" if system.total(name) else "bold")
        if name in CURVES:
            values = [sample[CURVES.index(name)] for sample in samples]
            curves.append(_padded(curve(values, room - 2), room), "cyan")
    lines = [labels, numbers, curves] if len(samples) > 1 else [labels, numbers]
    return [_cut(line, width) for line in lines]


def _padded(text: str, room: int) -> str:
    return (text if len(text) < room else f"{text[: max(0, room - 2)]}…").ljust(room)


def _unit(system: System, name: str) -> str:
    if name == "per_minute":
        return " per min"
    if name == "dead" and system.total("dead"):
        of_them = "+" if system.total("dead") > GROUPED_UP_TO else ""
        return f" in {system.dead_groups}{of_them} {'group' if system.dead_groups == 1 else 'groups'}"
    return ""


def curve(values: Sequence[int], width: int) -> str:
    """Draw values from zero to the largest; the largest of several in a column."""
    columns = min(len(values), max(1, width))
    most = max(values, default=0) or 1
    return "".join(
        _BARS[-(-max(part) * (len(_BARS) - 1) // most)]
        for at in range(columns)
        for part in [values[at * len(values) // columns : (at + 1) * len(values) // columns]]
    )


def _about(of: System | Queue, name: str) -> str:
    return "~" if of.is_estimate(name) else ""


def _causes(queues: Iterable[Queue]) -> str:
    waiting: Counter[str] = Counter()
    about = set[str]()
    for queue in queues:
        waiting.update(queue.waiting)
        about |= queue.estimates
    return ", ".join(
        f"{'~' if cause in about else ''}{waiting[cause]:,} {word}"
        for cause, word in CAUSES.items()
        if waiting[cause]
    )


def _queues(system: System, width: int, sort: str, most: int) -> list[RenderableType]:
    pairs = sorted(system.queues.items(), key=_ORDERS[sort])
    if not pairs:
        return [Text("no queue has jobs")]
    rows = [{"name": name, "queue": queue, "system": system} for name, queue in pairs[:most]]
    columns = (*_QUEUE_COLUMNS, _WAITING_JOBS) if width >= _WIDE else _QUEUE_COLUMNS
    shown: list[RenderableType] = [fitted_table(columns, rows, system.now, width)]
    if len(pairs) > most:
        shown.append(_cut(Text(f"and {count(len(pairs) - most, 'more queue')}", style="dim"), width))
    return shown


def _running(system: System, width: int, most: int) -> RenderableType:
    rows = [{"job": job} for job in system.running[:most]]
    return fitted_table(_JOB_COLUMNS, rows, system.now, width)


def _keys(width: int, sort: str, *, paused: bool) -> Text:
    line = Text.assemble(("PAUSED  " if paused else "", "bold yellow"))
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


def _state(system: System, queue: Queue) -> str:
    """Name all that needs attention; else the rules that hold jobs, or OK."""
    words = list(queue.troubles)
    if system.leader is None and queue.waits:
        words.append("Not drained")
    words = words or [CAUSES[cause].capitalize() for cause in _RULES if queue.waiting.get(cause)]
    return ", ".join(words) or "OK"


def _shown_state(row: dict[str, Any], _now: datetime) -> Text:
    queue: Queue = row["queue"]
    is_bad = any(word != TROUBLES["paused"] for word in queue.troubles)
    return Text(_state(row["system"], queue), "red" if is_bad else "yellow" if queue.troubles else "")


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
    Column("state", _shown_state, "end", share=1.5, least=8),
    Column("waiting", _shown("waits"), is_number=True),
    Column("oldest", _oldest, is_number=True),
    Column("running", _shown("running"), is_number=True),
    Column("workers", _workers, is_number=True),
    Column("per min", _shown("per_minute"), is_number=True),
    Column("dead", _shown("dead"), is_number=True),
)
_WAITING_JOBS = Column("waiting jobs", lambda row, _now: _causes([row["queue"]]), "end", share=1.5, least=20)
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
