"""The thread that lets RQ's tools see the tracked jobs of a worker process."""

from __future__ import annotations

import logging
from contextlib import suppress
from time import monotonic

import redis

from drain.errors import UnavailableError
from drain.wire import Intake
from workers.finisher import Finisher
from workers.hand import Hand, Held
from workers.options import WorkOptions
from workers.rq_worker import TTL_SECONDS, RQWorker
from workers.stores import REDIS, answering
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
        name: Of the worker that RQ's tools see.

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
        name: str,
    ) -> None:
        self._name = name
        self.ended = False
        self._hand = hand
        self._intake = intake
        self._finisher = finisher
        self._options = options
        self._redis_url = redis_url
        self._taker = taker
        self._worker: RQWorker | None = None
        self._beat_at = 0.0
        self._told: dict[str, str] = {}
        self._counted = (0, 0)
        self._ran = 0

    def run(self) -> None:
        """Go on until `ended` is set, and then leave RQ's lists."""
        registered, stores = False, self._finisher.database.stores
        while not self.ended:
            if stores.is_away(REDIS):
                # A round in which nothing has changed asks nothing, and so would not find out.
                self._beat_at = 0.0
            # No job depends on what RQ's tools show.
            with suppress(redis.RedisError, UnavailableError), answering(stores, REDIS):
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

    def _made(self) -> RQWorker:
        """RQ asks Redis about it as it is made, so it may take several attempts."""
        if self._worker is None:
            self._worker = RQWorker(
                self._redis_url,
                self._options.queues,
                self._hand,
                self._name,
                self._options.plain.exception_handlers,
            )
        return self._worker

    def _tell(self, worker: RQWorker) -> None:
        now = monotonic()
        if now >= self._beat_at:
            worker.beat()
            self._beat_at = now + _HEARTBEAT_SECONDS
            self._told = {}
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
