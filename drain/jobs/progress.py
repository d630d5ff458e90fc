"""Progress reported by `current_job().progress`."""

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

_MOST = 2**63 - 1
# Cached Redis connections.
_MOST_BOARDS = 8


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a running job.

    Attributes:
        done: Steps done.
        total: All steps; None if unknown.
        text: Description of the current step, if any.
        attempt: Number of the attempt, from 1.
        reported_at: Time of the report, to half a second, by the worker's clock.
    """

    done: float
    total: float | None
    text: str | None
    attempt: int
    reported_at: datetime

    @property
    def fraction(self) -> float | None:
        """Fraction done, from 0 to 1; None without a total."""
        if self.total is None:
            return None
        return self.done / self.total if self.total else 1.0


def progress(job_id: int, redis_url: str | None = None, *, namespace: str | None = None) -> Progress | None:
    """Read a running job's progress: one GET on a cached connection.

    In an `async def` function: `await asyncio.to_thread(drain.progress, job_id)`.

    Args:
        job_id: Id of the job.
        redis_url: The workers' Redis; DRAIN_REDIS_URL by default.
        namespace: Prefix of RQ ids; by default DRAIN_NAMESPACE, or the database name in DRAIN_DATABASE_URL.

    Returns:
        The latest report, which outlives its worker by up to half a minute. None without one, or if the job is not
        running.

    Raises:
        SelectionError: Invalid id.
        ConfigError: Redis or namespace are unknown.
        UnavailableError: Redis cannot be reached.
    """
    if type(job_id) is not int or not 0 <= job_id <= _MOST:
        raise SelectionError(f"a job id must be a whole number, not {job_id!r:.60}")
    found = _board(*_place(redis_url, namespace)).read(job_id)
    return _progress(found) if found else None


def fields_of(found: dict[str, Any], token: int) -> dict[str, Any] | None:
    """Progress for `drain show`; None if another attempt reported it."""
    read = _progress(found) if found.get("token") == token else None
    if read is None:
        return None
    return {"done": read.done, "total": read.total, "text": read.text, "reported_at": read.reported_at}


def _place(redis_url: str | None, namespace: str | None) -> tuple[str, str]:
    texts = {name: os.environ.get(VARIABLES[name]) for name in ("database_url", "redis_url", "namespace")}
    given = {"redis_url": redis_url, "namespace": namespace}
    texts |= {name: text for name, text in given.items() if text is not None}
    if not texts["database_url"]:
        if not texts["namespace"]:
            raise ConfigError(
                "the namespace of the jobs is unknown: set DRAIN_DATABASE_URL or DRAIN_NAMESPACE, or pass namespace="
            )
        # Only its name would matter.
        texts["database_url"] = "postgresql:///"
    settings = _settings(tuple(texts.items()))
    return settings.required_redis_url, settings.namespace


@lru_cache
def _settings(texts: tuple[tuple[str, str | None], ...]) -> Settings:
    return Settings.from_texts(dict(texts))


@lru_cache(_MOST_BOARDS)
def _board(redis_url: str, namespace: str) -> ProgressBoard:
    # Applications that only stage need no Redis client.
    from drain.wire.progress import ProgressBoard

    return ProgressBoard.at(redis_url, namespace)


def _progress(found: dict[str, Any]) -> Progress | None:
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
