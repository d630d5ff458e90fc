"""Result of an audit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from heapq import nsmallest
from typing import Any, NamedTuple


class Check(NamedTuple):
    """Lines of a check, without and with a breach."""

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
    "limits": Check(
        "no queue and no key runs more than its limit", "queues or keys run more jobs than their limits"
    ),
    "rules": Check(
        "the rules of each queue can be followed", "queues are held: their rules cannot be followed"
    ),
    "paused": Check("nothing that is paused was claimed", "jobs were claimed though a pause held them"),
    "unique": Check("of each unique key one job waits", "several jobs of one unique key wait"),
    "ticks": Check(
        "every tick of a schedule has had one job", "ticks of schedules are missing, or have had several jobs"
    ),
    "redis": Check("the Redis lists and inflight_jobs agree", "the Redis lists and inflight_jobs disagree"),
    "attended": Check("each queue with jobs has a worker", "queues with jobs have no worker"),
}
# These need Redis.
OF_REDIS = ("redis", "attended")

# Per breach.
SAMPLES = 10
_MOST_QUEUES = 3


@dataclass(frozen=True, slots=True)
class Breach:
    """Violation of an invariant.

    Attributes:
        check: One of `CHECKS`.
        explanation: Text after the count.
        count: Jobs, queues or rows.
        ids: Lowest job ids, up to `SAMPLES`.
    """

    check: str
    explanation: str
    count: int = 1
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Result of an audit.

    Attributes:
        counts: Rows by state at one instant.
        breaches: In the order of `CHECKS`.
        redis_asked: False skips `OF_REDIS`.
        unchecked: Reasons by check, if a store did not answer.
    """

    counts: dict[str, int]
    breaches: tuple[Breach, ...]
    redis_asked: bool
    unchecked: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if every check ran without a breach."""
        return not self.breaches and not self.unchecked

    @property
    def exit_code(self) -> int:
        """Exit code: 0 for ok, 1 for breaches, 3 if checks could not run."""
        return 1 if self.breaches else 3 if self.unchecked else 0

    def checks(self) -> dict[str, list[Breach]]:
        """Group the breaches by requested check."""
        made = [name for name in CHECKS if self.redis_asked or name not in OF_REDIS]
        return {name: [breach for breach in self.breaches if breach.check == name] for name in made}

    def as_json(self) -> dict[str, Any]:
        """Convert to JSON types; `ok` is null for a check that did not run."""
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
    """Return the `SAMPLES` lowest ids."""
    return tuple(nsmallest(SAMPLES, ids))


def queue_names(queues: Collection[str]) -> str:
    """Name some queues or schedules, and count the others."""
    more = f" and {len(queues) - _MOST_QUEUES} more" if len(queues) > _MOST_QUEUES else ""
    return ", ".join(sorted(queues)[:_MOST_QUEUES]) + more
