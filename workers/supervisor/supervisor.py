"""The process that `drain work` starts.

It forks after importing job modules, to share their memory.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

from drain.config import Settings
from drain.errors import UnavailableError
from drain.workers.exits import DONE, STOP_NOW, STOP_SIGNALS
from drain.workers.handover.recovery import recover
from drain.workers.measures.memory import Measures
from drain.workers.options import WorkOptions
from drain.workers.process.process import Process
from drain.workers.supervisor.children import handling_signals, run_child
from drain.workers.supervisor.health import Health
from drain.workers.supervisor.reaper import Reaper
from drain.workers.supervisor.slot import WorkerSlot

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
# From the end of the grace period to SIGKILL: four times the longest request to a stalled store.
_KILL_SECONDS = 20.0
# Then a recovering process is killed.
_RECOVERY_SECONDS = 10


class Supervisor:
    """Keeps worker processes running until a signal, or the end of a burst."""

    def __init__(self, settings: Settings, options: WorkOptions) -> None:
        self._settings = settings
        self._options = options
        self._slots = slots = _slots(options)
        self.health = Health(
            [slot.journal for slot in slots], options.health, [slot.measures for slot in slots]
        )
        # Received, and logged.
        self._stops = self._logged_stops = 0
        self._reaper = Reaper(self._slots, burst=options.burst)
        self._pid = os.getpid()

    def run(self) -> None:
        """Return when no process is left.

        Raises:
            UnavailableError: A process gave up in a burst; its log says why.
        """
        # Imported objects stay in shared memory while the garbage collector leaves them alone.
        gc.collect()
        gc.freeze()
        with handling_signals(self._handle_signal) as wakeup:
            while not self._is_over():
                self._recover_abandoned()
                self._start_missing()
                self.health.report_turn(stopping=bool(self._stops))
                select.select([wakeup], [], [], self._pause())
                with suppress(BlockingIOError):
                    os.read(wakeup, 4096)
                self._log_stops()
                self._reaper.reap(stopping=bool(self._stops))
                self._kill_overdue()
        if self._reaper.has_seen_failure and self._options.burst:
            raise UnavailableError("a worker process gave up; see the line above")

    def _is_over(self) -> bool:
        is_last = bool(self._stops) or all(slot.is_retired for slot in self._slots)
        return is_last and not any(slot.pid or slot.needs_recovery for slot in self._slots)

    def _handle_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._stops += 1
            for slot in self._slots:
                self._stop(slot)

    def _stop(self, slot: WorkerSlot) -> None:
        if slot.pid and not slot.is_recovering:
            is_first = self._stops == 1
            slot.kill_after((self._options.grace_seconds if is_first else 0.0) + _KILL_SECONDS)
            slot.signal(signal.SIGTERM if is_first else STOP_NOW)

    def _log_stops(self) -> None:
        # Not in the handler, which may interrupt another log line.
        if self._logged_stops == self._stops:
            return
        self._logged_stops = self._stops
        event = {"event": "stopping"}
        if self._stops == 1:
            grace = self._options.grace_seconds
            log.info(
                "stopping: running jobs have %g s to end; a second signal ends them now", grace, extra=event
            )
        else:
            log.info("stopping now, within %g s", _KILL_SECONDS, extra=event)

    def _pause(self) -> float:
        if self._stops:
            return _LOOK_SECONDS
        return max(0.0, min([_LOOK_SECONDS, *(slot.seconds_until_start for slot in self._slots)]))

    def _start_missing(self) -> None:
        for slot in self._slots:
            if self._stops or slot.seconds_until_start > 0:
                continue
            slot.prepare()
            if self._fork(slot, lambda slot=slot: self._work(slot)):  # type: ignore[misc]
                queues, event = ", ".join(self._options.queues), {"event": "started"}
                log.info("worker process %d (pid %d) works on %s", slot.number, slot.pid, queues, extra=event)

    def _work(self, slot: WorkerSlot) -> int:
        self.health.release_port()
        settings, options = self._settings, self._options
        return Process(settings, options, slot.journal, slot.meter(), slot.death, self._pid, slot.name).run()

    def _recover_abandoned(self) -> None:
        """Recover a dead process' jobs in a child where no other starts."""
        for slot in self._slots:
            if (self._stops or slot.is_retired) and slot.needs_recovery:
                slot.prepare_recovery(_RECOVERY_SECONDS)
                self._fork(slot, lambda slot=slot: self._recover(slot), always=True)  # type: ignore[misc]

    def _recover(self, slot: WorkerSlot) -> int:
        self.health.release_port()
        recover(slot.journal, self._settings, slot.death, stopped=slot.was_stopped)
        return DONE

    def _fork(self, slot: WorkerSlot, act: Callable[[], int], *, always: bool = False) -> bool:
        """Return False if a stop signal came first (unless `always`), or no process is free."""
        # A full disk must not keep jobs from running.
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        stops = self._stops
        # Blocked until the child is recorded, so that the handler finds it.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            if self._stops and not always:
                return False
            try:
                pid = os.fork()
            except OSError as error:
                log.error(
                    "worker process %d cannot be started: %s",
                    slot.number,
                    error,
                    extra={"event": "no_process"},
                )
                slot.postpone()
                return False
            if pid == 0:
                run_child(act, mask)
            slot.fill(pid)
            # A job module's thread may have received a signal and found the slot empty; another signal is harmless.
            if self._stops > stops:
                self._stop(slot)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return True

    def _kill_overdue(self) -> None:
        # After the first stop signal a plain RQ job is awaited; then its process has the usual time.
        self._reaper.kill_overdue(_LOOK_SECONDS + _KILL_SECONDS if self._stops == 1 else 0.0)


def _slots(options: WorkOptions) -> list[WorkerSlot]:
    slots = [WorkerSlot(number, _worker_name(options, number)) for number in range(1, options.processes + 1)]
    for slot in slots:
        # Without a port no one could read them.
        slot.measures = Measures() if options.metrics_port else None
    return slots


def _worker_name(options: WorkOptions, number: int) -> str:
    name = options.plain.name or uuid4().hex
    return name if options.processes == 1 or options.plain.name is None else f"{name}.{number}"
