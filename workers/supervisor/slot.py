"""Slot of a worker process."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

from drain.workers.exits import describe_exit
from drain.workers.handover.journal import Journal
from drain.workers.measures.memory import Measures
from drain.workers.measures.worker_metrics import Meter

# After a death; doubles.
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 10.0
# A later death is not a failure to start.
_WELL_SECONDS = 30.0


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """Place for a worker process; only the supervisor calls its methods.

    Attributes:
        number: From 1, for users.
        pid: 0 without a process.
        is_retired: No more processes start here.
        is_recovering: The present or last process only recovers jobs.
        was_stopped: The last process was killed for not stopping in time.
    """

    number: int
    name: str
    journal: Journal = field(default_factory=Journal)
    measures: Measures | None = None
    pid: int = 0
    death: str = "died"
    is_retired: bool = False
    is_recovering: bool = False
    was_stopped: bool = False
    _began_at: float = 0.0
    _start_at: float = 0.0
    _kill_at: float = float("inf")
    _pause_seconds: float = 0.0

    @property
    def seconds_until_start(self) -> float:
        """Time until a process may start; infinite if none does."""
        is_free = not self.pid and not self.is_retired
        return self._start_at - monotonic() if is_free else float("inf")

    @property
    def needs_recovery(self) -> bool:
        """True if the last process left jobs."""
        return not self.pid and not self.is_recovering and bool(self.journal.entries())

    def meter(self) -> Meter | None:
        """Return the present process' meter; in that process."""
        return None if self.measures is None else Meter(self.measures)

    def prepare(self) -> None:
        """Forget the last deadline, before forking."""
        self._kill_at = float("inf")

    def prepare_recovery(self, seconds: float) -> None:
        """Let the next process only recover jobs, within some seconds."""
        self.is_recovering = True
        self.kill_after(seconds)

    def fill(self, pid: int) -> None:
        """Set a new process' id."""
        self.pid, self._began_at = pid, monotonic()

    def postpone(self) -> None:
        """Start no process for the longest pause."""
        self._start_at = monotonic() + _LONGEST_PAUSE_SECONDS

    def retire(self) -> None:
        """Start no more processes."""
        self.is_retired = True

    def kill_after(self, seconds: float) -> None:
        """Kill the process if it lives after some seconds."""
        self._kill_at = monotonic() + seconds

    def spare(self, seconds: float) -> None:
        """Keep the process for at least some seconds."""
        self._kill_at = max(self._kill_at, monotonic() + seconds)

    def signal(self, number: int) -> None:
        """Signal the process."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill_if_overdue(self) -> bool:
        """Kill the process after its grace or a job's time; return whether it was."""
        if not self.pid:
            return False
        # A job long past its timeout counts even without a stop.
        has_overdue_job = self.journal.is_overdue()
        if not has_overdue_job and monotonic() <= self._kill_at:
            return False
        self.was_stopped = not has_overdue_job
        self.signal(signal.SIGKILL)
        return True

    def reap(self) -> int | None:
        """Return the wait status of an ended process, emptying the slot."""
        if not self.pid:
            return None
        found, status = os.waitpid(self.pid, os.WNOHANG)
        if not found:
            return None
        self.pid = 0
        if not self.is_recovering:
            self.death = describe_exit(status)
            self.journal.close()
        return status

    def pause_after_death(self) -> None:
        """Pause starts, for longer while processes die early."""
        if monotonic() - self._began_at > _WELL_SECONDS:
            self._pause_seconds = 0.0
        else:
            self._pause_seconds = min(
                _LONGEST_PAUSE_SECONDS, max(_FIRST_PAUSE_SECONDS, 2 * self._pause_seconds)
            )
        self._start_at = monotonic() + self._pause_seconds
