"""All child processes of a demonstration, and the guard that ends them if this process is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread, main_thread
from time import monotonic
from typing import Self

import drain
from drain.embedded import binaries
from drain.embedded.guard import Guard
from programs.child import Child

# Timeout for all processes to end after SIGTERM, in seconds.
_STOP_SECONDS = 10.0

# Script of the guard: once the pipe is closed, ends the processes that the last line names, and kills their groups
# after at most $1 tenths of a second. SIGCONT, since a stopped process handles no other signal before it.
_GUARD = """
while read -r line; do pids=$line; done
[ -z "$pids" ] || { kill -s TERM $pids; kill -s CONT $pids; }
tenths=0
for pid in $pids; do
  while kill -0 "$pid" && [ $tenths -lt "$1" ]; do sleep 0.1; tenths=$((tenths + 1)); done
  kill -s KILL -- "-$pid"
done
"""


class Processes:
    """Child processes that end with the block, or when this process is killed.

    They run in sessions of their own: Ctrl-C reaches this process alone, which stops them in order. A name may be used
    again once its process has ended; the log is continued.

    Args:
        directory: Directory of their logs.
        variables: Environment variables for them, in the place of all DRAIN_* variables.
        modules: Directories to import from, in addition to that of job-drain.
    """

    def __init__(self, directory: Path, variables: Mapping[str, str], modules: Iterable[Path] = ()) -> None:
        self._directory = directory
        self._environment = _without_drain(os.environ) | {
            "PYTHONPATH": os.pathsep.join(_import_paths(modules)),
            **variables,
        }
        self._running: dict[str, Child] = {}
        self._guard: Guard | None = None

    def __enter__(self) -> Self:
        self._guard = Guard(_GUARD, str(round(10 * _STOP_SECONDS)))
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._guard is not None:
            self._guard.close(_STOP_SECONDS)

    def drain(self, name: str, *words: str) -> Child:
        """Start a `drain` command."""
        return self._start(name, "-m", "drain", *words)

    def module(self, name: str, *words: str) -> Child:
        """Start a module, as `python -m` does."""
        return self._start(name, "-m", *words)

    def has_ended(self, name: str) -> bool:
        """Return True if the process has ended with exit code 0, False while it runs.

        Raises:
            DrainError: It ended with another exit code; the text says how, and quotes the end of its log.
        """
        child = self._running.get(name)
        if child is None:
            return True
        if child.exit_code() is None:
            return False
        self.forget(name)
        if child.exit_code():
            raise child.death()
        return True

    def check(self, *names: str) -> None:
        """Make sure that these processes still run; all of them if none is named.

        Raises:
            DrainError: A process has ended; the text says how, and quotes the end of its log.
        """
        for name in names or list(self._running):
            child = self._running[name]
            if self.has_ended(name):
                raise child.death()

    def running(self) -> list[Child]:
        """List the processes that were started, and have not been seen to end."""
        return list(self._running.values())

    def last_lines(self, name: str) -> str:
        """Quote the end of the log of a running process, on one line."""
        return self._running[name].last_lines()

    def kill(self, child: Child) -> None:
        """SIGKILL a process, not its children, and return when it is gone."""
        child.kill()
        self.forget(child.name)

    def forget(self, name: str) -> None:
        """Remove a process that has ended."""
        # The guard has to forget it too: its pid may soon be that of another process.
        del self._running[name]
        self._note_for_guard()

    def stop(self) -> None:
        """End all processes by SIGTERM, and those that still run after ten seconds by SIGKILL."""
        for child in self.running():
            child.terminate()
            child.resume()
        deadline = monotonic() + _STOP_SECONDS
        for child in self.running():
            child.wait(deadline - monotonic())
            self.kill(child)

    def _start(self, name: str, *words: str) -> Child:
        log = self._directory / f"{name.replace(' ', '-')}.log"
        child = self._running[name] = Child(name, words, self._environment, log)
        self._note_for_guard()
        return child

    def _note_for_guard(self) -> None:
        if self._guard is not None:
            self._guard.note(" ".join(str(child.pid) for child in self._running.values()))


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as an exception does, so that the processes it has started are ended too."""
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _without_drain(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: text
        for name, text in environment.items()
        if not name.startswith("DRAIN_") or name in (binaries.POSTGRES, binaries.REDIS)
    }


def _import_paths(modules: Iterable[Path]) -> list[str]:
    """List the directories to import from: the given ones, that of job-drain, and then those of PYTHONPATH."""
    packages = Path(drain.__file__).parents[1]
    return [*map(str, modules), str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
