"""The HTTP port of `drain work`: a process beside the supervisor, which forks, and so runs no thread.

It holds no connection to a store, and reads what supervisor and worker processes write into memory that they share. If
it dies, another one takes its place; it ends with the supervisor.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.server import ThreadingHTTPServer
from threading import Thread
from time import sleep
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from drain import metrics
from drain.service import http
from workers.handover.journal import Journal, Progress

if TYPE_CHECKING:
    from workers.supervisor.health import Health

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_STATES = {Progress.TAKEN: "waiting", Progress.RUNNING: "running", Progress.FINISHED: "finished"}


class Port:
    """A port that is listened on from the beginning, and the process that serves it.

    Args:
        host: Name or address to listen on.
        port: Port to listen on.
        health: What the probes are told.
        journals: Those of the worker processes, for `/metrics`.

    Raises:
        ConfigError: The address cannot be listened on.
    """

    def __init__(self, host: str, port: int, health: Health, journals: Sequence[Journal]) -> None:
        registry = CollectorRegistry()
        registry.register(_Counts(journals))
        answers = http.Answers(health.unhealthy, health.unready, lambda: generate_latest(registry))
        self._server = http.listen(host, port, answers)
        self._pid = 0

    def look_after(self) -> None:
        """Start the process that serves, if none does."""
        if self._pid and os.waitpid(self._pid, os.WNOHANG)[0]:
            log.error("the process that serves the HTTP port has ended; another one takes its place")
            self._pid = 0
        if not self._pid:
            # The system may have no process to give: later, then.
            with suppress(OSError):
                self._fork()

    def leave(self) -> None:
        """Let go of the port in a child of the supervisor, which is not to hold it."""
        self._server.socket.close()

    def close(self) -> None:
        """End the process that serves."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0
        self.leave()

    def _fork(self) -> None:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        try:
            parent = os.getpid()
            self._pid = os.fork()
            if self._pid == 0:
                _serve(self._server, parent, blocked)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _serve(server: ThreadingHTTPServer, parent: int, mask: set[signal.Signals | int]) -> None:
    """Serve for as long as the supervisor lives; nothing that is the supervisor's is tidied up here."""
    try:
        signal.set_wakeup_fd(-1)
        # The supervisor ends this process last.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        Thread(target=server.serve_forever, args=[_LOOK_SECONDS], daemon=True).start()
        while os.getppid() == parent:
            sleep(_LOOK_SECONDS)
    except BaseException:
        log.exception("the HTTP port cannot be served", extra={"event": "failed"})
    finally:
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(0)


class _Counts(Collector):
    """Counts of the worker processes, by their numbers."""

    def __init__(self, journals: Sequence[Journal]) -> None:
        self._journals = journals

    def collect(self) -> Iterator[Metric]:
        """Read the journals."""
        alive = GaugeMetricFamily(*metrics.WORK_ALIVE, labels=["process"])
        cut_off = GaugeMetricFamily(*metrics.WORK_CUT_OFF, labels=["process"])
        held = GaugeMetricFamily(*metrics.WORK_HELD, labels=["process", "state"])
        ended = CounterMetricFamily(*metrics.WORK_ENDED, labels=["process", "outcome"])
        for number, journal in enumerate(self._journals, 1):
            process = str(number)
            alive.add_metric([process], journal.is_alive)
            cut_off.add_metric([process], journal.is_cut_off)
            found = [entry.progress for entry in journal.entries()]
            for progress, state in _STATES.items():
                held.add_metric([process, state], found.count(progress))
            for outcome, count in zip(("finished", "failed"), journal.ended, strict=True):
                ended.add_metric([process, outcome], count)
        yield from (alive, cut_off, held, ended)
