"""The slot of one worker process: its successive processes, and the journal that they share with the supervisor."""

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

# Bounds of the pause after a process has died; each pause is twice as long as the one before.
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 10.0
# Lifetime after which the death of a process does not count as a failure to start.
_WELL_SECONDS = 30.0


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """One of the places for worker processes; the supervisor calls the methods, and others read the attributes.

    Attributes:
        number: Number of the slot, from 1, for people.
        name: Name of RQ's worker, for RQ's tools.
        journal: Journal of the present process, or of the last one.
        measures: Measures of all its processes, for the port; None if there is none.
        pid: Id of the present process; 0 if there is none.
        death: Description of the last process' end.
        is_retired: No further process starts here.
        is_recovering: The present process, or the last one, only recovers the jobs of the one before.
        was_stopped: The last process was killed because it did not stop in time.
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
        """Seconds until a new process may start; infinity if none starts here."""
        is_free = not self.pid and not self.is_retired
        return self._start_at - monotonic() if is_free else float("inf")

    @property
    def needs_recovery(self) -> bool:
        """True if the last process has left jobs that no process has recovered."""
        return not self.pid and not self.is_recovering and bool(self.journal.entries())

    def meter(self) -> Meter | None:
        """Return the meter of the present process; to be called in that process."""
        return None if self.measures is None else Meter(self.measures)

    def prepare(self) -> None:
        """Forget when the last process was to be killed; to be called before a new one is forked."""
        self._kill_at = float("inf")

    def prepare_recovery(self, seconds: float) -> None:
        """Let the next process be one that only recovers, and that is killed after some seconds."""
        self.is_recovering = True
        self.kill_after(seconds)

    def fill(self, pid: int) -> None:
        """Note the id of a new process."""
        self.pid, self._began_at = pid, monotonic()

    def postpone(self) -> None:
        """Let no process start for the longest pause."""
        self._start_at = monotonic() + _LONGEST_PAUSE_SECONDS

    def retire(self) -> None:
        """Let no further process start here."""
        self.is_retired = True

    def kill_after(self, seconds: float) -> None:
        """Let the present process be killed if it lives after some seconds."""
        self._kill_at = monotonic() + seconds

    def spare(self, seconds: float) -> None:
        """Let the present process live for some seconds at least."""
        self._kill_at = max(self._kill_at, monotonic() + seconds)

    def signal(self, number: int) -> None:
        """Send a signal to the present process."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill_if_overdue(self) -> bool:
        """Kill the present process if its grace, or the time of a job in it, is over; return whether it was killed."""
        if not self.pid:
            return False
        # A job that is long past its own timeout counts, whether or not the process has to stop as well.
        has_overdue_job = self.journal.is_overdue()
        if not has_overdue_job and monotonic() <= self._kill_at:
            return False
        self.was_stopped = not has_overdue_job
        self.signal(signal.SIGKILL)
        return True

    def reap(self) -> int | None:
        """Return the wait status of the present process if it has ended, which empties the slot."""
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
        """Let no process start for a pause, which grows as long as processes die early."""
        if monotonic() - self._began_at > _WELL_SECONDS:
            self._pause_seconds = 0.0
        else:
            self._pause_seconds = min(
                _LONGEST_PAUSE_SECONDS, max(_FIRST_PAUSE_SECONDS, 2 * self._pause_seconds)
            )
        self._start_at = monotonic() + self._pause_seconds
