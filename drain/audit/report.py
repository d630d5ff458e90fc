"""Result of an audit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from heapq import nsmallest
from typing import Any, NamedTuple


class Check(NamedTuple):
    """Check's lines, without and with a breach."""

    ok: str
    breach: str


CHECKS: Mapping[str, Check] = {
    "once": Check("each id is in exactly one table", "ids are in several tables, or twice in one"),
    "claimed": Check("no job finished without a claim", "jobs finished without a claim"),
    "tokens": Check("no fencing token went backwards", "fencing tokens went backwards"),
    "conditions": Check(
        "each job in flight is delivered, claimed or retrying",
        "jobs in flight are in two states or none",
    ),
    "deliveries": Check(
        "delivery numbers are unique and assigned",
        "delivery numbers are shared or were never assigned",
    ),
    "overdue": Check("nothing is overdue", "jobs are overdue"),
    "blocked": Check(
        "each blocked job waits for one that has not ended",
        "blocked jobs wait for nothing, or for jobs that have ended",
    ),
    "limits": Check("no limit is exceeded", "limits are exceeded"),
    "rules": Check("all queue rules can be applied", "queues are held: their rules cannot be applied"),
    "paused": Check("no paused job was claimed", "paused jobs were claimed"),
    "unique": Check("at most one job waits per unique key", "several jobs wait per unique key"),
    "ticks": Check("each tick has one job", "ticks have no job or several"),
    "redis": Check("Redis matches inflight_jobs", "Redis does not match inflight_jobs"),
    "attended": Check("each queue with jobs has workers", "queues with jobs have no workers"),
}
OF_REDIS = ("redis", "attended")

SAMPLES = 10
_MOST_QUEUES = 3


@dataclass(frozen=True, slots=True)
class Breach:
    """Violation of an invariant.

    Attributes:
        check: One of `CHECKS`.
        explanation: Text after the count.
        count: Jobs, queues or rows.
        ids: Lowest job ids.
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
        unchecked: Reasons by check.
    """

    counts: dict[str, int]
    breaches: tuple[Breach, ...]
    redis_asked: bool
    unchecked: Mapping[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if all checks ran without a breach."""
        return not self.breaches and not self.unchecked

    @property
    def exit_code(self) -> int:
        """Exit code: 0 for ok, 1 for breaches, 3 if checks could not run."""
        return 1 if self.breaches else 3 if self.unchecked else 0

    def checks(self) -> dict[str, list[Breach]]:
        """Group breaches by requested check."""
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
    """Return the lowest ids."""
    return tuple(nsmallest(SAMPLES, ids))


def queue_names(queues: Collection[str]) -> str:
    """Name some queues, and count the others."""
    more = f" and {len(queues) - _MOST_QUEUES} more" if len(queues) > _MOST_QUEUES else ""
    return ", ".join(sorted(queues)[:_MOST_QUEUES]) + more
