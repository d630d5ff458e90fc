"""The thread that lets RQ's tools see a worker process, and the worker of RQ's that it is to them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from contextlib import suppress
from time import monotonic

import redis

from drain.errors import UnavailableError
from drain.wire import Intake, Taken
from workers.finisher import Finisher
from workers.hand import Hand, Held
from workers.options import WorkOptions
from workers.rq_worker import TTL_SECONDS, RQWorker
from workers.taker import Taker

log = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0
_OFTEN_SECONDS = 0.05
_HEARTBEAT_SECONDS = 15.0
# A job that has been running for so long is shown by name.
_WORTH_TELLING_SECONDS = 1.0


class RQSide:
    """Tells RQ's tools once a second what has changed, in one round trip, and nothing if nothing has.

    Args:
        hand: What the process has in hand.
        intake: What to tell it by.
        finisher: Who knows how many have finished.
        options: Names of the queues.
        redis_url: Where.
        taker: Who knows whether RQ is suspended, and is woken when the process is to stop.
        only_tracked: Names of the queues whose plain RQ jobs are not even looked at.

    Attributes:
        ended: Nothing is left to tell.
    """

    def __init__(
        self,
        hand: Hand,
        intake: Intake,
        finisher: Finisher,
        options: WorkOptions,
        redis_url: str,
        taker: Taker,
        only_tracked: Collection[str] = (),
    ) -> None:
        self._only_tracked = only_tracked
        self.ended = False
        self._hand = hand
        self._intake = intake
        self._finisher = finisher
        self._options = options
        self._redis_url = redis_url
        self._taker = taker
        self._worker: RQWorker | None = None
        self._making = threading.Lock()
        self._beat_at = 0.0
        self._told: dict[str, str] = {}
        self._counted = (0, 0)
        self._ran = 0

    def run(self) -> None:
        """Go on until `ended` is set, and then leave RQ's lists."""
        registered = False
        while not self.ended:
            # No job depends on what RQ's tools show.
            with suppress(redis.RedisError, UnavailableError):
                worker = self._made()
                if not registered:
                    worker.register()
                    registered = True
                self._tell(worker)
            if self._hand.stopping:
                with suppress(UnavailableError):
                    self._intake.end_wait()
            self._hand.told.wait(_OFTEN_SECONDS if self._hand.stopping else _EVERY_SECONDS)
        with suppress(redis.RedisError):
            while self._finisher.books.waits:
                self._finisher.books.write(self._made())
        if self._worker is not None:
            self._worker.leave()

    def execute(self, taken: Taken) -> None:
        """Run a plain RQ job as RQ would; forget an id of which RQ knows nothing.

        While Redis is away, it stays where RQ's own clean-up finds it.
        """
        try:
            if not self._made().execute(taken):
                log.warning("RQ knows no job %.100r, queue %s forgets it", taken.rq_id, taken.queue)
                self._intake.discard(taken)
        except (redis.RedisError, UnavailableError) as error:
            log.warning("RQ's job %s is left to RQ: %s", taken.rq_id, error, extra={"event": "down"})

    def _made(self) -> RQWorker:
        """RQ asks Redis about it as it is made, so it may take several attempts."""
        with self._making:
            if self._worker is None:
                self._worker = RQWorker(self._redis_url, self._options.queues, self._hand, self._only_tracked)
            return self._worker

    def _tell(self, worker: RQWorker) -> None:
        now = monotonic()
        if now >= self._beat_at:
            worker.beat()
            self._beat_at = now + _HEARTBEAT_SECONDS
            self._told = {}
            _maintain(worker)
        hand, finisher = self._hand, self._finisher
        finisher.books.write(worker)
        ran, finished, failed = hand.ran, finisher.finished, finisher.failed
        busy = ran != self._ran or not hand.is_idle
        state = "suspended" if self._taker.is_suspended else "busy" if busy else "idle"
        fields = {"state": state, "current_job": self._slow_job(now)}
        news = {name: text for name, text in fields.items() if self._told.get(name) != text}
        more = {
            "successful_job_count": finished - self._counted[0],
            "failed_job_count": failed - self._counted[1],
        }
        counts = {name: float(number) for name, number in more.items() if number}
        if not news and not counts:
            return
        self._intake.tell(worker.key, news, counts, TTL_SECONDS + 60)
        if news.get("current_job"):
            self._intake.tell_of_job(news["current_job"], worker.name)
        self._told, self._counted, self._ran = fields, (finished, failed), ran

    def _slow_job(self, now: float) -> str:
        running = self._hand.running
        is_slow = running is not None and now - self._hand.began_at > _WORTH_TELLING_SECONDS
        return running.rq_id if is_slow and isinstance(running, Held) else ""


def _maintain(worker: RQWorker) -> None:
    """Clean up RQ's registries every few minutes, as each worker of RQ's does."""
    if worker.should_run_maintenance_tasks:
        try:
            worker.run_maintenance_tasks()  # type: ignore[no-untyped-call]
        # It stumbles over whatever anybody may have put there.
        except Exception as error:  # noqa: BLE001
            log.warning("RQ could not clean up its registries: %s", error)
