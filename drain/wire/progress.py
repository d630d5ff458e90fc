"""Progress of running jobs, as their attempts report it: kept in Redis for half a minute after each write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import redis

from drain.wire import scripts
from drain.wire.connection import connect, describe, reachable
from drain.wire.keys import progress_key

# Lifetime of what is written: progress that nobody repeats, since its worker died, is gone after this time.
KEPT_SECONDS = 30
# Number of jobs that one call writes: Lua takes no more than some thousand arguments at once.
_JOBS_PER_CALL = 1000


class Written(NamedTuple):
    """The progress of one attempt, to be written.

    Attributes:
        job_id: The job.
        token: Fencing token of the attempt.
        text: JSON object with that `token`; empty to delete what the attempt has written.
    """

    job_id: int
    token: int
    text: str


class ProgressBoard:
    """The progress of the jobs of one namespace. Safe to use from several threads.

    Args:
        client: Connection to Redis.
        where: Its URL, for people.
        namespace: First part of our RQ ids.
    """

    def __init__(self, client: redis.Redis, where: str, namespace: str) -> None:
        self._redis = client
        self._where = where
        self._namespace = namespace
        self._write = client.register_script(scripts.load("progress"))

    @classmethod
    def at(cls, redis_url: str, namespace: str) -> ProgressBoard:
        """Make the board of a Redis; connects at its first use."""
        return cls(connect(redis_url), describe(redis_url), namespace)

    def write(self, all_written: Sequence[Written]) -> None:
        """Write the progress of attempts, but for those whose jobs have a later attempt; one call for a thousand.

        Raises:
            UnavailableError: Redis.
        """
        for first in range(0, len(all_written), _JOBS_PER_CALL):
            part = all_written[first : first + _JOBS_PER_CALL]
            with reachable(self._where):
                self._write(
                    keys=[progress_key(self._namespace, each.job_id) for each in part],
                    args=[KEPT_SECONDS, *(field for each in part for field in each[1:])],
                )

    def read(self, job_id: int) -> dict[str, Any] | None:
        """Read what the latest attempt of a job has written; None if there is nothing that can be read.

        Raises:
            UnavailableError: Redis.
        """
        with reachable(self._where):
            try:
                text: Any = self._redis.get(progress_key(self._namespace, job_id))
            except redis.ResponseError:
                # Another program has written something else there.
                return None
        return _read(text)

    def read_many(self, job_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Read what the latest attempts of jobs have written, where that can be read; one exchange for all.

        Raises:
            UnavailableError: Redis.
        """
        if not job_ids:
            return {}
        with reachable(self._where):
            # MGET answers nothing for a key that is no string.
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
