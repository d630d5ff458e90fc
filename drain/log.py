"""Log lines: plain lines on a terminal, JSON elsewhere; and the running job, in the records of every logger.

`extra` may name the fields of the job itself: its own then win. Python refuses an `extra` that names an attribute that
a record factory has set, so the fields enter a record only when its message is read, as every formatter does first.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any

from drain.formatting import visible

# Attributes of every record; all others are fields of the event.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

# Fields of the job in whose thread or task a record was made, which are None outside of jobs.
JOB_FIELDS = ("job_id", "job_name", "attempt")
_NO_JOB = (None, None, None)

# Id, name and number of the attempt that is running here.
JobFields = tuple[int, str, int]


class _OfJob:
    """A log record with the job that was running where the record was made."""

    __slots__ = ("_job",)

    _job: JobFields | tuple[None, None, None]

    def getMessage(self) -> str:  # noqa: N802  (it overrides)
        """Return the message; from now on the record has the fields of the job."""
        for name, value in zip(JOB_FIELDS, self._job, strict=True):
            self.__dict__.setdefault(name, value)
        return super().getMessage()  # type: ignore[misc, no-any-return]

    def __getattr__(self, name: str) -> object:
        # For a filter that asks before.
        if name in JOB_FIELDS:
            return self._job[JOB_FIELDS.index(name)]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class JobRecord(_OfJob, logging.LogRecord):
    """A log record with the fields of the running job."""


@cache
def _with_job(kind: Any) -> Any:
    """Return the class of records that are of this kind, and have the fields of the running job."""
    if kind is logging.LogRecord:
        return JobRecord
    return kind if issubclass(kind, _OfJob) else type(kind.__name__, (_OfJob, kind), {})


def _no_job() -> None:
    return None


_read: Callable[[], JobFields | None] = _no_job


def carry_job(read: Callable[[], JobFields | None] | None = None) -> None:
    """Let every log record carry the running job: `%(job_id)s`, `%(job_name)s`, `%(attempt)s` in any formatter.

    Workers call this. Another process of an application calls it if its formatters have these fields, which are then
    None. It may be called again. A factory that makes records of its own still makes them.

    Args:
        read: Returns the fields of the job that is running in this thread or task; None if none is.
    """
    global _read  # noqa: PLW0603
    _read = read or _read
    make = logging.getLogRecordFactory()
    if getattr(make, "carries_job", False):
        return

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made = make(*args, **kwargs)
        kind = _with_job(type(made))  # type: ignore[arg-type]
        record = kind.__new__(kind)
        record.__dict__.update(made.__dict__)
        record._job = _read() or _NO_JOB
        return record  # type: ignore[no-any-return]

    factory.carries_job = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(factory)


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
        more = {
            name: value
            for name, value in vars(record).items()
            if name not in _STANDARD and (value is not None or name not in JOB_FIELDS)
        }
        try:
            return json.dumps(line | more, default=str, allow_nan=False)
        # RQ adds the arguments of a plain job that failed; they may be of types that cannot be written.
        except Exception:  # noqa: BLE001
            return json.dumps(line)


class Lines(logging.Formatter):
    """Time, level, job and message; further lines of a message are indented, so that none looks like a log line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (it overrides)
        """Put the running job, if there is one, before the message."""
        job_id, job_name, attempt = getattr(record, "_job", _NO_JOB)
        if job_id is not None:
            record.message = f"[job {job_id} {job_name}, attempt {attempt}] {record.message}"
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """Render one record, with the traceback of a job that has failed, where the record has it."""
        text = "\n".join([super().format(record), *filter(None, [getattr(record, "traceback", None)])])
        return visible(text, lines=True).replace("\n", "\n  ")


def configure(level: str = "INFO") -> None:
    """Send log lines to standard error: plain lines if that is a terminal, else JSON.

    A line that cannot be written, to a closed terminal or a full disk, is dropped.

    Args:
        level: Lowest level that is logged.
    """
    logging.raiseExceptions = False
    # Before any module of jobs is imported, whose formatters may have the fields of jobs.
    carry_job()
    handler = logging.StreamHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(Lines("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    else:
        handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
