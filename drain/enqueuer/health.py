"""Health of the daemon, for its HTTP port, systemd and the log, and its watchdog."""

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

# Longer than any statement may take: the server, or the network, has stopped answering.
STALLED_SECONDS = 35.0
# Silence after which the process is unhealthy.
_UNHEALTHY_SECONDS = 90.0
# Between looks at what changes by time alone.
_LOOK_SECONDS = 0.5
# Name of this process for hooks.
_PROCESS = "enqueuer"


class Health:
    """Health of one daemon."""

    def __init__(self, options: HealthOptions | None = None) -> None:
        self._options = options or HealthOptions()
        # So that no older problem is judged after a newer one.
        self._lock = threading.RLock()
        self._problem: str | None = "starting"
        self._store = ""
        self._was_up = False
        self._alive_at = monotonic()
        self._callbacks = Callbacks(self._options)
        self._stores = self._steady("stores", self._options.grace_seconds)
        # Its silence is long enough; no extra grace.
        self._loop = self._steady("loop", 0.0)
        self._queues: dict[str, Steady] = {}
        self._failing: frozenset[str] = frozenset()

    @property
    def is_up(self) -> bool:
        """True if the last report was `up`."""
        return self._problem is None

    def alive(self) -> None:
        """Report progress of the loop; called between statements."""
        self._alive_at = monotonic()
        systemd.notify("WATCHDOG=1")

    def is_alive(self) -> bool:
        """Report progress; always True, for use as a condition."""
        self.alive()
        return True

    def up(self, status: str) -> None:
        """Report that both stores answer, and what the daemon does."""
        was_up = self.is_up
        # Before the log line, so that a reader of it gets the same from `/readyz`.
        with self._lock:
            self._problem, self._was_up = None, True
            self._look_at_stores()
        if not was_up:
            log.info("PostgreSQL and Redis answer, %s", status, extra={"event": "up"})
        systemd.notify("READY=1", f"STATUS={status}")

    def down(self, error: Exception) -> None:
        """Report that a store does not answer; an outage is logged once."""
        self._store = store = "redis" if str(error).startswith("Redis") else "postgres"
        metrics.FAILURES.labels(store).inc()
        with self._lock:
            before, self._problem = self._problem, str(error).partition("\n")[0]
            self._look_at_stores()
        if before is None or before == "starting":
            log.warning("%s; nothing is lost, trying again", self._problem, extra={"event": "down"})
        systemd.notify(f"STATUS=waiting: {self._problem}")

    def report_failing(self, queues: Collection[str]) -> None:
        """Report the failing queues."""
        self._failing = frozenset(queues)

    def forget_failing(self) -> None:
        """Forget failing queues, which another leader judges now."""
        self._failing, self._queues = frozenset(), {}

    def answers(self) -> http.Answers:
        """Return the answers of `/healthz` and `/readyz`."""
        return http.Answers(unhealthy=self._unhealthy, unready=self._unready)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch time-dependent changes on a thread of its own."""
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
        """Look once; call hooks and commands for changes."""
        self._look_at_stores()
        self._loop.look(self._unhealthy())
        failing, queues = self._failing, self._queues
        for queue in failing - queues.keys():
            queues[queue] = self._steady(f"queue:{queue}", self._options.queue_grace_seconds)
        for queue, steady in queues.items():
            steady.look(f"queue {queue} fails again and again" if queue in failing else None)

    @contextmanager
    def guarded(self, connection: Connection) -> Iterator[None]:
        """Break the connection when the loop is silent for too long."""
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
        # Before it was first ready, there is nothing to bridge.
        if not self._was_up:
            return self._problem
        self._look_at_stores()
        return self._stores.problem

    def _unhealthy(self) -> str | None:
        silent = monotonic() - self._alive_at
        return f"the loop has been silent for {silent:.0f} s" if silent > _UNHEALTHY_SECONDS else None
