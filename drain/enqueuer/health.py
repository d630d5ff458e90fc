"""Health of the daemon, as reported to its HTTP port, to systemd and in the log, and its guard against a standstill."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from drain import metrics
from drain.database import postgres
from drain.database.postgres import Connection
from drain.service import http, systemd

log = logging.getLogger(__name__)

# Silence of the loop after which the connection is broken off. It is longer than any statement may take, so the server,
# or a device on the way to it, has stopped answering.
STALLED_SECONDS = 35.0
# Silence of the loop after which the process reports itself as unhealthy.
_UNHEALTHY_SECONDS = 90.0


class Health:
    """Health of one daemon."""

    def __init__(self) -> None:
        self._problem: str | None = "starting"
        self._alive_at = monotonic()

    @property
    def is_up(self) -> bool:
        """True if the last report was `up`."""
        return self._problem is None

    def alive(self) -> None:
        """Report that the loop goes on; called between statements."""
        self._alive_at = monotonic()
        systemd.notify("WATCHDOG=1")

    def is_alive(self) -> bool:
        """Report that the loop goes on; returns True, as a condition to drain on."""
        self.alive()
        return True

    def up(self, status: str) -> None:
        """Report that both stores answer, and what the daemon does."""
        was_up = self.is_up
        # Before the line in the log: whoever reads that gets the same from `/readyz`.
        self._problem = None
        if not was_up:
            log.info("PostgreSQL and Redis answer, %s", status, extra={"event": "up"})
        systemd.notify("READY=1", f"STATUS={status}")

    def down(self, error: Exception) -> None:
        """Report that a store does not answer; an outage is logged once."""
        store = "redis" if str(error).startswith("Redis") else "postgres"
        metrics.FAILURES.labels(store).inc()
        before, self._problem = self._problem, str(error).partition("\n")[0]
        if before is None or before == "starting":
            log.warning("%s; nothing is lost, trying again", self._problem, extra={"event": "down"})
        systemd.notify(f"STATUS=waiting: {self._problem}")

    def answers(self) -> http.Answers:
        """Answers of `/healthz` and `/readyz`."""
        return http.Answers(unhealthy=self._unhealthy, unready=lambda: self._problem)

    @contextmanager
    def guarded(self, connection: Connection) -> Iterator[None]:
        """Break the connection off when the loop has been silent for too long; the guard is a thread of its own."""
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

    def _unhealthy(self) -> str | None:
        silent = monotonic() - self._alive_at
        return f"the loop has been silent for {silent:.0f} s" if silent > _UNHEALTHY_SECONDS else None
