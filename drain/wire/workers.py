"""Workers in RQ's data: counted, shown to RQ's tools, and removed once they have died. Nothing of a job is read.

Stock `rq worker`s and the processes of `drain work` register alike: a key in a set for each of their queues, and a
hash under that key that expires some time after the last heartbeat (8 minutes for `rq worker`, 2 for `drain work`).
The sets are cleaned up only now and then, so the hash decides.

A process of `drain work` may register two workers: `<name>.tracked` runs tracked jobs, and its companion `<name>`
runs plain RQ jobs only.
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
# Field of the hash of a process of `drain work`: whether it runs as many jobs as it can, and has ended none lately.
IS_FULL = "drain_full"
FULL, NOT_FULL = "1", "0"
_FIELDS = ("hostname", "pid", "queues", "state", IS_FULL)
# Digits that no process id has.
_DIGITS = 12
# Time after which the data about a job that a worker runs expires; it is written again every few seconds.
_EXECUTION_SECONDS = 120


class Worker(NamedTuple):
    """Live worker that runs tracked jobs.

    Attributes:
        host: Name of its host.
        pid: Process id there; 0 if unknown.
        queues: Names of its queues, in its order; empty if unknown.
        is_free: It could begin a job at once. A process of `drain work` says so itself; an older one, and a stock
            `rq worker`, is free while it runs nothing.
    """

    host: str
    pid: int
    queues: tuple[str, ...]
    is_free: bool


def read_workers(client: redis.Redis, queues: Sequence[str]) -> dict[str, list[Worker]]:
    """Read the live workers of each queue that run tracked jobs; two round trips for all queues.

    Raises:
        redis.RedisError: Redis does not answer.
    """
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
        # A key that is no set holds no workers.
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
    """Remove a worker whose process has died from RQ's sets, unless another process has its name by now.

    Args:
        client: Connection to Redis; the caller translates its errors.
        name: Name of the worker, as RQ shows it.
        pid: Id of the process that has died.
        queues: Names of its queues.
    """
    key = worker_key(name)
    keys = [key, WORKERS, *map(queue_workers_key, queues)]
    client.eval(scripts.load("forget_worker"), len(keys), *keys, str(pid))


class WorkerPresence:
    """Data about workers of `drain work` that RQ's tools show. Raises UnavailableError as `RedisConnection` does.

    Args:
        client: Connection to Redis.
        where: Its URL, for people.
    """

    def __init__(self, client: redis.Redis, where: str) -> None:
        self._redis = client
        self._where = where
        self._show_job = client.register_script(scripts.load("show_job"))

    def show_worker(
        self, key: str, fields: Mapping[str, str], counts: Mapping[str, float], ttl_seconds: int
    ) -> None:
        """Write what a worker does into its hash.

        Args:
            key: Key of the hash.
            fields: Fields to set; "" deletes the field.
            counts: Fields to increase, and by how much.
            ttl_seconds: Seconds until the hash expires.
        """
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
        """Write which worker runs a job, if the hash of the job is there; a thin delivery gets one for a while."""
        if is_thin(rq_id):
            with reachable(self._where):
                write_hash(self._redis, rq_id, queue, job_name, timeout_seconds, seconds=_EXECUTION_SECONDS)
        keys = [job_key(rq_id), execution_key(rq_id), f"{worker_key(worker_name)}:executions"]
        with reachable(self._where):
            self._show_job(keys, [rq_id, worker_name, time(), _EXECUTION_SECONDS])

    def forget_worker(self, name: str, pid: int, queues: Collection[str]) -> None:
        """Remove a worker whose process has died from RQ's sets; the arguments are those of the function."""
        with reachable(self._where):
            forget_worker(self._redis, name, pid, queues)
