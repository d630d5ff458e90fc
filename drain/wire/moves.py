"""Moves of popped ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from drain.wire import scripts
from drain.wire.connection import reachable
from drain.wire.ids import PoppedId, to_bytes
from drain.wire.keys import intermediate_key, queue_key


class ListMoves:
    """Moves ids for one worker."""

    def __init__(self, client: redis.Redis, where: str) -> None:
        self._redis = client
        self._where = where
        self._give_back_script = client.register_script(scripts.load("give_back_unbegun"))

    def give_back(self, popped: Sequence[tuple[str, str]]) -> None:
        """Return ids (queue, RQ id) to their lists' heads, in order."""
        with reachable(self._where), self._redis.pipeline(transaction=False) as pipeline:
            for queue, text in reversed(popped):
                rq_id = to_bytes(text)
                pipeline.lrem(intermediate_key(queue), 1, rq_id)  # type: ignore[arg-type]
                pipeline.lpush(queue_key(queue), rq_id)
            pipeline.execute()

    def give_back_unbegun(self, popped: PoppedId) -> bool:
        """Give a plain job back unless RQ has begun it; returns whether it did."""
        rq_id, queue = to_bytes(popped.rq_id), popped.queue
        keys: list[Any] = [queue_key(queue), intermediate_key(queue), b"rq:executions:" + rq_id]
        with reachable(self._where):
            return bool(self._give_back_script(keys, [rq_id]))

    def discard(self, popped: PoppedId) -> None:
        """Remove an id from the intermediate list."""
        with reachable(self._where):
            self._redis.lrem(intermediate_key(popped.queue), 1, to_bytes(popped.rq_id))  # type: ignore[arg-type]
