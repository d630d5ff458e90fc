"""Workers in RQ's data: counted, shown and removed.

Workers register in a set per queue, and in a hash that expires after the last heartbeat (`rq worker`: 8 minutes,
`drain work`: 2). Sets are rarely cleaned, so the hash decides. `drain work` may register `<name>.tracked` with a
companion `<name>` for plain jobs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from time import time
from typing import Any, NamedTuple

import redis

from drain.wire import scripts
from drain.wire.connection import reachable
from drain.wire.ids import is_thin
from drain.wire.keys import WORKERS, execution_key, job_key, queue_workers_key, worker_key
from drain.wire.thin import write_hash

_TRACKED = b".tracked"
# Set by `drain work` if it runs all it can and no job ended recently.
IS_FULL = "drain_full"
FULL, NOT_FULL = "1", "0"
_FIELDS = ("hostname", "pid", "queues", "state", IS_FULL)
_DIGITS = 12
# Rewritten every few seconds.
_EXECUTION_SECONDS = 120


class Worker(NamedTuple):
    """Live worker for tracked jobs.

    Attributes:
        pid: 0 if unknown.
        queues: Empty if unknown.
        is_free: Could begin a job at once, as `drain work` reports; others are free if idle.
    """

    host: str
    pid: int
    queues: tuple[str, ...]
    is_free: bool


def read_workers(client: redis.Redis, queues: Sequence[str]) -> dict[str, list[Worker]]:
    """Read live workers for tracked jobs in two round trips; redis errors propagate."""
    registered = dict(zip(queues, _registered(client, queues), strict=True))
    live = _live(client, sorted(set[bytes]().union(*registered.values())))
    companions = {key.removesuffix(_TRACKED) for key in live if key.endswith(_TRACKED)}
    return {
        queue: [live[key] for key in sorted(keys & live.keys() - companions)]
        for queue, keys in registered.items()
    }


def _registered(client: redis.Redis, queues: Sequence[str]) -> list[set[bytes]]:
    with client.pipeline(transaction=False) as pipeline:
        for queue in queues:
            pipeline.smembers(queue_workers_key(queue))
        answers: list[Any] = pipeline.execute(raise_on_error=False)
    for answer in answers:
        # Other types hold no workers.
        if isinstance(answer, redis.RedisError) and "WRONGTYPE" not in str(answer):
            raise answer
    return [set() if isinstance(answer, redis.RedisError) else set(answer) for answer in answers]


def _live(client: redis.Redis, keys: Sequence[bytes]) -> dict[bytes, Worker]:
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.exists(key)
            pipeline.hmget(key.decode(errors="replace"), _FIELDS)
        answers: list[Any] = pipeline.execute(raise_on_error=False)
    found = dict(zip(keys, zip(answers[::2], answers[1::2], strict=True), strict=True))
    for exists, _ in found.values():
        if isinstance(exists, redis.RedisError):
            raise exists
    return {key: _worker(fields) for key, (exists, fields) in found.items() if exists}


def _worker(fields: Any) -> Worker:
    known = fields if isinstance(fields, list) else [None] * len(_FIELDS)
    host, pid, queues, state, full = ((each or b"").decode(errors="replace") for each in known)
    is_busy = full == FULL if full else state == "busy"
    return Worker(
        host,
        int(pid) if pid.isdecimal() and pid.isascii() and len(pid) < _DIGITS else 0,
        tuple(queue for queue in queues.split(",") if queue),
        is_free=not is_busy and state != "suspended",
    )


def forget_worker(client: redis.Redis, name: str, pid: int, queues: Collection[str]) -> None:
    """Remove a dead process's worker, unless its name was reused; redis errors propagate."""
    key = worker_key(name)
    keys = [key, WORKERS, *map(queue_workers_key, queues)]
    client.eval(scripts.load("forget_worker"), len(keys), *keys, str(pid))


class WorkerPresence:
    """Data about `drain work` for RQ's tools."""

    def __init__(self, client: redis.Redis, where: str) -> None:
        self._redis = client
        self._where = where
        self._show_job = client.register_script(scripts.load("show_job"))

    def show_worker(
        self, key: str, fields: Mapping[str, str], counts: Mapping[str, float], ttl_seconds: int
    ) -> None:
        """Write a worker's activity: "" deletes a field, counts are added."""
        with reachable(self._where), self._redis.pipeline(transaction=False) as pipeline:
            for name, text in fields.items():
                if name == "current_job":
                    pipeline.delete(f"{key}:executions")
                if text == "":
                    pipeline.hdel(key, name)
                else:
                    pipeline.hset(key, name, text)
            for name, more in counts.items():
                pipeline.hincrbyfloat(key, name, more)
            pipeline.expire(key, ttl_seconds)
            pipeline.execute()

    def show_job(
        self, rq_id: str, worker_name: str, *, queue: str, job_name: str, timeout_seconds: int | None
    ) -> None:
        """Show which worker runs a job; thin deliveries get a temporary hash."""
        if is_thin(rq_id):
            with reachable(self._where):
                write_hash(self._redis, rq_id, queue, job_name, timeout_seconds, seconds=_EXECUTION_SECONDS)
        keys = [job_key(rq_id), execution_key(rq_id), f"{worker_key(worker_name)}:executions"]
        with reachable(self._where):
            self._show_job(keys, [rq_id, worker_name, time(), _EXECUTION_SECONDS])

    def forget_worker(self, name: str, pid: int, queues: Collection[str]) -> None:
        """See `forget_worker`."""
        with reachable(self._where):
            forget_worker(self._redis, name, pid, queues)
