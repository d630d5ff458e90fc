"""Forecast for people, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from math import isinf
from statistics import fmean
from typing import Any

import click
from rich.console import Console

from drain.contrib.forecast.inputs import Known, Taken
from drain.contrib.forecast.prediction import Prediction, Wait, quantile
from drain.formatting import clock, count, duration, figure, visible
from drain.terminal.fitted_table import Column, fitted_table

# Share of what a queue can run from which its arrivals alone are too many.
_FULL = 1.0


def as_json(known: Known, prediction: Prediction) -> dict[str, Any]:
    """Return a forecast as an object of JSON types; an end that never comes is null."""
    facts, ends = known.queues[known.queue], prediction.ends
    times = _times(known)
    return {
        "queue": known.queue,
        "as_of": datetime.fromtimestamp(known.now, UTC).isoformat(),
        "jobs": known.added.jobs if known.added else facts.jobs,
        "job_name": known.added.job_name if known.added else None,
        "waiting": facts.jobs,
        "scheduled": len(facts.scheduled),
        "workers": _workers(known),
        "arrivals_per_second": facts.arrivals,
        "run_seconds": {"mean": fmean(times), "median": quantile(times, 0.5), "p95": quantile(times, 0.95)}
        if times
        else None,
        "run_times": len(times),
        "ends": {
            "seconds": _finite(ends.median),
            "low": _finite(ends.low),
            "high": _finite(ends.high),
            "at": at.isoformat() if (at := _moment(known, ends.median)) else None,
        },
        "load": prediction.load,
        "waits": [
            {
                "queue": each.queue,
                "arrivals_per_second": each.arrivals,
                "with": _wait_as_json(each.with_it),
                "without": _wait_as_json(each.without),
            }
            for each in prediction.effects
        ],
        "notes": list(_notes(known, prediction)),
    }


def show(known: Known, prediction: Prediction) -> None:
    """Print a forecast."""
    console = Console(highlight=False, markup=False, emoji=False)
    for line in _lines(known, prediction):
        console.print(visible(line))
    if prediction.effects:
        click.echo("\nhow long jobs wait that come meanwhile: the median, and 95 in 100")
        rows = [vars(each) for each in prediction.effects]
        console.print(fitted_table(_COLUMNS, rows, datetime.now(UTC), console.width))
    for note in _notes(known, prediction):
        console.print(f"note: {visible(note)}")


def _lines(known: Known, prediction: Prediction) -> Iterator[str]:
    facts, ends, added = known.queues[known.queue], prediction.ends, known.added
    workers = count(_workers(known), "worker")
    if added is not None:
        yield f"queue {known.queue}: {count(added.jobs, 'job')} of {added.job_name} more"
    yield (
        f"queue {known.queue}: {count(facts.jobs, 'job')} to run, {workers}, "
        f"{figure(facts.arrivals)} jobs a second come"
    )
    if times := _times(known):
        median, most = (duration(quantile(times, part)) for part in (0.5, 0.95))
        source = "named" if known.run_seconds is not None else f"of {count(len(times), 'job')}"
        yield f"run times {source}: {median} at the median, {most} at 95 in 100"
    what = "these jobs end" if added else "this backlog ends"
    if not (added or facts.jobs):
        yield "nothing waits: there is no backlog"
    elif known.is_stuck:
        yield f"{what}: not known, since no worker of the queue is free"
    elif isinf(ends.median):
        yield f"{what}: never, as far as can be seen; jobs that come first take all workers"
    else:
        at = _moment(known, ends.median)
        yield f"{what} in {duration(ends.median)}, {f'at {clock(at)}' if at else 'after the year 9999'}"
        high = "never" if isinf(ends.high) else duration(ends.high)
        yield f"nine in ten simulations: {duration(ends.low)} to {high}"


def _notes(known: Known, prediction: Prediction) -> Iterator[str]:
    facts = known.queues[known.queue]
    if prediction.load >= _FULL:
        yield (
            f"more jobs come to queue {known.queue} than it can run ({prediction.load:.1f} times as many): "
            "what waits grows ever more"
        )
    for (job_name, queue), taken in _grouped(known.stuck).items():
        longest = duration(max(each.seconds for each in taken))
        yield (
            f"{count(len(taken), 'worker')} left out: it is unknown when {job_name} of queue {queue} ends; it has run "
            f"for {longest}, longer than any that finished lately"
        )
    if known.plain:
        yield f"{count(known.plain, 'worker')} left out: it is unknown when their plain RQ jobs end"
    if isinf(facts.paused_seconds):
        yield f"queue {known.queue} is paused without an end: this is for a queue that is resumed now"
    if facts.scheduled:
        yield f"{count(len(facts.scheduled), 'job')} of the queue are scheduled for later, and not awaited"
    for each in known.queues.values():
        if each.rules is not None and _has_rules_of_keys(each.rules):
            yield f"queue {each.name} has rules of keys, which are not simulated: the end may come later"
        if (each.jobs or each.arrivals) and not known.samples(each.name):
            yield f"no run times of queue {each.name} are known: its jobs are left out"


def _grouped(stuck: Iterable[Taken]) -> dict[tuple[str, str], list[Taken]]:
    groups: dict[tuple[str, str], list[Taken]] = {}
    for each in stuck:
        groups.setdefault((each.job.job_name, each.queue), []).append(each)
    return groups


def _has_rules_of_keys(rules: Any) -> bool:
    return bool(rules.running_per_key or rules.rate_per_key or rules.ordered)


def _times(known: Known) -> list[float]:
    return sorted(known.samples(known.queue, known.added.job_name if known.added else None))


def _workers(known: Known) -> int:
    return sum(known.queue in names for names in known.workers) + known.plain


def _finite(seconds: float) -> float | None:
    return None if isinf(seconds) else seconds


def _moment(known: Known, seconds: float) -> datetime | None:
    """Return the time that lies so many seconds ahead; None for never, and for what no calendar has."""
    try:
        return datetime.fromtimestamp(known.now, UTC) + timedelta(seconds=seconds)
    except OverflowError:
        return None


def _wait_as_json(wait: Wait | None) -> dict[str, Any] | None:
    return None if wait is None else {"median": wait.median, "p95": wait.most, "to_the_end": wait.to_the_end}


def _cell(wait: Wait | None) -> str:
    if wait is None:
        return "none came"
    if wait.to_the_end:
        return "until it ends"
    return f"{duration(wait.median)}, {duration(wait.most)}"


_COLUMNS = [
    Column("queue", lambda row, _now: visible(str(row["queue"])), cut="start"),
    Column("a second", lambda row, _now: figure(row["arrivals"]), is_number=True),
    Column("with these jobs", lambda row, _now: _cell(row["with_it"])),
    Column("without", lambda row, _now: _cell(row["without"])),
]
