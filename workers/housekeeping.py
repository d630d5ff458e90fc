"""The thread that looks after a worker process: RQ's books, the time of grace, memory, and whether its parent lives."""

from __future__ import annotations

import logging
import os
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic

import redis

from drain.errors import UnavailableError
from drain.wire import Intake
from workers.finisher import Finisher
from workers.hand import Hand, Held
from workers.options import WorkOptions
from workers.rq_worker import TTL_SECONDS, RQWorker

log = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0
# While the process is to stop.
_OFTEN_SECONDS = 0.05
_HEARTBEAT_SECONDS = 15.0
# A job that has been running for so long is shown by name.
_WORTH_TELLING_SECONDS = 1.0
_AGAIN_SECONDS = 5.0


class Housekeeping:
    """Looks after things about once a second.

    Args:
        hand: What the process has in hand.
        intake: What to tell RQ's tools by.
        rq_worker: What they see.
        finisher: Who knows how many have finished.
        options: What the process may take.
        is_suspended: Whether RQ's workers are suspended.
        parent: Id of the process without which this one ends.
    """

    def __init__(
        self,
        hand: Hand,
        intake: Intake,
        rq_worker: RQWorker,
        finisher: Finisher,
        options: WorkOptions,
        is_suspended: Callable[[], bool],
        parent: int,
    ) -> None:
        self.ended = False
        self._hand = hand
        self._intake = intake
        self._rq = rq_worker
        self._finisher = finisher
        self._options = options
        self._is_suspended = is_suspended
        self._parent = parent
        self._registered = False
        self._beat_at = 0.0
        self._told: dict[str, str] = {}
        self._counted = (0, 0)
        self._ran = 0
        self._interrupt_at = 0.0

    def run(self) -> None:
        """Go on until `ended` is set."""
        while not self.ended:
            self._look_at_the_process()
            # No job depends on what RQ's tools show.
            with suppress(redis.RedisError, UnavailableError):
                self._tell()
            if self._hand.stopping:
                self._hand.chores.wait(_OFTEN_SECONDS)
                self._stop_what_runs()
            else:
                self._hand.chores.wait(_EVERY_SECONDS)

    def _look_at_the_process(self) -> None:
        hand, limits = self._hand, self._options
        if os.getppid() != self._parent and not hand.stopping:
            log.warning("the supervisor is gone, ending", extra={"event": "orphaned"})
            hand.stop()
        if limits.max_memory_mb is not None and not hand.stopping:
            megabytes = memory_mb()
            if megabytes > limits.max_memory_mb:
                log.info(
                    "%d MB resident, more than --max-memory: a new process takes over",
                    *(megabytes,),
                    extra={"event": "recycled"},
                )
                hand.recycle()

    def _stop_what_runs(self) -> None:
        with suppress(UnavailableError):
            self._intake.end_wait()
        now = monotonic()
        if now >= self._hand.stop_at and now >= self._interrupt_at:
            self._interrupt_at = now + _AGAIN_SECONDS
            self._hand.interrupt_for_stop()

    def _tell(self) -> None:
        if not self._registered:
            self._rq.register()
            self._registered = True
        now = monotonic()
        if now >= self._beat_at:
            self._rq.beat()
            self._beat_at = now + _HEARTBEAT_SECONDS
            self._told = {}
            self._maintain()
        hand, finisher = self._hand, self._finisher
        ran, finished, failed = hand.ran, finisher.finished, finisher.failed
        busy = ran != self._ran or not hand.is_idle
        state = "suspended" if self._is_suspended() else "busy" if busy else "idle"
        fields: dict[str, str] = {"state": state, "current_job": self._slow_job(now)}
        news = {name: text for name, text in fields.items() if self._told.get(name) != text}
        more_finished, more_failed = finished - self._counted[0], failed - self._counted[1]
        counts = {
            name: float(more)
            for name, more in (("successful_job_count", more_finished), ("failed_job_count", more_failed))
            if more
        }
        if not news and not counts:
            return
        self._intake.tell(self._rq.key, news, counts, TTL_SECONDS + 60)
        if news.get("current_job"):
            self._intake.tell_of_job(news["current_job"], self._rq.name)
        self._told, self._counted, self._ran = fields, (finished, failed), ran

    def _maintain(self) -> None:
        """Clean up RQ's registries every few minutes, as each worker of RQ's does."""
        if self._rq.should_run_maintenance_tasks:
            try:
                self._rq.run_maintenance_tasks()  # type: ignore[no-untyped-call]
            # It stumbles over whatever anybody may have put there.
            except Exception as error:  # noqa: BLE001
                log.warning("RQ could not clean up its registries: %s", error)

    def _slow_job(self, now: float) -> str:
        running = self._hand.running
        is_slow = running is not None and now - self._hand.began_at > _WORTH_TELLING_SECONDS
        return running.rq_id if is_slow and isinstance(running, Held) else ""


def memory_mb() -> int:
    """Megabytes of this process that are resident; where the system does not tell, the most that ever were."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() // 2**20
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 2**20
