"""Queues as the drain and the audit see them: lists of ids, their bounds, and the workers registered for them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import redis

from drain.wire import scripts
from drain.wire.connection import RedisConnection, reachable
from drain.wire.ids import delivery_number, thin_id, tracked_id, tracked_id_pattern
from drain.wire.keys import QUEUES, SUSPENDED, bounds_key, queue_key, queue_of, queue_workers_key
from drain.wire.workers import Worker, read_workers

# Number of ids at the head of a list among which a job of ours is searched, behind jobs of others.
_LOOK_AHEAD = 50
# Upper bound of the lists whose heads one call reads: some milliseconds of Redis' time.
_LISTS_PER_CALL = 200
# Time after which a bound that no leader shows any more is gone.
_BOUNDS_SECONDS = 5
# Number of ids of a list that are read at a time: a millisecond of Redis' time.
_IDS_PER_PAGE = 5000


class QueueReader(RedisConnection):
    """Reads RQ's queues; the leader shows the bounds of their lists here. Errors are those of `RedisConnection`.

    Args:
        redis_url: URL of the Redis.
        namespace: First part of our RQ ids.

    Attributes:
        namespace: First part of our RQ ids.
    """

    def __init__(self, redis_url: str, namespace: str) -> None:
        super().__init__(redis_url)
        self.namespace = namespace
        self._tracked_id = tracked_id_pattern(namespace)
        self._heads = self._redis.register_script(scripts.load("heads"))

    def queues(self) -> set[str]:
        """Return the names of all queues that RQ knows."""
        with reachable(self.where):
            keys: Any = self._redis.smembers(QUEUES)
        return {queue_of(key.decode(errors="replace")) for key in keys}

    def workers(self, queues: Sequence[str]) -> dict[str, int]:
        """Count the live workers of each queue that run tracked jobs: `drain work` and `rq worker` alike."""
        with reachable(self.where):
            return {queue: len(found) for queue, found in read_workers(self._redis, queues).items()}

    def crews(self, queues: Sequence[str]) -> dict[str, list[Worker]]:
        """Read the live workers of each queue that run tracked jobs, the free ones and the busy ones."""
        with reachable(self.where):
            return read_workers(self._redis, queues)

    def depth(self, queue: str) -> int:
        """Return the length of the queue's list; 0 if the key is no list."""
        (length,) = self._of_each([queue], lambda pipeline, key: pipeline.llen(key))
        return _number(length)

    def lengths(self, queues: Collection[str]) -> dict[str, tuple[int, int]]:
        """Return the length of each queue's list, and the number of workers that have registered for the queue.

        One round trip for all. A key that is no list has the length 0; a worker that has died may still be registered.
        """
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
        """Show for some seconds the upper bounds of the lists of these queues, for which rows wait.

        A Redis that refuses to write, since its memory is full, shows nothing.
        """
        key = bounds_key(self.namespace)
        with reachable(self.where), self._redis.pipeline() as pipeline:
            pipeline.hset(key, items=[item for pair in bounds.items() for item in pair])
            pipeline.expire(key, _BOUNDS_SECONDS)
            pipeline.execute(raise_on_error=False)

    def bound(self, queue: str) -> int | None:
        """Return the upper bound of a list as the leader shows it; None if no row has lately waited for room in it."""
        with reachable(self.where):
            bound: Any = self._redis.hget(bounds_key(self.namespace), queue)
        return None if bound is None else int(bound)

    def ids_before(self, queue: str, job_id: int, delivery: int, *, within: int) -> int | None:
        """Count the ids before a delivery in its queue's list; None if it is not among the first `within` of them."""
        rq_ids = (make(self.namespace, job_id, delivery) for make in (tracked_id, thin_id))
        with reachable(self.where), self._redis.pipeline(transaction=False) as pipeline:
            for rq_id in rq_ids:
                pipeline.lpos(queue_key(queue), rq_id, maxlen=within)
            places = pipeline.execute(raise_on_error=False)
        return next((place for place in places if isinstance(place, int)), None)

    def is_suspended(self) -> bool:
        """Return True while `rq suspend` holds all workers."""
        with reachable(self.where):
            return bool(self._redis.exists(SUSPENDED))

    def lowest_deliveries(self, queues: Sequence[str], *, up_to: int) -> dict[str, int | None]:
        """Return for each queue the delivery number that the next worker pops.

        None if the list holds no delivery of ours. 0 if the number is unknown: the key is no list, or the head of the
        list holds only jobs of others, and ours may be behind them. Numbers above `up_to` are not ours.
        """
        heads: list[Any] = []
        with reachable(self.where):
            for first in range(0, len(queues), _LISTS_PER_CALL):
                keys = [queue_key(queue) for queue in queues[first : first + _LISTS_PER_CALL]]
                heads += self._heads(keys, [_LOOK_AHEAD])
        return {queue: self._lowest(head, up_to) for queue, head in zip(queues, heads, strict=True)}

    def not_lists(self, queues: Sequence[str]) -> list[str]:
        """Return the keys of those of these queues whose key holds something else than a list."""
        types = self._of_each(queues, lambda pipeline, key: pipeline.type(key))
        return [
            queue_key(queue)
            for queue, kind in zip(queues, types, strict=True)
            if kind not in (b"list", b"none")
        ]

    def listed(self, queue: str) -> Iterator[list[tuple[int, int]]]:
        """Job id and delivery number of all tracked jobs of ours in the queue's list, in pages.

        An id that is in the list from the first page to the last is in one of the pages, though workers pop and the
        leader pushes meanwhile; it may be in two. A key that is no list has no pages.
        """
        # From the tail to the head: places are counted from the tail, so a pop moves nothing, and a push
        # moves the rest towards the pages to come. Read the other way, each pop would hide an id from us.
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
