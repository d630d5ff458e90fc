"""Lines on the terminal, each beginning with the name of the program that wrote it."""

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
# Log events of a worker that ends: another line says why. RQ's own steps are left out too.
_LEFT_OUT = frozenset({"stopping", "ended"})
_LEVELS = {"warning": "yellow", "error": "red", "critical": "red"}


class Console:
    """Writes whole lines to standard output, from any thread; in colour if that is a terminal."""

    def __init__(self) -> None:
        self._lock = Lock()
        # None lets click omit colours unless standard output is a terminal.
        self._color = False if os.environ.get("NO_COLOR") else None

    def say(self, name: str, text: str, colour: str | None = None) -> None:
        """Write a text of one or more lines under the name of a program.

        Args:
            name: `enqueuer`, `worker`, `postgres`, `redis` or `dev`.
            text: Text to write; a character that a terminal would obey is shown as its escape.
            colour: Colour of the text.
        """
        prefix = click.style(f"{name:<{_WIDTH}} |", fg=_COLOURS[name])
        for line in visible(text, lines=True).splitlines() or [""]:
            self._write(f"{prefix} {click.style(line, fg=colour) if colour else line}".rstrip())

    def relay(self, name: str, line: str) -> None:
        """Write a line of a program's output: a log line as its message, any other line as it is."""
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
        # The terminal may be gone; the programs end in order all the same.
        with self._lock, suppress(OSError):
            click.echo(line, color=self._color)


def _record(line: str) -> dict[str, Any] | None:
    """Read the fields of one of our log lines; None for any other line."""
    if not line.startswith('{"time": '):
        return None
    with suppress(ValueError):
        record = json.loads(line)
        if isinstance(record, dict) and {"level", "logger", "message"} <= record.keys():
            return record
    return None
