"""Number of workers for a load: as many as finish the backlog within a time, beside what arrives meanwhile."""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

from drain.contrib.scaling.load import Load
from drain.formatting import count, duration, figure

# Time within which the backlog is to be finished unless a request says otherwise, in seconds.
WITHIN_SECONDS = 30.0
# Seconds that a job is taken to run before any of its queue has.
_UNKNOWN_SECONDS = 1.0
# Causes for which jobs wait that workers can do something about; a pause and a time to come are not among them.
_BACKLOG = ("due", "list_full", "queued", "limited", "rate")
# Error of floating-point numbers, which must not cost a worker.
_ROUNDING = 1e-9


class Wanted(NamedTuple):
    """Number of workers for a queue, and what it was computed from.

    Attributes:
        queue: Name of the queue.
        workers: Number of workers.
        within: Time within which the backlog is to be finished, in seconds.
        concurrency: Number of jobs that one worker runs at once.
        backlog: Jobs that wait for a worker, for room in a list, or behind a limit or a rate.
        arrivals: Jobs that come due in a second.
        run_seconds: Time for which a job occupies one of the worker's places.
        running: Jobs that run.
        kept: Workers that run a job for longer than `within`, and keep it.
        bound: Rule that keeps the number below what the load asks for; None if there is none.
        reason: Sentence for people.
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
        """As an object of JSON types."""
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
    """Compute how many workers a queue needs.

    Args:
        load: Load of the queue.
        within: Time within which the backlog is to be finished, in seconds.
        concurrency: Number of jobs that one worker runs at once.
    """
    backlog = sum(load.waiting.get(cause, 0) for cause in _BACKLOG)
    running = sum(number for number, _ in load.running)
    seconds = _run_seconds(load, concurrency)
    need = (backlog / within + load.arrivals) * seconds / concurrency
    # More workers than jobs that are there, or come while these run, have nothing to do.
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
    """Estimate for how long a job occupies a place of its worker.

    Both estimates are upper bounds: the time from claim to finish holds the wait behind jobs that were claimed
    together; the busy time of a process that runs several at once is shared among those that were there, and not among
    those that could have been.
    """
    if load.mean_seconds is None:
        return _UNKNOWN_SECONDS
    if load.busy_seconds is None:
        return load.mean_seconds
    return min(load.mean_seconds, load.busy_seconds * concurrency)


def _bound(
    load: Load, backlog: int, running: int, seconds: float, concurrency: int
) -> tuple[str | None, int]:
    """Find the rule that lets the fewest workers be of use, and how many these are."""
    rules, limits = load.rules, list[tuple[float, str]]()
    if rules.running is not None:
        limits.append((rules.running, "running"))
    if rules.bucket is not None:
        limits.append((rules.bucket.per_second * seconds, "rate"))
    if rules.ordered or rules.running_per_key is not None:
        # Jobs behind the limit of their key start after those of their key that run or can start.
        limits.append((running + backlog - load.waiting.get("limited", 0), "keys"))
    if not limits:
        return None, backlog + running + ceil(load.arrivals * seconds) + 1
    jobs, name = min(limits)
    return name, max(1, ceil(jobs / concurrency - _ROUNDING))


def _kept(load: Load, within: float, concurrency: int) -> int:
    """Count the workers that run a job for so long that the arrivals of the last minute do not speak of it."""
    long = [number for number, oldest in load.running if oldest > within]
    return min(len(long), ceil(sum(long) / concurrency))


def _reason(found: Wanted, need: float) -> str:
    places = f", {found.concurrency:,} at a time" if found.concurrency > 1 else ""
    backlog = f"{count(found.backlog, 'job')} within {duration(found.within)}"
    arrivals = f"{figure(found.arrivals)} a second that arrive"
    parts = [f"{backlog} and {arrivals}, {duration(found.run_seconds)} each{places}: {figure(need)}"]
    words = {
        "pause": "the queue is paused",
        "running": "no more may run at a time (running)",
        "rate": "no more may begin (rate)",
        "keys": "the others wait for jobs of their key",
    }
    if found.bound is not None:
        parts.append(words[found.bound])
    if found.kept:
        parts.append(f"{count(found.kept, 'worker')} with a job that runs for longer")
    return "; ".join(parts)
