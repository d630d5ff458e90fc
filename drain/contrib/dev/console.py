"""Output on the terminal."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from threading import Lock
from typing import Any

import click

from drain.formatting import visible

_COLOURS = {"enqueuer": "cyan", "worker": "green", "postgres": "magenta", "redis": "magenta", "dev": "blue"}
_WIDTH = max(map(len, _COLOURS))
# Another line explains why a worker ends.
_LEFT_OUT = frozenset({"stopping", "ended"})
_LEVELS = {"warning": "yellow", "error": "red", "critical": "red"}


class Console:
    """Writes lines to standard output from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        # None lets click omit colours unless standard output is a terminal.
        self._color = False if os.environ.get("NO_COLOR") else None

    def say(self, name: str, text: str, colour: str | None = None) -> None:
        """Write a program's lines, with control characters escaped."""
        prefix = click.style(f"{name:<{_WIDTH}} |", fg=_COLOURS[name])
        for line in visible(text, lines=True).splitlines() or [""]:
            self._write(f"{prefix} {click.style(line, fg=colour) if colour else line}".rstrip())

    def relay(self, name: str, line: str) -> None:
        """Write a program's line; of a log line, only the message."""
        record = _record(line)
        if record is None:
            self.say(name, line)
            return
        if record["level"] == "info" and (
            record.get("event") in _LEFT_OUT or record["logger"] == "rq.worker"
        ):
            return
        message = str(record["message"])
        if traceback := record.get("traceback"):
            message = f"{message}\n{traceback}"
        self.say(name, message, _LEVELS.get(record["level"]))

    def _write(self, line: str) -> None:
        # Programs end in order even if the terminal has gone.
        with self._lock, suppress(OSError):
            click.echo(line, color=self._color)


def _record(line: str) -> dict[str, Any] | None:
    if not line.startswith('{"time": '):
        return None
    with suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict) and {"level", "logger", "message"} <= record.keys():
            return record
    return None
