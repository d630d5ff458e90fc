"""Child process with a guard."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread

from drain.embedded.guard import Guard

# Guard: once the pipe closes, ends the process group named by the last line.
_GUARD = """
while read -r line; do pid=$line; done
[ -n "$pid" ] || exit 0
kill -s TERM -- "$pid"
tenths=0
while kill -0 -- "-$pid" && [ $tenths -lt 30 ]; do sleep 0.1; tenths=$((tenths + 1)); done
kill -s KILL -- "-$pid"
"""
# Shell command that becomes the program. Standard input is the guard's pipe: the child names itself before it becomes
# the program, so that the guard never misses a running one.
_REGISTER = 'echo "$$" >&0; exec "$@" < /dev/null'
# The child imports `drain` from the same place, before the command adds the current directory to the path. A printed
# line is written at once, whole: unbuffered, its end is a second write, and lines of two processes mix.
_STATEMENTS = (
    "import sys; sys.stdout.reconfigure(line_buffering=True, write_through=False); "
    "sys.path.insert(0, {!r}); import drain; del sys.path[0]; {}"
)
_CLOSE_SECONDS = 10.0


class GuardedProgram:
    """Python program in its own session, so that Ctrl-C reaches only `drain dev`; restartable once ended.

    If this process dies, by any signal, the guard sends SIGTERM, and SIGKILL to the group three seconds later.

    Args:
        environment: Added to this process' variables.
        relay: Called on another thread with name and line of output.
    """

    def __init__(
        self,
        name: str,
        statement: str,
        environment: Mapping[str, str],
        relay: Callable[[str, str], None],
    ) -> None:
        self.name = name
        home = str(Path(__file__).parents[3])
        self._command = [sys.executable, "-P", "-c", _STATEMENTS.format(home, statement)]
        self._environment = {**os.environ, **environment}
        self._relay = relay
        self._process: subprocess.Popen[str] | None = None
        self._reader: Thread | None = None
        self._guard = Guard(_GUARD)

    @property
    def pid(self) -> int | None:
        """Process id, if running."""
        return self._process.pid if self._process else None

    def start(self, *words: str) -> None:
        """Start the program."""
        assert self._process is None  # noqa: S101
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _REGISTER, "sh", *self._command, *words],
            env=self._environment,
            stdin=self._guard.pipe,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = Thread(target=self._read, args=(self._process,), name=self.name, daemon=True)
        self._reader.start()

    def ended(self) -> int | None:
        """Exit code, negative for a signal, reported once; the program's children are killed then."""
        code = self._process.poll() if self._process else None
        if code is not None:
            self._forget()
        return code

    def terminate(self) -> None:
        """Send SIGTERM: the first lets current work finish, the second interrupts it."""
        if self._process:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> bool:
        """Return True if the program has ended within `seconds`."""
        if self._process:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, seconds))
        return self._process is None or self.ended() is not None

    def kill(self) -> None:
        """SIGKILL the program and its children, and wait."""
        if self._process:
            self._forget()

    def close(self) -> None:
        """Kill the program, and end the guard."""
        self.kill()
        self._guard.close(_CLOSE_SECONDS)

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # Children may have outlived the program.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        # The guard must forget it: its pid may be reused.
        self._guard.note("")
        if self._reader:
            self._reader.join(timeout=1)

    def _read(self, process: subprocess.Popen[str]) -> None:
        if process.stdout:
            with process.stdout as lines:
                for line in lines:
                    self._relay(self.name, line.rstrip("\n"))
