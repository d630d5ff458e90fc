"""The processes of the example: started together, watched together, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Self

import drain
from drain.errors import DrainError

_STOP_SECONDS = 10.0
_LAST_LINES = 3

# Reads the pids that run, the latest line counts; once nobody can write any more, ends them.
_GUARD = 'while read -r line; do pids=$line; done; [ -z "$pids" ] || kill -s TERM $pids'


class Processes:
    """Child processes that end with the block, and even if this process is killed.

    They run in sessions of their own: Ctrl-C reaches this process alone, which stops them in order.

    Args:
        directory: Where their logs are written.
        variables: Environment variables to give to them, in the place of all DRAIN_* ones.
    """

    def __init__(self, directory: Path, variables: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = _without_drain(os.environ) | {
            "PYTHONPATH": os.pathsep.join(_import_paths()),
            **variables,
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._guard is not None:
            self._guard.communicate(timeout=_STOP_SECONDS)

    def drain(self, name: str, *words: str) -> None:
        """Start a `drain` command."""
        self._start(name, "-c", "from cli import main; main()", *words)

    def module(self, name: str, *words: str) -> None:
        """Start a module, as `python -m` does."""
        self._start(name, "-m", *words)

    def has_ended(self, name: str) -> bool:
        """Whether this process has done its work and ended.

        Raises:
            DrainError: It ended otherwise; the text says how, and quotes the end of its log.
        """
        process = self._running.get(name)
        if process is None:
            return True
        code = process.poll()
        if code is None:
            return False
        self._forget(name)
        if code:
            raise self._death(name, code)
        return True

    def check(self, *names: str) -> None:
        """Make sure that these still run.

        Raises:
            DrainError: One has ended; the text says how, and quotes the end of its log.
        """
        for name in names:
            if self.has_ended(name):
                raise self._death(name, 0)

    def last_lines(self, name: str) -> str:
        """The end of a log, on one line."""
        text = self._log(name).read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return " | ".join(lines[-_LAST_LINES:]) or "(empty)"

    def stop(self) -> None:
        """End all of them by SIGTERM, and what does not end by SIGKILL."""
        for process in self._running.values():
            process.send_signal(signal.SIGTERM)
        deadline = monotonic() + _STOP_SECONDS
        for name, process in list(self._running.items()):
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - monotonic()))
            process.kill()
            process.wait()
            self._forget(name)

    def _start(self, name: str, *words: str) -> None:
        with self._log(name).open("wb") as log:
            self._running[name] = subprocess.Popen(
                [sys.executable, *words],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._tell_guard()

    def _forget(self, name: str) -> None:
        # The guard has to forget it too: its pid may soon be that of somebody else's process.
        del self._running[name]
        self._tell_guard()

    def _tell_guard(self) -> None:
        pids = " ".join(str(process.pid) for process in self._running.values())
        if self._guard is not None and self._guard.stdin is not None:
            with suppress(BrokenPipeError):
                self._guard.stdin.write(f"{pids}\n".encode())

    def _death(self, name: str, code: int) -> DrainError:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return DrainError(f"the {name} {how}; its log ends: {self.last_lines(name)}")

    def _log(self, name: str) -> Path:
        return self._directory / f"{name.replace(' ', '-')}.log"


def _without_drain(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in environment.items() if not name.startswith("DRAIN_")}


def _import_paths() -> list[str]:
    """Where the example and job-drain itself are, before whatever the caller has set."""
    example = Path(__file__).parents[1]
    packages = Path(drain.__file__).parents[1]
    return [str(example), str(packages), *filter(None, [os.environ.get("PYTHONPATH")])]
