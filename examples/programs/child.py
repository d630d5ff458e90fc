"""One child process: its signals and its log."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from drain.embedded import signals
from drain.errors import DrainError

# Number of lines that an error quotes from the end of the log.
_LAST_LINES = 3


class Child:
    """A Python program in a session of its own, its output appended to a log.

    Args:
        name: Name for people.
        arguments: Arguments of the interpreter.
        environment: The whole environment of the child.
        log: File that the output is appended to.
    """

    def __init__(
        self, name: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal; None while the child runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> None:
        """Wait until the child has ended, but no longer than `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, seconds))

    def terminate(self) -> None:
        """Send SIGTERM: the child finishes its current work and ends."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL the child, not its own children, and return when it is gone."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP the child and its children: they stand still, and keep their locks and connections."""
        if self.exit_code() is None:
            signals.pause(self.pid)

    def resume(self) -> None:
        """SIGCONT the child and its children."""
        if self.exit_code() is None:
            signals.resume(self.pid)

    def children(self) -> list[int]:
        """Find the process ids of its children; none if it has ended."""
        return signals.children(self.pid) if self.exit_code() is None else []

    def last_lines(self) -> str:
        """Quote the end of the log, on one line."""
        lines = [line.strip() for line in self._lines() if line.strip()]
        return " | ".join(lines[-_LAST_LINES:]) or "(empty)"

    def events(self, name: str) -> list[dict[str, Any]]:
        """Read the log lines of one event so far."""
        return [line for text in self._lines() if (line := _parsed(text)).get("event") == name]

    def death(self) -> DrainError:
        """Build an error that says how the child ended, and quotes the end of its log."""
        code = self.exit_code() or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return DrainError(f"the {self.name} {how}; its log ends: {self.last_lines()}")

    def _lines(self) -> list[str]:
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()


def _parsed(text: str) -> dict[str, Any]:
    # A killed process may have written half a line.
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}
