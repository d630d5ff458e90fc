"""Log lines: plain lines on a terminal, JSON elsewhere."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from drain.visible import visible

# Attributes of every record; all others are fields of the event.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        more = {name: value for name, value in vars(record).items() if name not in _STANDARD}
        try:
            return json.dumps(line | more, default=str, allow_nan=False)
        # RQ adds the arguments of a plain job that failed; they may be of types that cannot be written.
        except Exception:  # noqa: BLE001
            return json.dumps(line)


class Lines(logging.Formatter):
    """Time, level and message; further lines of a message are indented, so that none looks like a log line."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        return visible(super().format(record), lines=True).replace("\n", "\n  ")


def configure(level: str = "INFO") -> None:
    """Send log lines to standard error: plain lines if that is a terminal, else JSON.

    A line that cannot be written, to a closed terminal or a full disk, is dropped.

    Args:
        level: Lowest level that is logged.
    """
    logging.raiseExceptions = False
    handler = logging.StreamHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(Lines("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    else:
        handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
