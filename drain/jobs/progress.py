"""Progress of a running job, as `current_job().progress(done, total)` reports it, and `progress` reads it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeGuard

from drain.config import VARIABLES, Settings
from drain.errors import ConfigError, SelectionError

if TYPE_CHECKING:
    from drain.wire.progress import ProgressBoard

# Upper bound of ids, and of what a job may report.
_MOST = 2**63 - 1
# Redis servers to which this process keeps a connection, for `progress`.
_MOST_BOARDS = 8


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a running job.

    Attributes:
        done: Number of steps that are done.
        total: Number of all steps; None if the job has not told.
        text: A word of the job about its present step; None if it has told none.
        attempt: Number of the attempt that has reported this; 1 for the first.
        reported_at: When it was reported, to half a second, by the clock of the worker.
    """

    done: float
    total: float | None
    text: str | None
    attempt: int
    reported_at: datetime

    @property
    def fraction(self) -> float | None:
        """Part that is done, from 0 to 1; None without a total."""
        if self.total is None:
            return None
        return self.done / self.total if self.total else 1.0


def progress(job_id: int, redis_url: str | None = None, *, namespace: str | None = None) -> Progress | None:
    """Read the progress of a running job.

    One GET in Redis, on a connection that this process keeps. In an `async def` function:
    `await asyncio.to_thread(drain.progress, job_id)`.

    Args:
        job_id: The job.
        redis_url: URL of the Redis of the workers; DRAIN_REDIS_URL by default.
        namespace: First part of the RQ ids; DRAIN_NAMESPACE by default, or else the name of the database in
            DRAIN_DATABASE_URL.

    Returns:
        What its attempt has reported last. None if the job does not run or has reported nothing; up to half a minute
        after the death of a worker still what that one had reported.

    Raises:
        SelectionError: `job_id` is no id.
        ConfigError: No Redis is named, or the namespace is not known.
        UnavailableError: Redis cannot be reached.
    """
    if type(job_id) is not int or not 0 <= job_id <= _MOST:
        raise SelectionError(f"the id of a job is a whole number, not {job_id!r:.60}")
    found = _board(*_place(redis_url, namespace)).read(job_id)
    return _progress(found) if found else None


def fields_of(found: dict[str, Any], token: int) -> dict[str, Any] | None:
    """Return what `drain show` prints of the progress of an attempt; None if another attempt has reported it."""
    read = _progress(found) if found.get("token") == token else None
    if read is None:
        return None
    return {"done": read.done, "total": read.total, "text": read.text, "reported_at": read.reported_at}


def _place(redis_url: str | None, namespace: str | None) -> tuple[str, str]:
    """Return the URL and the namespace, from the environment where they are not given."""
    texts = {name: os.environ.get(VARIABLES[name]) for name in ("database_url", "redis_url", "namespace")}
    given = {"redis_url": redis_url, "namespace": namespace}
    texts |= {name: text for name, text in given.items() if text is not None}
    if not texts["database_url"]:
        if not texts["namespace"]:
            raise ConfigError(
                "the namespace of the jobs is not known: set DRAIN_DATABASE_URL or DRAIN_NAMESPACE, or pass namespace="
            )
        # Its name would have been the namespace.
        texts["database_url"] = "postgresql:///"
    settings = _settings(tuple(texts.items()))
    return settings.required_redis_url, settings.namespace


@lru_cache
def _settings(texts: tuple[tuple[str, str | None], ...]) -> Settings:
    return Settings.from_texts(dict(texts))


@lru_cache(_MOST_BOARDS)
def _board(redis_url: str, namespace: str) -> ProgressBoard:
    # Here, since an application that only stages needs no client of Redis.
    from drain.wire.progress import ProgressBoard

    return ProgressBoard.at(redis_url, namespace)


def _progress(found: dict[str, Any]) -> Progress | None:
    """Return what was found in Redis; None if a program of others has written it."""
    done, total, text = (found.get(name) for name in ("done", "total", "text"))
    attempt, at = found.get("attempt"), found.get("at")
    if not (_is_number(done) and _is_number(attempt) and _is_number(at)):
        return None
    if not (total is None or _is_number(total)) or not (text is None or isinstance(text, str)):
        return None
    try:
        reported_at = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return Progress(done, total, text, int(attempt), reported_at)


def _is_number(value: object) -> TypeGuard[float]:
    return type(value) in (int, float) and 0 <= value <= _MOST  # type: ignore[operator]
