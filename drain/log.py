"""Log lines, plain or JSON, that carry the running job.

The job's fields enter a record only when its message is read: Python refuses an `extra` that names attributes set by a
record factory.
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

# Other attributes are fields of the event.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}

JOB_FIELDS = ("job_id", "job_name", "attempt")
_NO_JOB = (None, None, None)

# Id, name and attempt.
JobFields = tuple[int, str, int]


class _OfJob:
    __slots__ = ("_job",)

    _job: JobFields | tuple[None, None, None]

    def getMessage(self) -> str:  # noqa: N802  (it overrides)
        for name, value in zip(JOB_FIELDS, self._job, strict=True):
            self.__dict__.setdefault(name, value)
        return super().getMessage()  # type: ignore[misc, no-any-return]

    def __getattr__(self, name: str) -> object:
        # For filters, which run earlier.
        if name in JOB_FIELDS:
            return self._job[JOB_FIELDS.index(name)]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class JobRecord(_OfJob, logging.LogRecord):
    """Log record with the running job's fields."""


@cache
def _with_job(kind: Any) -> Any:
    if kind is logging.LogRecord:
        return JobRecord
    return kind if issubclass(kind, _OfJob) else type(kind.__name__, (_OfJob, kind), {})


def _no_job() -> None:
    return None


_read: Callable[[], JobFields | None] = _no_job


def carry_job(read: Callable[[], JobFields | None] | None = None) -> None:
    """Add `job_id`, `job_name` and `attempt` to all log records.

    Fields are None outside of jobs. Idempotent; other record factories still apply.
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
    """JSON lines."""

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
        # RQ adds a failed plain job's arguments, of any type.
        except Exception:  # noqa: BLE001
            return json.dumps(line)


class Lines(logging.Formatter):
    """Plain lines; indented continuations cannot imitate log lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  (it overrides)
        """Prefix the running job."""
        job_id, job_name, attempt = getattr(record, "_job", _NO_JOB)
        if job_id is not None:
            record.message = f"[job {job_id} {job_name}, attempt {attempt}] {record.message}"
        return super().formatMessage(record)

    def format(self, record: logging.LogRecord) -> str:
        """Render one record, and a failed job's traceback."""
        text = "\n".join([super().format(record), *filter(None, [getattr(record, "traceback", None)])])
        return visible(text, lines=True).replace("\n", "\n  ")


def configure(level: str = "INFO") -> None:
    """Log to standard error, in plain lines on a terminal, else JSON.

    Lines that cannot be written are dropped.
    """
    logging.raiseExceptions = False
    # Before job modules, whose formatters may use the job's fields.
    carry_job()
    handler = logging.StreamHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(Lines("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    else:
        handler.setFormatter(JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
