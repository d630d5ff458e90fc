"""Findings and thresholds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from drain.formatting import count, duration
from drain.read.system import System

_MOST_NAMES = 3


class Level(IntEnum):
    """Nagios levels, numbered as exit codes."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


# Critical outranks unknown.
_WORST_LAST = (Level.OK, Level.UNKNOWN, Level.WARNING, Level.CRITICAL)


def worst(levels: Sequence[Level]) -> Level:
    """Return the worst level, or OK."""
    return max(levels, key=_WORST_LAST.index, default=Level.OK)


@dataclass(frozen=True, slots=True)
class Threshold:
    """Limits above which a number is a warning or critical; None for never."""

    warning: float | None = None
    critical: float | None = None

    def level(self, value: float) -> Level:
        """Judge a number."""
        if self.critical is not None and value > self.critical:
            return Level.CRITICAL
        if self.warning is not None and value > self.warning:
            return Level.WARNING
        return Level.OK


# The leader ends a wait within a second.
_OVERDUE = Threshold(None, 60)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Thresholds of a check.

    Attributes:
        lag: Seconds a due job waits for the leader.
        wait: Seconds a due job waits for a worker, unless paused.
        unattended: Level for queues with waiting jobs and no worker.
        failing: Level for queues whose latest attempts all failed.
        stalled: Level for queues with waiting jobs and none finished for a minute.
        failed_flows: Flows whose members are all dead, or wait for dead ones.
    """

    lag: Threshold = Threshold(30, 120)
    wait: Threshold = Threshold(300, 3600)
    dead: Threshold = Threshold(0, None)
    unattended: Level = Level.CRITICAL
    failing: Level = Level.WARNING
    stalled: Level = Level.WARNING
    failed_flows: Threshold = Threshold(0, None)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong.

    Attributes:
        name: "leader", "lag", "wait", "dead", "unattended", "stalled", "failing", "held", "failed_flows",
            "overdue_wait", "postgres", "redis", "schema" or "rights".
    """

    name: str
    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """Number with its Nagios unit: "s", or "" for a count."""

    name: str
    value: float
    unit: str = ""
    threshold: Threshold = Threshold()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a check."""

    findings: Sequence[Finding]
    figures: Sequence[Figure] = ()

    @property
    def level(self) -> Level:
        """Worst level."""
        return worst([finding.level for finding in self.findings])


def judge(
    system: System, thresholds: Thresholds, failed_flows: int = 0, overdue_seconds: float = 0.0
) -> Verdict:
    """Judge a system, its failed flows, and the wait that is overdue for longest."""
    unsorted = [*_findings(system, thresholds), *_flow_findings(thresholds, failed_flows, overdue_seconds)]
    findings = sorted(unsorted, key=lambda found: -_WORST_LAST.index(found.level))
    figures = [
        *_figures(system, thresholds),
        Figure("failed_flows", failed_flows, "", thresholds.failed_flows),
        Figure("overdue_wait", overdue_seconds, "s", _OVERDUE),
    ]
    return Verdict(findings, figures)


def _flow_findings(thresholds: Thresholds, failed_flows: int, overdue_seconds: float) -> Iterator[Finding]:
    if level := thresholds.failed_flows.level(failed_flows):
        yield Finding("failed_flows", level, count(failed_flows, "failed flow"))
    if level := _OVERDUE.level(overdue_seconds):
        yield Finding(
            "overdue_wait", level, f"the leader has not ended a wait for {duration(overdue_seconds)}"
        )


def _findings(system: System, thresholds: Thresholds) -> Iterator[Finding]:
    if system.leader is None:
        yield Finding("leader", Level.CRITICAL, "there is no leader: start `drain run`")
    held = sorted(name for name, queue in system.queues.items() if queue.held)
    if held:
        yield Finding("held", Level.CRITICAL, f"rules cannot be applied, so the leader holds {_names(held)}")
    lag, (queue, wait) = system.lag_seconds, _longest_wait(system)
    if level := thresholds.lag.level(lag):
        yield Finding("lag", level, f"due jobs have waited {duration(lag)} for the leader")
    if level := thresholds.wait.level(wait):
        yield Finding("wait", level, f"jobs in queue {queue} have waited {duration(wait)} for a worker")
    if level := thresholds.dead.level(dead := system.total("dead")):
        about = "about " if system.is_estimate("dead") else ""
        yield Finding("dead", level, f"{about}{count(dead, 'dead job')}")
    unattended = sorted(name for name, queue in system.queues.items() if queue.is_unattended)
    if unattended and thresholds.unattended:
        yield Finding("unattended", thresholds.unattended, f"no worker for {_names(unattended)}")
    stalled = sorted(name for name, queue in system.queues.items() if queue.is_stalled)
    if stalled and thresholds.stalled:
        busy = "all workers are busy, and " if all(system.queues[name].free == 0 for name in stalled) else ""
        yield Finding("stalled", thresholds.stalled, f"{busy}no jobs are completing in {_names(stalled)}")
    failing = sorted(name for name, queue in system.queues.items() if queue.failing)
    if failing and thresholds.failing:
        yield Finding("failing", thresholds.failing, f"all attempts are failing in {_names(failing)}")


def _figures(system: System, thresholds: Thresholds) -> Iterator[Figure]:
    queues = system.queues.values()
    yield Figure("lag", system.lag_seconds, "s", thresholds.lag)
    yield Figure("wait", _longest_wait(system)[1], "s", thresholds.wait)
    yield Figure("dead", system.total("dead"), "", thresholds.dead)
    yield Figure("waiting", system.total("waits"))
    yield Figure("running", system.total("running"))
    yield Figure("retrying", system.total("retrying"))
    yield Figure("failing", sum(queue.failing for queue in queues))
    yield Figure("unattended", sum(queue.is_unattended for queue in queues))
    yield Figure("stalled", sum(queue.stalled_seconds > 0 for queue in queues))
    yield Figure("per_second", round(system.total("per_second"), 3))


def _longest_wait(system: System) -> tuple[str, float]:
    waits = {name: queue.wait_seconds for name, queue in system.queues.items() if not queue.paused}
    return max(waits.items(), key=lambda pair: pair[1], default=("", 0.0))


def _names(queues: Sequence[str]) -> str:
    more = f" and {len(queues) - _MOST_NAMES} more" if len(queues) > _MOST_NAMES else ""
    return f"{'queue' if len(queues) == 1 else 'queues'} {', '.join(queues[:_MOST_NAMES])}{more}"
