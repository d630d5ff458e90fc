"""HTTP port of `drain work`, in a child, as the supervisor forks and so has no threads.

The child connects to no store. If it dies, another starts; it ends with the supervisor.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import ThreadingHTTPServer
from threading import Thread
from time import sleep

from prometheus_client import CollectorRegistry

from drain.service import http
from drain.workers.exits import DONE, STOP_SIGNALS, exit_child
from drain.workers.handover.journal import Journal
from drain.workers.measures.memory import Measures
from drain.workers.supervisor.collectors import JournalCollector, MeasuresCollector

log = logging.getLogger(__name__)

# Between checks that the supervisor lives.
_LOOK_SECONDS = 0.5


class Port:
    """Listening port and its process.

    Args:
        unhealthy, unready: Return why `/healthz` or `/readyz` fails, or None.
    """

    def __init__(
        self,
        host: str,
        port: int,
        journals: Sequence[Journal],
        measures: Sequence[Measures],
        *,
        unhealthy: Callable[[], str | None],
        unready: Callable[[], str | None],
    ) -> None:
        registry = CollectorRegistry()
        registry.register(JournalCollector(journals))
        registry.register(MeasuresCollector(measures))
        answers = http.Answers(unhealthy, unready, http.exposition(registry))
        self._server = http.listen(host, port, answers)
        self._pid = 0

    def keep_serving(self) -> None:
        """Start the serving process if needed."""
        if self._pid and os.waitpid(self._pid, os.WNOHANG)[0]:
            log.error(
                "the HTTP server process has ended and is replaced",
                extra={"event": "port_died"},
            )
            self._pid = 0
        if not self._pid:
            # The next turn retries.
            with suppress(OSError):
                self._fork()

    def release(self) -> None:
        """Close the socket in a child, to free the port."""
        self._server.socket.close()

    def close(self) -> None:
        """End the serving process."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
        self.release()

    def _fork(self) -> None:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            parent = os.getpid()
            self._pid = os.fork()
            if self._pid == 0:
                _serve(self._server, parent, blocked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _serve(server: ThreadingHTTPServer, parent: int, mask: set[signal.Signals | int]) -> None:
    try:
        signal.set_wakeup_fd(-1)
        # The supervisor kills this process last.
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        Thread(target=server.serve_forever, args=[_LOOK_SECONDS], daemon=True).start()
        while os.getppid() == parent:
            sleep(_LOOK_SECONDS)
    except BaseException:
        log.exception("the HTTP port cannot be served", extra={"event": "failed"})
    finally:
        exit_child(DONE)
