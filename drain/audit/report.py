"""What an audit found: how many jobs are where, and each breach of what must always hold."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from heapq import nsmallest
from typing import Any, NamedTuple


class Check(NamedTuple):
    """What a check says in one line where all is well, and where there is a breach."""

    ok: str
    breach: str


CHECKS: Mapping[str, Check] = {
    "once": Check("each id is in exactly one table, once", "ids are in several tables, or twice in one"),
    "claimed": Check("nothing has finished without a claim", "jobs have finished without a claim"),
    "tokens": Check("no fencing token has gone backwards", "fencing tokens have gone backwards"),
    "conditions": Check(
        "each job in flight is either delivered, claimed or waiting",
        "jobs in flight are in two conditions, or in half of one",
    ),
    "deliveries": Check(
        "delivery numbers are unique, and all were handed out",
        "delivery numbers are shared, or were never handed out",
    ),
    "overdue": Check("nothing is overdue", "jobs are overdue"),
    "redis": Check("the Redis lists and inflight_jobs agree", "the Redis lists and inflight_jobs disagree"),
    "attended": Check("each queue with jobs has a worker", "queues with jobs have no worker"),
}
# Checks for which Redis has to be asked.
OF_REDIS = ("redis", "attended")

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
        redis_asked: Whether Redis was to be asked; without it nothing is known of the checks `OF_REDIS`.
        unchecked: Checks that could not be made, since a store did not answer, and why.
    """

    counts: dict[str, int]
    breaches: tuple[Breach, ...]
    redis_asked: bool
    unchecked: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether all that was to be checked could be, and there is no breach."""
        return not self.breaches and not self.unchecked

    @property
    def exit_code(self) -> int:
        """0 if all is well, 1 for breaches, 3 if there are none so far and a check could not be made."""
        return 1 if self.breaches else 3 if self.unchecked else 0

    def checks(self) -> dict[str, list[Breach]]:
        """The breaches of each check that was to be made."""
        made = [name for name in CHECKS if self.redis_asked or name not in OF_REDIS]
        return {name: [breach for breach in self.breaches if breach.check == name] for name in made}

    def as_json(self) -> dict[str, Any]:
        """As an object of JSON types; `ok` of a check that could not be made is null."""
        checks = [
            {
                "name": name,
                "ok": None if name in self.unchecked else not breaches,
                "breaches": [asdict(breach) for breach in breaches],
                "unchecked": self.unchecked.get(name),
            }
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
