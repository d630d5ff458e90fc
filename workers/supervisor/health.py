"""Health of `drain work`, for HTTP and systemd."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from drain import formatting
from drain.service import systemd
from drain.service.hysteresis import HealthOptions, Steady
from drain.workers.handover.journal import Journal
from drain.workers.measures.memory import Measures
from drain.workers.supervisor.callbacks import Callbacks

if TYPE_CHECKING:
    from drain.workers.supervisor.port import Port

# Without a turn of the loop, or without any worker process.
_UNHEALTHY_SECONDS = 30.0
_TEXT_BYTES = 1024
_TIMES = struct.Struct("<dd")


class Health:
    """State of supervisor and workers, shared with the port's process."""

    def __init__(
        self,
        journals: Sequence[Journal],
        options: HealthOptions | None = None,
        measures: Sequence[Measures | None] = (),
    ) -> None:
        options = options or HealthOptions()
        self._journals = journals
        self._measures = [each for each in measures if each is not None]
        self._callbacks = Callbacks(options, self.release_port)
        self._stores = self._steady("stores", options.grace_seconds, options.recovery_seconds)
        # Reported only after some time without a process, so without grace.
        self._workers = self._steady("workers", 0.0, options.recovery_seconds)
        self._was_ready = False
        self._memory = mmap.mmap(-1, _TIMES.size + _TEXT_BYTES)
        self._port: Port | None = None
        self._status = ""
        self._is_ready = False
        self._lived_at = monotonic()
        self._write("starting")

    def serve(self, host: str, port: int) -> None:
        """Serve `/healthz`, `/readyz` and `/metrics` until `close`.

        Raises:
            ConfigError: The address cannot be used.
        """
        from drain.workers.supervisor.port import Port

        self._port = Port(
            host, port, self._journals, self._measures, unhealthy=self.unhealthy, unready=self.unready
        )
        self._port.keep_serving()

    def report_waiting(self, problem: str | None) -> None:
        """Report why no worker process can start yet, or None."""
        self._lived_at = monotonic()
        self._write(problem or "starting")
        self._stores.look(problem)
        self._callbacks.run_once()
        self._notify(f"waiting: {problem}" if problem else "starting")
        if self._port is not None:
            self._port.keep_serving()

    def report_turn(self, *, stopping: bool) -> None:
        """Report a turn of the loop; `stopping` if no processes start."""
        living = sum(journal.is_alive for journal in self._journals)
        if living:
            self._lived_at = monotonic()
        self._write("stopping" if stopping else self._look(living) or "")
        self._callbacks.run_once()
        if stopping:
            self._notify("stopping", "STOPPING=1")
        else:
            count = formatting.count(len(self._journals), "process", "processes")
            # After READY=1, systemd's watchdog expects a message each turn.
            self._notify(f"{living} of {count}", *([] if self._is_ready else ["READY=1"]))
            self._is_ready = True
        systemd.notify("WATCHDOG=1")
        if self._port is not None:
            self._port.keep_serving()

    def release_port(self) -> None:
        """Close the socket in a child."""
        if self._port is not None:
            self._port.release()

    def close(self) -> None:
        """End the port's process."""
        self._callbacks.close()
        if self._port is not None:
            self._port.close()

    def unhealthy(self) -> str | None:
        """Explain why `/healthz` fails."""
        turned, lived = _TIMES.unpack_from(self._memory)
        now = monotonic()
        if now - turned > _UNHEALTHY_SECONDS:
            return f"the supervisor has not responded for {formatting.duration(now - turned)}"
        if now - lived > _UNHEALTHY_SECONDS:
            return f"no worker process has been alive for {formatting.duration(now - lived)}"
        return None

    def unready(self) -> str | None:
        """Explain why `/readyz` fails."""
        # Written by the supervisor each turn.
        return self._memory[_TIMES.size :].rstrip(b"\0").decode(errors="replace") or None

    def _look(self, living: int) -> str | None:
        self._workers.look(self._without_workers())
        problem = None
        if not any(journal.is_alive and not journal.is_cut_off for journal in self._journals):
            problem = "no worker process reaches both PostgreSQL and Redis"
        # Without a process, the stores' state is unknown.
        self._stores.look(problem if living else self._stores.problem)
        self._was_ready = self._was_ready or problem is None
        return self._stores.problem if self._was_ready else problem

    def _without_workers(self) -> str | None:
        away = monotonic() - self._lived_at
        return (
            f"no worker process has been alive for {formatting.duration(away)}"
            if away > _UNHEALTHY_SECONDS
            else None
        )

    def _steady(self, what: str, grace: float, recovery: float) -> Steady:
        changed = self._callbacks.call
        return Steady(what, "workers", grace=grace, recovery=recovery, changed=changed, clock=monotonic)

    def _write(self, problem: str) -> None:
        text = problem.encode(errors="replace")[:_TEXT_BYTES]
        self._memory[: _TIMES.size] = _TIMES.pack(monotonic(), self._lived_at)
        self._memory[_TIMES.size :] = text.ljust(_TEXT_BYTES, b"\0")

    def _notify(self, status: str, *more: str) -> None:
        if status != self._status:
            systemd.notify(*more, f"STATUS={status}")
        self._status = status
