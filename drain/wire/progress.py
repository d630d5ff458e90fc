"""Progress of running jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import redis

from drain.wire import scripts
from drain.wire.connection import connect, describe, reachable
from drain.wire.keys import progress_key

# Progress of a dead worker then vanishes.
KEPT_SECONDS = 30
# Lua takes only some thousand arguments.
_JOBS_PER_CALL = 1000


class Written(NamedTuple):
    """Progress of one attempt: JSON with its fencing token; "" deletes it."""

    job_id: int
    token: int
    text: str


class ProgressBoard:
    """Progress of a namespace's jobs. Thread-safe."""

    def __init__(self, client: redis.Redis, where: str, namespace: str) -> None:
        self._redis = client
        self._where = where
        self._namespace = namespace
        self._write = client.register_script(scripts.load("progress"))

    @classmethod
    def at(cls, redis_url: str, namespace: str) -> ProgressBoard:
        """Return a board that connects on first use."""
        return cls(connect(redis_url), describe(redis_url), namespace)

    def write(self, all_written: Sequence[Written]) -> None:
        """Write progress, except for earlier attempts."""
        for first in range(0, len(all_written), _JOBS_PER_CALL):
            part = all_written[first : first + _JOBS_PER_CALL]
            with reachable(self._where):
                self._write(
                    keys=[progress_key(self._namespace, each.job_id) for each in part],
                    args=[KEPT_SECONDS, *(field for each in part for field in each[1:])],
                )

    def read(self, job_id: int) -> dict[str, Any] | None:
        """Read a job's valid progress."""
        with reachable(self._where):
            try:
                text: Any = self._redis.get(progress_key(self._namespace, job_id))
            except redis.ResponseError:
                # Another program uses the key.
                return None
        return _read(text)

    def read_many(self, job_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Read valid progress in one round trip."""
        if not job_ids:
            return {}
        with reachable(self._where):
            # MGET returns nil for other types.
            texts: Any = self._redis.mget([progress_key(self._namespace, job_id) for job_id in job_ids])
        found = {job_id: _read(text) for job_id, text in zip(job_ids, texts, strict=True)}
        return {job_id: progress for job_id, progress in found.items() if progress is not None}

    def close(self) -> None:
        """Close the connections."""
        self._redis.close()


def _read(text: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
