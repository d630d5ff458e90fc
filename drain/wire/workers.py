"""Live workers of each queue, as RQ's books name them; nothing of a job is read; those that have died are taken out.

Stock `rq worker`s and the processes of `drain work` register alike: a key in a set for each of their queues, and a
hash under that key that expires some time after the last heartbeat (8 minutes for `rq worker`, 2 for `drain work`).
The sets are cleaned up only now and then, so the hash decides.

A process of `drain work` may register two workers: `<name>.tracked` takes tracked jobs, and its companion `<name>`
takes plain RQ jobs only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import redis

_TRACKED = b".tracked"
# The pid tells a worker that has died from one that has taken its name since; one that took leave has said so.
#
# KEYS: the worker's hash, the set of all workers, the sets of those of each queue. ARGV: pid.
_FORGET = """
local pid = redis.call('HGET', KEYS[1], 'pid')
if pid and (pid ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'death') == 1) then return 0 end
for place = 2, #KEYS do redis.call('SREM', KEYS[place], KEYS[1]) end
return redis.call('DEL', KEYS[1])
"""


def count_workers(client: redis.Redis, queues: Sequence[str]) -> dict[str, int]:
    """Number of live workers of each queue that take tracked jobs; two round trips for all queues.

    Raises:
        redis.RedisError: Redis.
    """
    registered = dict(zip(queues, _registered(client, queues), strict=True))
    live = _live(client, sorted(set[bytes]().union(*registered.values())))
    companions = {key.removesuffix(_TRACKED) for key in live if key.endswith(_TRACKED)}
    return {queue: len(keys & live - companions) for queue, keys in registered.items()}


def _registered(client: redis.Redis, queues: Sequence[str]) -> list[set[bytes]]:
    with client.pipeline(transaction=False) as pipeline:
        for queue in queues:
            pipeline.smembers(f"rq:workers:{queue}")
        answers: list[Any] = pipeline.execute(raise_on_error=False)
    for answer in answers:
        # A key that is no set registers nobody.
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
    """Take a worker whose process has died out of RQ's list, unless another process has its name by now.

    Args:
        client: The connection to Redis; what it raises is for the caller to translate.
        name: Name of the worker, as RQ shows it.
        pid: Id of the process that has died.
        queues: Names of its queues.
    """
    key = f"rq:worker:{name}"
    keys = [key, "rq:workers", *[f"rq:workers:{queue}" for queue in queues]]
    client.eval(_FORGET, len(keys), *keys, str(pid))
