"""Traces of jobs, kept for an hour."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from drain.errors import UnavailableError
from drain.wire.connection import RedisConnection, reachable
from drain.wire.keys import trace_key

log = logging.getLogger(__name__)

_KEPT_SECONDS = 3600
_HOPS = ("pushed", "popped", "begun", "ended")


class Traces(RedisConnection):
    """Traces of a namespace. Thread-safe."""

    def __init__(self, redis_url: str, namespace: str) -> None:
        super().__init__(redis_url)
        self._namespace = namespace

    def note(self, hops: Iterable[tuple[int, Mapping[str, float]]]) -> None:
        """Record hops in Unix time; dropped without Redis."""
        try:
            with reachable(self.where):
                pipeline: Any = self._redis.pipeline(transaction=False)
                for job_id, times in hops:
                    key = trace_key(self._namespace, job_id)
                    pipeline.hset(key, mapping={hop: f"{at:.6f}" for hop, at in times.items()})
                    pipeline.expire(key, _KEPT_SECONDS)
                pipeline.execute()
        except UnavailableError as error:
            log.debug("hops are not noted: %s", error, extra={"event": "hops_not_noted"})

    def read(self, job_id: int) -> dict[str, datetime]:
        """Read a job's valid hops."""
        with reachable(self.where):
            found: Any = self._redis.hmget(trace_key(self._namespace, job_id), _HOPS)
        times: dict[str, datetime] = {}
        for hop, at in zip(_HOPS, found, strict=True):
            with suppress(TypeError, ValueError, OverflowError, OSError):
                times[hop] = datetime.fromtimestamp(float(at), UTC)
        return times
