"""Ends of worker processes: replacements, pauses, and kills."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from drain.workers.exits import DONE, FAILED, RECYCLED, exit_code
from drain.workers.supervisor.slot import WorkerSlot

log = logging.getLogger(__name__)


class Reaper:
    """Reaps ended worker processes, and kills overdue ones.

    Args:
        burst: Replace no failed process.

    Attributes:
        has_seen_failure: A process could not go on.
    """

    def __init__(self, slots: Sequence[WorkerSlot], *, burst: bool) -> None:
        self.has_seen_failure = False
        self._slots = slots
        self._burst = burst

    def reap(self, *, stopping: bool) -> None:
        """Reap ended processes; while `stopping`, replace none."""
        for slot in self._slots:
            pid, status = slot.pid, slot.reap()
            # A recovering process leaves nothing behind.
            if status is not None and not slot.is_recovering:
                self._handle_end(slot, pid, exit_code(status), stopping=stopping)

    def _handle_end(self, slot: WorkerSlot, pid: int, code: int, *, stopping: bool) -> None:
        if code == DONE and (slot.journal.resigned or stopping):
            slot.retire()
            log.info("worker process %d (pid %d) has ended", slot.number, pid, extra={"event": "ended"})
        elif code in (DONE, RECYCLED) and not slot.journal.entries() and not stopping:
            log.info("worker process %d (pid %d) is replaced", slot.number, pid, extra={"event": "replaced"})
        else:
            log.error(
                "worker process %d (pid %d) %s", slot.number, pid, slot.death, extra={"event": "worker_died"}
            )
            self._handle_death(slot, code)

    def _handle_death(self, slot: WorkerSlot, code: int) -> None:
        # Unless the process resigned, a job exited with this code.
        if code == FAILED and slot.journal.resigned:
            self.has_seen_failure = True
            if self._burst:
                slot.retire()
        slot.pause_after_death()

    def kill_overdue(self, plain_job_seconds: float) -> None:
        """Kill overdue processes.

        Args:
            plain_job_seconds: Time left for a process with a plain RQ job; 0 for no exception.
        """
        for slot in self._slots:
            if slot.journal.runs_plain_job and plain_job_seconds:
                slot.spare(plain_job_seconds)
            pid = slot.pid
            if slot.kill_if_overdue():
                log.error(
                    "worker process %d (pid %d) is killed: it, or a job in it, did not end in time",
                    slot.number,
                    pid,
                    extra={"event": "killed"},
                )
