"""The programs of a demonstration: started together, hurt on purpose, and never left behind."""

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

_STOP_SECONDS = 10.0

# Reads the pids that run, the latest line counts; once nobody can write any more, ends them. One that
# stands still heeds no signal before the one that lets it go on.
_GUARD = """
while read -r line; do pids=$line; done
[ -z "$pids" ] || { kill -s TERM $pids; kill -s CONT $pids; }
"""


class Processes:
    """Child processes that end with the block, and even if this process is killed.

    They run in sessions of their own: Ctrl-C reaches this process alone, which stops them in order. A name
    may be used again once its process has ended; its log goes on.

    Args:
        directory: Where their logs are written.
        variables: Environment variables to give to them, in the place of all DRAIN_* ones.
        modules: Where to import from, besides job-drain itself.
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
        self._guard = Guard(_GUARD)
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
        """Whether this process has done its work and ended.

        Raises:
            DrainError: It ended otherwise; the text says how, and quotes the end of its log.
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
        """Make sure that these still run; all that have been started if none is named.

        Raises:
            DrainError: One has ended; the text says how, and quotes the end of its log.
        """
        for name in names or list(self._running):
            child = self._running[name]
            if self.has_ended(name):
                raise child.death()

    def running(self) -> list[Child]:
        """Those that were started, and have not been seen to end."""
        return list(self._running.values())

    def last_lines(self, name: str) -> str:
        """The end of the log of one that runs, on one line."""
        return self._running[name].last_lines()

    def kill(self, child: Child) -> None:
        """SIGKILL a process, not its children, and return when it is gone."""
        child.kill()
        self.forget(child.name)

    def forget(self, name: str) -> None:
        """Be done with a process that has ended."""
        # The guard has to forget it too: its pid may soon be that of somebody else's process.
        del self._running[name]
        self._note_for_guard()

    def stop(self) -> None:
        """End all of them by SIGTERM, and what does not end by SIGKILL."""
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
    """Let SIGTERM end the block as an exception does, so that whatever it has started is ended too."""
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
    """Those given and where job-drain itself is, before whatever the caller has set."""
    packages = Path(drain.__file__).parents[1]
    return [*map(str, modules), str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
