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
from typing import Any

import redis

from drain.wire import scripts
from drain.wire.connection import reachable
from drain.wire.ids import is_thin
from drain.wire.keys import WORKERS, execution_key, job_key, queue_workers_key, worker_key
from drain.wire.thin import write_hash

_TRACKED = b".tracked"
# Time after which the data about a job that a worker runs expires; it is written again every few seconds.
_EXECUTION_SECONDS = 120


def count_workers(client: redis.Redis, queues: Sequence[str]) -> dict[str, int]:
    """Count the live workers of each queue that run tracked jobs; two round trips for all queues.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    registered = dict(zip(queues, _registered(client, queues), strict=True))
    live = _live(client, sorted(set[bytes]().union(*registered.values())))
    companions = {key.removesuffix(_TRACKED) for key in live if key.endswith(_TRACKED)}
    return {queue: len(keys & live - companions) for queue, keys in registered.items()}


def queues_of_workers(client: redis.Redis, queue: str) -> list[list[str]]:
    """List, for each live worker of a queue that runs tracked jobs, its queues in the order in which it takes them.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    (registered,) = _registered(client, [queue])
    live = _live(client, sorted(registered))
    companions = {key.removesuffix(_TRACKED) for key in live if key.endswith(_TRACKED)}
    with client.pipeline(transaction=False) as pipeline:
        for key in sorted(live - companions):
            pipeline.hget(key.decode(errors="replace"), "queues")
        answers: list[Any] = pipeline.execute(raise_on_error=False)
    named = (
        answer.decode(errors="replace").split(",") if isinstance(answer, bytes) else [] for answer in answers
    )
    return [names or [queue] for names in named]


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


def _live(client: redis.Redis, keys: Sequence[bytes]) -> set[bytes]:
    with client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.exists(key)
        answers = pipeline.execute()
    return {key for key, exists in zip(keys, answers, strict=True) if exists}


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
