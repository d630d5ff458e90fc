"""Health for HTTP, systemd and the log, and a watchdog."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from time import monotonic

from drain import metrics
from drain.database import postgres
from drain.database.postgres import Connection
from drain.service import http, systemd
from drain.service.callbacks import Callbacks
from drain.service.hysteresis import HealthOptions, Steady

log = logging.getLogger(__name__)

# Longer than any statement: the server or network has stopped answering.
STALLED_SECONDS = 35.0
_UNHEALTHY_SECONDS = 90.0
_LOOK_SECONDS = 0.5
_PROCESS = "enqueuer"


class Health:
    """Health of one daemon."""

    def __init__(self, options: HealthOptions | None = None) -> None:
        self._options = options or HealthOptions()
        # Problems are checked in this order.
        self._lock = threading.RLock()
        self._problem: str | None = "starting"
        self._store = ""
        self._was_up = False
        self._alive_at = monotonic()
        self._callbacks = Callbacks(self._options)
        self._stores = self._steady("stores", self._options.grace_seconds)
        # A long silence needs no grace.
        self._loop = self._steady("loop", 0.0)
        self._queues: dict[str, Steady] = {}
        self._failing: frozenset[str] = frozenset()

    @property
    def is_up(self) -> bool:
        """True if the last report was `up`."""
        return self._problem is None

    def alive(self) -> None:
        """Report progress."""
        self._alive_at = monotonic()
        systemd.notify("WATCHDOG=1")

    def is_alive(self) -> bool:
        """Report progress and return True, for conditions."""
        self.alive()
        return True

    def up(self, status: str) -> None:
        """Report that both stores are available."""
        was_up = self.is_up
        # Before the log line, so that its readers find `/readyz` up.
        with self._lock:
            self._problem, self._was_up = None, True
            self._look_at_stores()
        if not was_up:
            log.info("PostgreSQL and Redis are available; %s", status, extra={"event": "up"})
        systemd.notify("READY=1", f"STATUS={status}")

    def down(self, error: Exception) -> None:
        """Report an unavailable store; log an outage once."""
        self._store = store = "redis" if str(error).startswith("Redis") else "postgres"
        metrics.FAILURES.labels(store).inc()
        with self._lock:
            before, self._problem = self._problem, str(error).partition("\n")[0]
            self._look_at_stores()
        if before is None or before == "starting":
            log.warning("%s; nothing is lost, trying again", self._problem, extra={"event": "down"})
        systemd.notify(f"STATUS=waiting: {self._problem}")

    def report_failing(self, queues: Collection[str]) -> None:
        """Report failing queues."""
        self._failing = frozenset(queues)

    def forget_failing(self) -> None:
        """Leave failing queues to another leader."""
        self._failing, self._queues = frozenset(), {}

    def answers(self) -> http.Answers:
        """Answers of `/healthz` and `/readyz`."""
        return http.Answers(unhealthy=self._unhealthy, unready=self._unready)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Call `look` on a thread."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_LOOK_SECONDS):
                self.look()

        threading.Thread(target=watch, name="health", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def look(self) -> None:
        """Check time-dependent states; call hooks and commands for changes."""
        self._look_at_stores()
        self._loop.look(self._unhealthy())
        failing, queues = self._failing, self._queues
        for queue in failing - queues.keys():
            queues[queue] = self._steady(f"queue:{queue}", self._options.queue_grace_seconds)
        for queue, steady in queues.items():
            steady.look(f"queue {queue} keeps failing" if queue in failing else None)

    @contextmanager
    def guarded(self, connection: Connection) -> Iterator[None]:
        """Break the connection if the loop stalls."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(min(1.0, STALLED_SECONDS / 4)):
                if monotonic() - self._alive_at > STALLED_SECONDS:
                    postgres.break_off(connection)
                    return

        self.alive()
        threading.Thread(target=watch, name="guard", daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    def _steady(self, what: str, grace: float) -> Steady:
        recovery = self._options.recovery_seconds
        return Steady(what, _PROCESS, grace=grace, recovery=recovery, changed=self._callbacks.call)

    def _look_at_stores(self) -> None:
        # A starting process has not failed.
        with self._lock:
            self._stores.look(None if self._problem == "starting" else self._problem, self._store)

    def _unready(self) -> str | None:
        # Until first ready, there is no outage to bridge.
        if not self._was_up:
            return self._problem
        self._look_at_stores()
        return self._stores.problem

    def _unhealthy(self) -> str | None:
        silent = monotonic() - self._alive_at
        return f"the main loop has not responded for {silent:.0f} s" if silent > _UNHEALTHY_SECONDS else None
