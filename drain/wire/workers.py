"""RQ's list of workers, for what RQ itself cannot do: take one out that has died."""

from __future__ import annotations

from collections.abc import Collection

import redis

# The pid tells a worker that has died from one that has taken its name since; one that took leave has said so.
#
# KEYS: the worker's hash, the set of all workers, the sets of those of each queue. ARGV: pid.
_FORGET = """
local pid = redis.call('HGET', KEYS[1], 'pid')
if pid and (pid ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'death') == 1) then return 0 end
for place = 2, #KEYS do redis.call('SREM', KEYS[place], KEYS[1]) end
return redis.call('DEL', KEYS[1])
"""


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
