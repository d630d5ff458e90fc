"""What an audit found: how many jobs are where, and each breach of what must always hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from heapq import nsmallest
from typing import Any

CHECKS = {
    "once": "each id is in exactly one table, once",
    "claimed": "nothing has finished without a claim",
    "tokens": "no fencing token has gone backwards",
    "conditions": "each job in flight is delivered, claimed or waiting, and only one of these",
    "deliveries": "delivery numbers are unique, and none is ahead of the last one handed out",
    "overdue": "nothing is overdue",
    "redis": "the Redis lists and inflight_jobs agree",
}

# The most ids that a breach names, and the most queues.
SAMPLES = 10
_QUEUES = 3


@dataclass(frozen=True, slots=True)
class Breach:
    """One way in which what must always hold does not.

    Attributes:
        check: One of `CHECKS`.
        explanation: What is wrong, to be read after the count.
        count: How many there are of it.
        ids: Up to `SAMPLES` of the jobs, the lowest first; none where it is no matter of jobs.
    """

    check: str
    explanation: str
    count: int = 1
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """All that an audit found.

    Attributes:
        counts: Exact numbers of rows, all of one instant: staged, inflight, finished, dead.
        breaches: In the order of `CHECKS`.
        redis_asked: Whether Redis was to be asked; without it nothing is known of the check `redis`.
    """

    counts: dict[str, int]
    breaches: tuple[Breach, ...]
    redis_asked: bool

    @property
    def ok(self) -> bool:
        """Whether there is no breach."""
        return not self.breaches

    def checks(self) -> dict[str, list[Breach]]:
        """The breaches of each check that was made."""
        made = [name for name in CHECKS if self.redis_asked or name != "redis"]
        return {name: [breach for breach in self.breaches if breach.check == name] for name in made}

    def as_json(self) -> dict[str, Any]:
        """As an object of JSON types."""
        checks = [
            {"name": name, "ok": not breaches, "breaches": [asdict(breach) for breach in breaches]}
            for name, breaches in self.checks().items()
        ]
        return {"ok": self.ok, "counts": self.counts, "checks": checks, "redis_asked": self.redis_asked}


def samples(ids: Iterable[int]) -> tuple[int, ...]:
    """As many of the lowest ids as a breach names."""
    return tuple(nsmallest(SAMPLES, ids))


def queue_names(queues: Collection[str]) -> str:
    """Some of the names, and how many more there are."""
    more = f" and {len(queues) - _QUEUES} more" if len(queues) > _QUEUES else ""
    return ", ".join(sorted(queues)[:_QUEUES]) + more
