"""Queues in Redis: lists, bounds, workers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import redis

from drain.wire import scripts
from drain.wire.connection import RedisConnection, reachable
from drain.wire.ids import delivery_number, thin_id, tracked_id, tracked_id_pattern
from drain.wire.keys import QUEUES, SUSPENDED, bounds_key, queue_key, queue_of, queue_workers_key
from drain.wire.workers import Worker, read_workers

_LOOK_AHEAD = 50
# Some milliseconds of Redis' time.
_LISTS_PER_CALL = 200
_BOUNDS_SECONDS = 5
# 1 ms of Redis' time.
_IDS_PER_PAGE = 5000


class QueueReader(RedisConnection):
    """Reads RQ's queues; the leader publishes list bounds here."""

    def __init__(self, redis_url: str, namespace: str) -> None:
        super().__init__(redis_url)
        self.namespace = namespace
        self._tracked_id = tracked_id_pattern(namespace)
        self._heads = self._redis.register_script(scripts.load("heads"))

    def queues(self) -> set[str]:
        """Return RQ's queues."""
        with reachable(self.where):
            keys: Any = self._redis.smembers(QUEUES)
        return {queue_of(key.decode(errors="replace")) for key in keys}

    def workers(self, queues: Sequence[str]) -> dict[str, int]:
        """Count live workers for tracked jobs."""
        with reachable(self.where):
            return {queue: len(found) for queue, found in read_workers(self._redis, queues).items()}

    def crews(self, queues: Sequence[str]) -> dict[str, list[Worker]]:
        """Read live workers for tracked jobs."""
        with reachable(self.where):
            return read_workers(self._redis, queues)

    def depth(self, queue: str) -> int:
        """Return a list's length; 0 for other types."""
        (length,) = self._of_each([queue], lambda pipeline, key: pipeline.llen(key))
        return _number(length)

    def lengths(self, queues: Collection[str]) -> dict[str, tuple[int, int]]:
        """Return list lengths (0 for other types) and registered workers, dead ones included."""
        with reachable(self.where), self._redis.pipeline(transaction=False) as pipeline:
            for queue in queues:
                pipeline.llen(queue_key(queue))
                pipeline.scard(queue_workers_key(queue))
            answers = iter(pipeline.execute(raise_on_error=False))
        return {
            queue: (_number(length), _number(workers))
            for queue, length, workers in zip(queues, answers, answers, strict=True)
        }

    def show_bounds(self, bounds: Mapping[str, int]) -> None:
        """Publish list bounds briefly; dropped if Redis is out of memory."""
        key = bounds_key(self.namespace)
        with reachable(self.where), self._redis.pipeline() as pipeline:
            pipeline.hset(key, items=[item for pair in bounds.items() for item in pair])
            pipeline.expire(key, _BOUNDS_SECONDS)
            pipeline.execute(raise_on_error=False)

    def bound(self, queue: str) -> int | None:
        """Return a list's bound, if rows recently waited for room."""
        with reachable(self.where):
            bound: Any = self._redis.hget(bounds_key(self.namespace), queue)
        return None if bound is None else int(bound)

    def ids_before(self, queue: str, job_id: int, delivery: int, *, within: int) -> int | None:
        """Count ids ahead of a delivery; None beyond `within`."""
        makers = tracked_id, thin_id, partial(thin_id, notifies_end=True)
        rq_ids = (make(self.namespace, job_id, delivery) for make in makers)
        with reachable(self.where), self._redis.pipeline(transaction=False) as pipeline:
            for rq_id in rq_ids:
                pipeline.lpos(queue_key(queue), rq_id, maxlen=within)
            places = pipeline.execute(raise_on_error=False)
        return next((place for place in places if isinstance(place, int)), None)

    def is_suspended(self) -> bool:
        """Return whether `rq suspend` is in effect."""
        with reachable(self.where):
            return bool(self._redis.exists(SUSPENDED))

    def lowest_deliveries(self, queues: Sequence[str], *, up_to: int) -> dict[str, int | None]:
        """Return each queue's next delivery number.

        None if none of our own jobs is listed; 0 if unknown: not a list, or only other jobs at its head. Numbers above
        `up_to` are not ours.
        """
        heads: list[Any] = []
        with reachable(self.where):
            for first in range(0, len(queues), _LISTS_PER_CALL):
                keys = [queue_key(queue) for queue in queues[first : first + _LISTS_PER_CALL]]
                heads += self._heads(keys, [_LOOK_AHEAD])
        return {queue: self._lowest(head, up_to) for queue, head in zip(queues, heads, strict=True)}

    def not_lists(self, queues: Sequence[str]) -> list[str]:
        """Return these queues' keys that are not lists."""
        types = self._of_each(queues, lambda pipeline, key: pipeline.type(key))
        return [
            queue_key(queue)
            for queue, kind in zip(queues, types, strict=True)
            if kind not in (b"list", b"none")
        ]

    def listed(self, queue: str) -> Iterator[list[tuple[int, int]]]:
        """Yield pages of our tracked job ids and delivery numbers.

        Despite concurrent pops and pushes, an id listed throughout appears at least once.
        """
        # From the tail: pushes move ids towards later pages. From the head, pops would hide some.
        for last in count(-1, -_IDS_PER_PAGE):
            rq_ids = self._page(queue, last - _IDS_PER_PAGE + 1, last)
            if not rq_ids:
                return
            ours = filter(None, map(self._tracked_id.fullmatch, rq_ids))
            yield [(int(match[1]), int(match[2])) for match in ours]

    def _page(self, queue: str, first: int, last: int) -> list[bytes]:
        with reachable(self.where):
            try:
                ids: Any = self._redis.lrange(queue_key(queue), first, last)
            except redis.ResponseError as error:
                if not str(error).startswith("WRONGTYPE"):
                    raise
                return []
        return list(ids)

    def _lowest(self, head: list[bytes] | int, up_to: int) -> int | None:
        if isinstance(head, int):
            return 0
        numbers = (delivery_number(self.namespace, rq_id.decode(errors="replace")) for rq_id in head)
        unknown = None if len(head) < _LOOK_AHEAD else 0
        return next((number for number in numbers if number is not None and number <= up_to), unknown)

    def _of_each(self, queues: Sequence[str], ask: Callable[[Any, str], object]) -> list[Any]:
        with reachable(self.where), self._redis.pipeline(transaction=False) as pipeline:
            for queue in queues:
                ask(pipeline, queue_key(queue))
            return pipeline.execute(raise_on_error=False)


def _number(answer: Any) -> int:
    return 0 if isinstance(answer, redis.ResponseError) else int(answer)
