"""Damped health: failures are reported and end after some time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic

from drain.health import HealthChange

log = logging.getLogger(__name__)

Changed = Callable[[HealthChange], None]


@dataclass(frozen=True, slots=True)
class HealthOptions:
    """Health options of a process.

    Attributes:
        grace_seconds: Time before a store's failure is reported.
        recovery_seconds: Time without failure that ends one.
        queue_grace_seconds: Time before hooks are called for a queue.
        on_unhealthy, on_recovery: Shell commands; empty for none.
    """

    grace_seconds: float = 10.0
    recovery_seconds: float = 5.0
    queue_grace_seconds: float = 900.0
    on_unhealthy: str = ""
    on_recovery: str = ""


class Steady:
    """State of one thing that may fail; thread-safe.

    A failure begins at the first problem, is reported after `grace` seconds, and ends after `recovery` seconds without
    one: flapping is one failure.

    Args:
        what, process: As in `HealthChange`.
        changed: Called for each report, and its end.
    """

    def __init__(
        self,
        what: str,
        process: str,
        *,
        grace: float,
        recovery: float,
        changed: Changed,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._what, self._process = what, process
        self._grace, self._recovery = grace, recovery
        self._changed, self._clock = changed, clock
        self._lock = threading.Lock()
        self._failing_since: tuple[float, datetime] | None = None
        self._well_since: tuple[float, datetime] | None = None
        self._reported: HealthChange | None = None
        self._latest = ""

    @property
    def problem(self) -> str | None:
        """Latest problem of a reported failure."""
        return self._latest if self._reported else None

    def look(self, problem: str | None, what: str = "") -> None:
        """Record the current one-line problem, if any; `what` overrides the name. Call regularly."""
        with self._lock:
            at = (self._clock(), datetime.now(UTC))
            if problem is None:
                self._look_at_success(at)
            else:
                self._look_at_problem(at, problem, what or self._what)

    def _look_at_problem(self, at: tuple[float, datetime], problem: str, what: str) -> None:
        self._failing_since, self._well_since = self._failing_since or at, None
        self._latest = problem
        began, since = self._failing_since
        if self._reported is None and at[0] - began >= self._grace:
            self._reported = HealthChange(what, problem, since, self._process)
            log.error("unhealthy: %s", problem, extra={"event": "unhealthy", "what": what})
            self._changed(self._reported)

    def _look_at_success(self, at: tuple[float, datetime]) -> None:
        if self._failing_since is None:
            return
        self._well_since = self._well_since or at
        began, since = self._well_since
        if at[0] - began < self._recovery:
            return
        reported = self._reported
        self._failing_since = self._well_since = self._reported = None
        if reported is not None:
            log.info("healthy again: %s", reported.what, extra={"event": "recovered", "what": reported.what})
            self._changed(replace(reported, recovered_at=since))
