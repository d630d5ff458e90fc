"""One child process of `drain dev`: its output by lines, and a guard that it cannot outlive."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread

# Once nobody can write a line any more, ends the group of the process that the last line names.
_GUARD = """
while read -r line; do pid=$line; done
[ -n "$pid" ] || exit 0
kill -s TERM -- "$pid"
turns=0
while kill -0 -- "-$pid" && [ $turns -lt 30 ]; do sleep 0.1; turns=$((turns + 1)); done
kill -s KILL -- "-$pid"
"""
# Standard input is the guard's pipe: the child names itself before it becomes the program, so that there is no
# instant at which it runs and the guard does not know of it.
_REGISTER = 'echo "$$" >&0; exec "$@" < /dev/null'
# `drain` as this process has imported it; what lies in the current directory is found by the command itself, later.
_PROGRAM = "import sys; sys.path.insert(0, {!r}); import drain, pipeline, workers; del sys.path[0]; {}"


class Program:
    """A Python program in a session of its own, so that Ctrl-C reaches `drain dev` alone.

    It may be started again once it has ended. If this process dies, whatever the signal, the guard sends SIGTERM to
    the program and SIGKILL to its group three seconds later.

    Args:
        name: What its lines begin with.
        statement: Python statements to execute.
        environment: Variables beside those of this process.
        relay: Called with the name and each line of its output, by another thread.
    """

    def __init__(
        self,
        name: str,
        statement: str,
        environment: Mapping[str, str],
        relay: Callable[[str, str], None],
    ) -> None:
        self.name = name
        packages = str(Path(__file__).parents[2])
        self._command = [sys.executable, "-P", "-c", _PROGRAM.format(packages, statement)]
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        self._relay = relay
        self._process: subprocess.Popen[str] | None = None
        self._reader: Thread | None = None
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int | None:
        """Process id; None while it does not run."""
        return self._process.pid if self._process else None

    def start(self, *words: str) -> None:
        """Start it with these arguments."""
        assert self._process is None  # noqa: S101
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _REGISTER, "sh", *self._command, *words],
            env=self._environment,
            stdin=self._guard.stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = Thread(target=self._read, args=(self._process,), name=self.name, daemon=True)
        self._reader.start()

    def ended(self) -> int | None:
        """How it ended, negative for a signal, once all of its processes have; None while it runs or does not."""
        code = self._process.poll() if self._process else None
        if code is not None:
            self._forget()
        return code

    def terminate(self) -> None:
        """SIGTERM: it ends when it has done what it has in hand; the second one interrupts that."""
        if self._process:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float) -> bool:
        """Wait until the program has ended, or the seconds are over; returns whether it has ended."""
        if self._process:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, seconds))
        return self._process is None or self.ended() is not None

    def kill(self) -> None:
        """SIGKILL it and its children, and return when it is gone."""
        if self._process:
            self._forget()

    def close(self) -> None:
        """Kill what still runs, and let the guard go."""
        self.kill()
        self._guard.communicate(timeout=10)

    def _forget(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        # Its children too, which may have outlived it.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._tell_guard_that_nothing_runs()
        if self._reader:
            self._reader.join(timeout=1)

    def _tell_guard_that_nothing_runs(self) -> None:
        # Its pid may soon be that of another process.
        if self._guard.stdin:
            with suppress(BrokenPipeError):
                self._guard.stdin.write(b"\n")

    def _read(self, process: subprocess.Popen[str]) -> None:
        if process.stdout:
            with process.stdout as lines:
                for line in lines:
                    self._relay(self.name, line.rstrip("\n"))
