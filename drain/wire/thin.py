"""Thin deliveries: ids without hashes, where only `drain work` listens.

`drain work` claims by id alone. A stock `rq worker` drops the id as a deleted job, and redelivery pushes a whole one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import redis

from drain.wire import scripts
from drain.wire.connection import reachable
from drain.wire.jobs import tracked
from drain.wire.keys import job_key, namespace_key, queue_workers_key, whole_key
from drain.wire.namespace_guard import Ownership, read_owner

# 3 ms of Redis' time. Lua takes at most 8000 arguments.
IDS_PER_CALL = 5000
NEEDS_NO_HASH = "drain"
# Until stock workers have re-registered, with their next job.
_WHOLE_SECONDS = 3600


class ThinDeliveries:
    """Pushes thin ids, and finds queues that allow them."""

    def __init__(self, client: redis.Redis, where: str, namespace: str, owners: Ownership) -> None:
        self._redis = client
        self._where = where
        self._namespace = namespace
        self._owners = owners
        self._push = client.register_script(scripts.load("owners", "push_thin"))
        self._read_listeners = client.register_script(scripts.load("need_no_hash"))

    def push(self, queue: str, rq_ids: Sequence[str]) -> Any:
        """Append up to `IDS_PER_CALL` ids; returns the script's reply."""
        owners = self._owners
        with reachable(self._where):
            arguments = [owners.installation, owners.label, owners.key, queue, *rq_ids]
            return owners.mending(lambda: self._push(args=arguments))

    def need_no_hash(self, queues: Sequence[str]) -> set[str]:
        """Return queues where only our `drain work` listens."""
        keys = [whole_key(self._namespace)]
        for queue in queues:
            keys += queue_workers_key(queue), whole_key(self._namespace, queue)
        with reachable(self._where):
            answers: Any = self._read_listeners(keys=keys, args=[NEEDS_NO_HASH, self._namespace])
        return {queue for queue, answer in zip(queues, answers, strict=True) if answer}

    def need_hashes(self, queue: str | None = None) -> None:
        """Require hashes in a queue, or in all, for an hour, across leaders."""
        with reachable(self._where):
            self._redis.set(whole_key(self._namespace, queue), "", ex=_WHOLE_SECONDS)


def write_hash(
    client: redis.Redis, rq_id: str, queue: str, job_name: str, timeout_seconds: int | None, *, seconds: int
) -> None:
    """Write a thin delivery's hash for RQ's tools, for `seconds`; redis errors propagate."""
    namespace, job_id, delivery = rq_id.rsplit("-", 2)
    owner: Any = client.get(namespace_key(namespace))
    installation = read_owner(owner).installation if owner else ""
    whole = tracked(namespace, int(job_id), queue, job_name, timeout_seconds, int(delivery), installation)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    fields = {
        "status": "started",
        "origin": queue,
        "created_at": now,
        "enqueued_at": now,
        "timeout": whole.template.timeout,
        "description": whole.description,
        "data": whole.data,
    }
    with client.pipeline() as pipeline:
        pipeline.hset(job_key(rq_id), mapping=fields)  # type: ignore[arg-type]
        pipeline.expire(job_key(rq_id), seconds)
        pipeline.execute()
