"""Registered workers. Redis data is untrusted: long texts are cut, invalid numbers ignored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

import redis

from drain.wire.connection import RedisConnection, reachable
from drain.wire.keys import WORKERS, queue_workers_key
from drain.wire.thin import NEEDS_NO_HASH

_FIELDS = (
    *("hostname", "pid", "queues", "state", "current_job", "birth", "last_heartbeat"),
    *("successful_job_count", "failed_job_count", NEEDS_NO_HASH),
)
_PREFIX, _TRACKED = "rq:worker:", ".tracked"
_LONGEST_TEXT = 300
# Per worker.
_MOST_QUEUES = 100
_MOST_NAMES = 20_000


class LiveWorker(NamedTuple):
    """Registered, unexpired worker process.

    Attributes:
        pid: 0 if unknown.
        state: RQ's busy, idle or suspended.
        rq_id: Job that its main thread has run for a second; "" without one.
        seen_at: Latest heartbeat, every 15 s.
        is_ours: `drain work`, not `rq worker`.
    """

    name: str
    host: str
    pid: int
    queues: tuple[str, ...]
    state: str
    rq_id: str
    born_at: datetime | None
    seen_at: datetime | None
    finished: int
    failed: int
    is_ours: bool


class LiveWorkers(RedisConnection):
    """Workers registered in a Redis."""

    def page(self, limit: int, after: str = "") -> tuple[list[LiveWorker], int]:
        """Read a page of workers by name, and the number of all.

        Omits expired entries, and companions of `drain work` for plain jobs.
        """
        with reachable(self.where):
            names = self._names(WORKERS)
            found: list[LiveWorker] = []
            wanted = [name for name in names if name > after]
            while wanted and len(found) < limit:
                found += self._read(wanted[:limit])
                wanted = wanted[limit:]
        return found[:limit], len(names)

    def at(self, queue: str, host: str, pid: int) -> list[LiveWorker]:
        """Find this process's workers of a queue."""
        with reachable(self.where):
            names = self._names(queue_workers_key(queue))
            return [each for each in self._read(names) if (each.host, each.pid) == (host, pid)]

    def _names(self, key: str) -> list[str]:
        names: set[str] = set()
        try:
            for each in self._redis.sscan_iter(key, count=1000):
                names.add(_text(each).removeprefix(_PREFIX))
                if len(names) >= _MOST_NAMES:
                    break
        except redis.ResponseError:
            # Another program uses the key.
            return []
        return sorted(name for name in names if name + _TRACKED not in names)

    def _read(self, names: Iterable[str]) -> list[LiveWorker]:
        asked = list(names)
        pipeline: Any = self._redis.pipeline(transaction=False)
        for name in asked:
            pipeline.hmget(_PREFIX + name, _FIELDS)
        answers = pipeline.execute(raise_on_error=False) if asked else []
        return [
            _worker(name, fields)
            for name, fields in zip(asked, answers, strict=True)
            # Expired, or not a hash.
            if isinstance(fields, list) and any(field is not None for field in fields)
        ]


def _worker(name: str, fields: Sequence[bytes | None]) -> LiveWorker:
    told = dict(zip(_FIELDS, fields, strict=True))
    texts = {field: _text(value or b"") for field, value in told.items()}
    queues = (told["queues"] or b"").decode(errors="replace").split(",")
    return LiveWorker(
        name=name[:_LONGEST_TEXT],
        host=texts["hostname"],
        pid=_number(texts["pid"]),
        queues=tuple(queue[:_LONGEST_TEXT] for queue in queues[:_MOST_QUEUES] if queue),
        state=texts["state"],
        rq_id=texts["current_job"],
        born_at=_time(texts["birth"]),
        seen_at=_time(texts["last_heartbeat"]),
        finished=_number(texts["successful_job_count"]),
        failed=_number(texts["failed_job_count"]),
        is_ours=told[NEEDS_NO_HASH] is not None,
    )


def _text(value: object) -> str:
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value))[:_LONGEST_TEXT]


def _number(text: str) -> int:
    # RQ's tools count in floats.
    with suppress(ValueError, OverflowError):
        number = float(text)
        return int(number) if 0 <= number < 2**53 else 0
    return 0


def _time(text: str) -> datetime | None:
    with suppress(ValueError, OverflowError):
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None
