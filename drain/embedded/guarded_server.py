"""A server that cannot outlive its owner.

Its own session keeps it from the terminal's Ctrl-C. If the owner is killed, the guard stops the server. The guard
always removes the scratch directory.
"""

from __future__ import annotations

import atexit
import os
import secrets
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from drain.embedded.guard import Guard
from drain.embedded.server_process import Credentials, ServerProcess
from drain.errors import EmbeddedError

START_SECONDS = 30.0
# Then SIGKILL.
STOP_SECONDS = 10.0

# A line names the process to stop, if any. $1: signal; $2: scratch directory.
_GUARD = """
while read -r line; do pid=$line; done
if [ -n "$pid" ]; then
  kill -s "$1" -- "-$pid"
  tenths=0
  while kill -0 "$pid" && [ $tenths -lt 100 ]; do sleep 0.1; tenths=$((tenths + 1)); done
  kill -s KILL -- "-$pid"
fi
rm -rf -- "$2"
"""


class GuardedServer:
    """Child process with directory, log, guard, and bounded start and stop.

    Args:
        directory: For data and log; None for the scratch directory, which `close` removes.

    Attributes:
        title: Name in messages.
        stop_signal: Clean stop, without `SIG`.
    """

    title: ClassVar[str]
    stop_signal: ClassVar[str]

    def __init__(self, directory: Path | None) -> None:
        self.scratch = Path(tempfile.gettempdir(), f"drain-{secrets.token_hex(8)}").absolute()
        self.directory = (directory or self.scratch).absolute()
        self.log = self.directory / "server.log"
        self._process: ServerProcess | None = None
        self._guard: Guard | None = None

    @property
    def pid(self) -> int:
        """Process id of the server."""
        if self._process is None:
            raise EmbeddedError(f"{self.title} is not running")
        return self._process.pid

    @property
    def runs(self) -> bool:
        """True while the server runs."""
        return self._process is not None and self._process.runs

    def start(self) -> None:
        """Start the server, and wait for it to answer.

        Raises:
            EmbeddedError: It did not start; quotes its log.
        """
        if self.runs:
            return
        try:
            self.kill()
            if self._guard is None:
                self.scratch.mkdir(mode=0o700)
                self._guard = Guard(_GUARD, self.stop_signal, self.scratch)
                _OPEN.add(self)
            self.directory.mkdir(parents=True, exist_ok=True)
            self.launch()
            self._wait_for_answer()
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Stop the server, by force if too slow; keep the data."""
        if self._process is not None:
            self._process.send_signal(signal.Signals[f"SIG{self.stop_signal}"])
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """SIGKILL the server and its children, and wait."""
        if self._process is None:
            return
        try:
            if not self._process.kill_all(STOP_SECONDS):
                raise self.failure(f"left children that still ran {STOP_SECONDS:.0f} s later")
        finally:
            self._process = None
            self._note_for_guard("")

    def restart(self) -> None:
        """Stop and start the server."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server and remove the scratch directory."""
        self.stop()
        if self._guard is not None:
            self._guard.close(STOP_SECONDS)
            self._guard = None
        _OPEN.discard(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def launch(self) -> None:
        """Prepare and `run` the server."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Return True once the server serves clients."""
        raise NotImplementedError

    def run(
        self,
        command: Sequence[str | Path],
        credentials: Credentials | None = None,
        descriptors: Iterable[int] = (),
    ) -> ServerProcess:
        """Start a command under guard, logging its output.

        Args:
            credentials: None for this process's account.
            descriptors: To inherit.
        """
        try:
            self._process = ServerProcess(command, self.log, credentials or {}, descriptors)
        except OSError as error:
            raise EmbeddedError(f"cannot run {command[0]}: {error.strerror}") from error
        self._note_for_guard(str(self._process.pid))
        return self._process

    def failure(self, problem: str) -> EmbeddedError:
        """Build an error that quotes the log."""
        lines = self.log.read_text(errors="replace").splitlines()[-5:]
        return EmbeddedError(f"{self.title} {problem}; its log ends: {' | '.join(lines)}")

    def _note_for_guard(self, pid: str) -> None:
        if self._guard is not None:
            self._guard.note(pid)

    def _wait_for_answer(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if not self.runs:
                raise self.failure("did not start")
            if time.monotonic() > deadline:
                raise self.failure(f"did not answer within {START_SECONDS:.0f} s")
            time.sleep(0.01)

    def _disown(self) -> None:
        if self._guard is not None:
            self._guard.disown()
        self._guard = self._process = None


_OPEN: set[GuardedServer] = set()


@atexit.register
def _close_all() -> None:
    for server in list(_OPEN):
        server.close()


def _disown_all() -> None:
    # A fork neither stops its parent's servers nor delays their guards.
    for server in _OPEN:
        server._disown()
    _OPEN.clear()


os.register_at_fork(after_in_child=_disown_all)
