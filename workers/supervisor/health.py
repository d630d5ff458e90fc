"""How `drain work` is, as its supervisor tells the HTTP port and systemd."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from time import monotonic
from typing import TYPE_CHECKING

from drain import wording
from drain.service import systemd
from workers.handover.journal import Journal

if TYPE_CHECKING:
    from workers.supervisor.port import Port

# Upper bound for a silent supervisor, whose loop turns once a second, and for a time without any worker process.
_UNHEALTHY_SECONDS = 30.0
_TEXT_BYTES = 1024
_TIMES = struct.Struct("<dd")


class Health:
    """What the supervisor says of itself, to the HTTP port and to systemd.

    Args:
        journals: Those of the worker processes.
    """

    def __init__(self, journals: Sequence[Journal]) -> None:
        self._journals = journals
        self._memory = mmap.mmap(-1, _TIMES.size + _TEXT_BYTES)
        self._port: Port | None = None
        self._status = ""
        self._is_ready = False
        self._lived_at = monotonic()
        self._write("starting")

    def serve(self, host: str, port: int) -> None:
        """Serve `/healthz`, `/readyz` and `/metrics` on a port, until `close`.

        Raises:
            ConfigError: The address cannot be listened on.
        """
        # Here, since only who has a port needs it.
        from workers.supervisor.port import Port

        self._port = Port(host, port, self, self._journals)
        self._port.look_after()

    def wait(self, problem: str | None) -> None:
        """No worker process is started yet, because of this; None if nothing is in the way any more."""
        self._lived_at = monotonic()
        self._write(problem or "starting")
        self._tell(f"waiting: {problem}" if problem else "starting")
        if self._port is not None:
            self._port.look_after()

    def turn(self, *, stopping: bool) -> None:
        """The supervisor's loop has turned once."""
        living = sum(journal.is_alive for journal in self._journals)
        if living:
            self._lived_at = monotonic()
        self._write("stopping" if stopping else "")
        if stopping:
            self._tell("stopping", "STOPPING=1")
        else:
            count = wording.count(len(self._journals), "process", "processes")
            # systemd counts from now on how long the loop is silent.
            self._tell(f"{living} of {count}", *([] if self._is_ready else ["READY=1"]))
            self._is_ready = True
        systemd.notify("WATCHDOG=1")
        if self._port is not None:
            self._port.look_after()

    def leave(self) -> None:
        """Let go of the port in a child of the supervisor."""
        if self._port is not None:
            self._port.leave()

    def close(self) -> None:
        """Serve no more."""
        if self._port is not None:
            self._port.close()

    def unhealthy(self) -> str | None:
        """Why `/healthz` fails, if it does."""
        ticked, lived = _TIMES.unpack_from(self._memory)
        now = monotonic()
        if now - ticked > _UNHEALTHY_SECONDS:
            return f"the supervisor has been silent for {wording.duration(now - ticked)}"
        if now - lived > _UNHEALTHY_SECONDS:
            return f"no worker process has lived for {wording.duration(now - lived)}"
        return None

    def unready(self) -> str | None:
        """Why `/readyz` fails, if it does."""
        problem = self._memory[_TIMES.size :].rstrip(b"\0").decode(errors="replace")
        if problem:
            return problem
        if not any(journal.is_alive and not journal.is_cut_off for journal in self._journals):
            return "no worker process reaches both PostgreSQL and Redis"
        return None

    def _write(self, problem: str) -> None:
        text = problem.encode(errors="replace")[:_TEXT_BYTES]
        _TIMES.pack_into(self._memory, 0, monotonic(), self._lived_at)
        self._memory[_TIMES.size :] = text.ljust(_TEXT_BYTES, b"\0")

    def _tell(self, status: str, *more: str) -> None:
        if status != self._status:
            systemd.notify(*more, f"STATUS={status}")
        self._status = status
