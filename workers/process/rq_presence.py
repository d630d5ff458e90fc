"""The thread that lets RQ's tools see the tracked jobs of a worker process."""

from __future__ import annotations

import logging
from contextlib import suppress
from time import monotonic

import redis

from drain.errors import UnavailableError
from drain.wire import Consumer
from workers.options import WorkOptions
from workers.process.fetcher import Fetcher
from workers.process.finisher import Finisher
from workers.process.inbox import ClaimedJob, Inbox
from workers.process.rq_worker import TTL_SECONDS, RQWorker
from workers.stores import REDIS, answering

log = logging.getLogger(__name__)

_EVERY_SECONDS = 1.0
_OFTEN_SECONDS = 0.05
_HEARTBEAT_SECONDS = 15.0
# A job that has been running for so long is shown by name.
_WORTH_TELLING_SECONDS = 1.0


class RQPresence:
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
        inbox: Inbox,
        consumer: Consumer,
        finisher: Finisher,
        options: WorkOptions,
        redis_url: str,
        fetcher: Fetcher,
        name: str,
    ) -> None:
        self._name = name
        self.ended = False
        self._inbox = inbox
        self._consumer = consumer
        self._finisher = finisher
        self._options = options
        self._redis_url = redis_url
        self._fetcher = fetcher
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
            if self._inbox.stopping:
                with suppress(UnavailableError):
                    self._consumer.end_wait()
            self._inbox.told.wait(_OFTEN_SECONDS if self._inbox.stopping else _EVERY_SECONDS)
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
                self._inbox,
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
        inbox, finisher = self._inbox, self._finisher
        finisher.books.write(worker)
        ran, finished, failed = inbox.ran, finisher.finished, finisher.failed
        busy = ran != self._ran or not inbox.is_idle
        state = "suspended" if self._fetcher.is_suspended else "busy" if busy else "idle"
        fields = {"state": state, "current_job": self._slow_job(now)}
        news = {name: text for name, text in fields.items() if self._told.get(name) != text}
        more = {
            "successful_job_count": finished - self._counted[0],
            "failed_job_count": failed - self._counted[1],
        }
        counts = {name: float(number) for name, number in more.items() if number}
        if not news and not counts:
            return
        self._consumer.presence.show_worker(worker.key, news, counts, TTL_SECONDS + 60)
        if news.get("current_job"):
            self._consumer.presence.show_job(news["current_job"], worker.name)
        self._told, self._counted, self._ran = fields, (finished, failed), ran

    def _slow_job(self, now: float) -> str:
        running = self._inbox.running
        is_slow = running is not None and now - self._inbox.began_at > _WORTH_TELLING_SECONDS
        return running.rq_id if is_slow and isinstance(running, ClaimedJob) else ""
