"""One child process: its signals, and what it has written."""

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

_LAST_LINES = 3


class Child:
    """A Python program in a session of its own, its output appended to a log.

    Args:
        name: What people call it.
        words: Arguments of the interpreter.
        environment: All of its environment.
        log: Where its output goes.
    """

    def __init__(self, name: str, words: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, *words],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> None:
        """Return when it has ended, or after so many seconds."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, seconds))

    def terminate(self) -> None:
        """SIGTERM: it ends when it has done what it has in hand."""
        self._process.terminate()

    def kill(self) -> None:
        """SIGKILL it, not its children, and return when it is gone."""
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP it and its children: all stand still, and keep what they hold."""
        if self.exit_code() is None:
            signals.pause(self.pid)

    def resume(self) -> None:
        """SIGCONT it and its children."""
        if self.exit_code() is None:
            signals.resume(self.pid)

    def children(self) -> list[int]:
        """Process ids of its children."""
        return signals.children(self.pid) if self.exit_code() is None else []

    def last_lines(self) -> str:
        """The end of its log, on one line."""
        lines = [line.strip() for line in self._lines() if line.strip()]
        return " | ".join(lines[-_LAST_LINES:]) or "(empty)"

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its log lines of one event so far."""
        return [line for text in self._lines() if (line := _parsed(text)).get("event") == name]

    def death(self) -> DrainError:
        """An error that says how it ended, and quotes the end of its log."""
        code = self.exit_code() or 0
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return DrainError(f"the {self.name} {how}; its log ends: {self.last_lines()}")

    def _lines(self) -> list[str]:
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()


def _parsed(text: str) -> dict[str, Any]:
    # A killed process may have left half a line.
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}
