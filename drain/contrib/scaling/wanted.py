"""Wanted workers."""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

from drain.contrib.scaling.load import Load
from drain.formatting import count, duration, figure

WITHIN_SECONDS = 30.0
# Until any job has finished.
_UNKNOWN_SECONDS = 1.0
# More workers do not help against pauses and schedules.
_BACKLOG = ("due", "list_full", "queued", "limited", "rate")
# Rounding errors must not cost a worker.
_ROUNDING = 1e-9


class Wanted(NamedTuple):
    """Wanted workers of a queue, and why.

    Attributes:
        within: Seconds until the backlog should end.
        concurrency: Jobs per worker at once.
        backlog: Jobs waiting for a worker, room in a list, a limit or a rate.
        arrivals: Jobs that come due per second.
        run_seconds: How long a job occupies a slot.
        kept: Workers kept for jobs running longer than `within`.
        bound: Rule that caps the number, if any.
    """

    queue: str
    workers: int
    within: float
    concurrency: int
    backlog: int
    arrivals: float
    run_seconds: float
    running: int
    kept: int
    bound: str | None
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types."""
        return {
            "queue": self.queue,
            "wanted": self.workers,
            "within_seconds": self.within,
            "concurrency": self.concurrency,
            "backlog": self.backlog,
            "arrivals_per_second": round(self.arrivals, 3),
            "run_seconds": round(self.run_seconds, 6),
            "running": self.running,
            "kept": self.kept,
            "bound": self.bound,
            "reason": self.reason,
        }


def wanted(load: Load, within: float = WITHIN_SECONDS, concurrency: int = 1) -> Wanted:
    """Compute how many workers a queue needs."""
    backlog = sum(load.waiting.get(cause, 0) for cause in _BACKLOG)
    running = sum(number for number, _ in load.running)
    seconds = _run_seconds(load, concurrency)
    need = (backlog / within + load.arrivals) * seconds / concurrency
    # More workers than jobs would idle.
    jobs = backlog + running + load.arrivals * min(seconds, within)
    asked = ceil(min(need, jobs / concurrency) - _ROUNDING)
    bound, most = _bound(load, backlog, running, seconds, concurrency)
    if load.is_paused:
        asked, bound = 0, "pause"
    elif asked > most:
        asked = most
    else:
        bound = None
    kept = _kept(load, within, concurrency)
    workers = max(0, asked, kept)
    found = Wanted(
        load.queue, workers, within, concurrency, backlog, load.arrivals, seconds, running, kept, bound, ""
    )
    return found._replace(reason=_reason(found, need))


def _run_seconds(load: Load, concurrency: int) -> float:
    """Estimate how long a job occupies a slot, from two upper bounds.

    Claim to finish includes waiting for jobs claimed together; busy time is shared by actual jobs, not all possible
    ones.
    """
    if load.mean_seconds is None:
        return _UNKNOWN_SECONDS
    if load.busy_seconds is None:
        return load.mean_seconds
    return min(load.mean_seconds, load.busy_seconds * concurrency)


def _bound(
    load: Load, backlog: int, running: int, seconds: float, concurrency: int
) -> tuple[str | None, int]:
    rules, limits = load.rules, list[tuple[float, str]]()
    if rules.running is not None:
        limits.append((rules.running, "running"))
    if rules.bucket is not None:
        limits.append((rules.bucket.per_second * seconds, "rate"))
    if rules.ordered or rules.running_per_key is not None:
        # Jobs behind their key's limit start after others with that key.
        limits.append((running + backlog - load.waiting.get("limited", 0), "keys"))
    if not limits:
        return None, backlog + running + ceil(load.arrivals * seconds) + 1
    jobs, name = min(limits)
    return name, max(1, ceil(jobs / concurrency - _ROUNDING))


def _kept(load: Load, within: float, concurrency: int) -> int:
    """Count workers with jobs so long that recent arrivals do not account for them."""
    long = [number for number, oldest in load.running if oldest > within]
    return min(len(long), ceil(sum(long) / concurrency))


def _reason(found: Wanted, need: float) -> str:
    places = f", {found.concurrency:,} at a time" if found.concurrency > 1 else ""
    backlog = f"{count(found.backlog, 'job')} within {duration(found.within)}"
    arrivals = f"{figure(found.arrivals)} arriving per second"
    parts = [f"{backlog} plus {arrivals}, {duration(found.run_seconds)} each{places}: {figure(need)}"]
    words = {
        "pause": "the queue is paused",
        "running": "no more may run at once (running)",
        "rate": "no more may start (rate)",
        "keys": "the others wait for jobs with their key",
    }
    if found.bound is not None:
        parts.append(words[found.bound])
    if found.kept:
        parts.append(f"{count(found.kept, 'worker')} kept for longer jobs")
    return "; ".join(parts)
