"""Thread that shows tracked jobs to RQ's tools, and keeps RQ's records."""

from __future__ import annotations

import logging
from contextlib import suppress
from time import monotonic

import redis

from drain.config import Settings
from drain.database.wakeup import Wakeup
from drain.errors import UnavailableError
from drain.wire import Consumer
from drain.wire.workers import FULL, IS_FULL, NOT_FULL
from drain.workers.options import WorkOptions
from drain.workers.process.fetcher import Fetcher
from drain.workers.process.finisher import Finisher
from drain.workers.process.inbox import Inbox
from drain.workers.process.jobs import SHOWN_AFTER_SECONDS, ClaimedJob
from drain.workers.process.rq_worker import TTL_SECONDS, RQWorker
from drain.workers.process.shutdown import Shutdown
from drain.workers.stores import REDIS, answering

log = logging.getLogger(__name__)

# Normally, and during shutdown.
_EVERY_SECONDS = 1.0
_OFTEN_SECONDS = 0.05
_HEARTBEAT_SECONDS = 15.0
# Expiry of the values for RQ's tools.
_KEPT_SECONDS = TTL_SECONDS + 60


class RQPresence:
    """Updates the values for RQ's tools once a second, in at most one round trip."""

    def __init__(
        self,
        inbox: Inbox,
        shutdown: Shutdown,
        wakeup: Wakeup,
        consumer: Consumer,
        finisher: Finisher,
        options: WorkOptions,
        settings: Settings,
        fetcher: Fetcher,
        name: str,
    ) -> None:
        self._name = name
        self._inbox = inbox
        self._shutdown = shutdown
        self._wakeup = wakeup
        self._consumer = consumer
        self._finisher = finisher
        self._options = options
        self._settings = settings
        self._fetcher = fetcher
        self._has_ended = False
        self._worker: RQWorker | None = None
        self._beat_at = 0.0
        self._shown: dict[str, str] = {}
        self._counted = (0, 0)
        self._ran = 0

    def run(self) -> None:
        """Update until `stop`; then write the remaining records and leave RQ's lists."""
        registered, stores = False, self._finisher.database.stores
        while not self._has_ended:
            if stores.is_away(REDIS):
                # An update without changes would not notice Redis' return.
                self._beat_at = 0.0
            with suppress(redis.RedisError, UnavailableError), answering(stores, REDIS):
                worker = self._get_worker()
                if not registered:
                    worker.register()
                    registered = True
                self._update(worker)
            if self._shutdown.requested:
                with suppress(UnavailableError):
                    self._consumer.end_wait()
            self._wakeup.wait(_OFTEN_SECONDS if self._shutdown.requested else _EVERY_SECONDS)
        with suppress(redis.RedisError):
            while self._finisher.books.waits:
                self._finisher.books.write(self._get_worker())
        if self._worker is not None:
            self._worker.leave()

    def stop(self) -> None:
        """Let `run` return."""
        self._has_ended = True
        self._wakeup.notify()

    def _get_worker(self) -> RQWorker:
        """Return RQ's worker, whose creation asks Redis."""
        if self._worker is None:
            self._worker = RQWorker(
                self._settings.required_redis_url,
                self._options.queues,
                self._inbox,
                self._shutdown,
                self._name,
                self._settings.namespace,
                self._options.plain.exception_handlers,
            )
        return self._worker

    def _update(self, worker: RQWorker) -> None:
        now = monotonic()
        if now >= self._beat_at:
            worker.beat()
            self._beat_at = now + _HEARTBEAT_SECONDS
            self._shown = {}
        inbox, finisher = self._inbox, self._finisher
        finisher.books.write(worker)
        ran, finished, failed = inbox.ran, finisher.finished, finisher.failed
        busy = ran != self._ran or inbox.has_tracked
        state = "suspended" if self._fetcher.is_suspended else "busy" if busy else "idle"
        slow = self._slow_job(now)
        # A process whose jobs end is about to be free.
        full = FULL if ran == self._ran and not inbox.is_free else NOT_FULL
        fields = {"state": state, IS_FULL: full, "current_job": slow.rq_id if slow else ""}
        changed = {name: text for name, text in fields.items() if self._shown.get(name) != text}
        increments = {
            "successful_job_count": finished - self._counted[0],
            "failed_job_count": failed - self._counted[1],
        }
        counts = {name: float(number) for name, number in increments.items() if number}
        if not changed and not counts:
            return
        self._consumer.presence.show_worker(worker.key, changed, counts, _KEPT_SECONDS)
        if slow and "current_job" in changed:
            claim = slow.claim
            self._consumer.presence.show_job(
                slow.rq_id,
                worker.name,
                queue=claim.queue,
                job_name=claim.job_name,
                timeout_seconds=claim.timeout_seconds,
            )
        self._shown, self._counted, self._ran = fields, (finished, failed), ran

    def _slow_job(self, now: float) -> ClaimedJob | None:
        running = self._inbox.running
        job = running.current
        is_slow = job is not None and now - running.began_at > SHOWN_AFTER_SECONDS
        return job if is_slow and isinstance(job, ClaimedJob) else None
