"""Log lines: for people on a terminal, JSON elsewhere."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from drain.visible import visible

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and whatever the event adds."""

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
        # RQ adds the arguments of a plain job that failed, which may be anything.
        except Exception:  # noqa: BLE001
            return json.dumps(line)


class Lines(logging.Formatter):
    """Time, level and message; whatever follows on further lines is indented, and cannot pass for a log line."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        return visible(super().format(record), lines=True).replace("\n", "\n  ")


def configure(level: str = "INFO") -> None:
    """Send what we log to standard error, in the form that suits it.

    A line that cannot be written is dropped: the terminal is gone, the disk is full.
    """
    logging.raiseExceptions = False
    handler = logging.StreamHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(Lines("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    else:
        handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
