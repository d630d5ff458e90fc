"""The worker's side: ids are popped from RQ's lists, many at a time, and given back if their jobs have not begun."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from drain.errors import UnavailableError
from drain.wire import scripts
from drain.wire.calls import Kind, classify_ids
from drain.wire.connection import RedisConnection, reachable
from drain.wire.ended import EndedDeliveries
from drain.wire.ids import PoppedId, to_bytes, to_text, tracked_id_pattern
from drain.wire.keys import intermediate_key, queue_key, queue_of
from drain.wire.sources import SourceLists
from drain.wire.strangers import Strangers
from drain.wire.waiter import WAIT_SECONDS, Waiter
from drain.wire.workers import WorkerPresence

# Pages of ids that are classified in one call of `pop`: half a second's worth.
_MOST_ROUNDS = 50
# States that `pop.lua` answers with.
_POPPED, _SUSPENDED, _TO_BE_CLASSIFIED = range(3)


class Consumer(RedisConnection):
    """Pops ids for one worker process: one connection to wait on, and others for all else.

    `wait` is for one thread; the rest is safe to use from several threads.

    Args:
        redis_url: URL of the Redis.
        namespace: First part of our RQ ids.
        queues: Names of the queues, the first of which comes first.
        installation: Returns the UUID of the worker's database, when an id has to be classified; without it every
            id that is not of the namespace's tracked jobs counts as a plain RQ job.
        only_tracked: Names of the queues in which only tracked jobs run.

    Attributes:
        more_to_classify: The last `pop` has stopped before it found an id that it may pop.
        presence: Data about this worker that RQ's tools show.
    """

    def __init__(
        self,
        redis_url: str,
        namespace: str,
        queues: Sequence[str],
        *,
        installation: Callable[[], str] | None = None,
        only_tracked: Collection[str] = (),
    ) -> None:
        super().__init__(redis_url)
        self.more_to_classify = False
        self.presence = WorkerPresence(self._redis, self.where)
        self._prefix = f"{namespace}-"
        self._tracked_id = tracked_id_pattern(namespace)
        self._installation = installation
        self._sources = SourceLists(queues, only_tracked)
        self._waiter = Waiter(redis_url, self.where, self._sources, self._redis)
        self._strangers = Strangers(self._redis)
        self._ended = EndedDeliveries(self._redis, self.where)
        self._pop = self._redis.register_script(scripts.load("pop"))
        self._give_back_unbegun = self._redis.register_script(scripts.load("give_back_unbegun"))

    @property
    def skips_lists(self) -> bool:
        """Whether there are keys that `wait` does not wait for; `pop` looks whether that has changed."""
        return len(self._sources.ready) < len(self._sources.keys)

    def wait(self, seconds: float = WAIT_SECONDS) -> tuple[str, bytes] | None:
        """Pop one id as soon as there is one; None if none comes in time, or `end_wait` is called.

        With a single queue, the id is in RQ's intermediate list until it is given to `pop`, so that a plain RQ job is
        not lost if its worker dies.
        """
        self.more_to_classify = False
        return self._waiter.wait(seconds)

    def end_wait(self) -> None:
        """Let `wait` return at once, in whatever thread it is; no id that it has popped is lost.

        If Redis does not answer, the connection is shut down: `wait` then raises UnavailableError.
        """
        self._waiter.end_wait()

    def pop(self, most: int, popped: tuple[str, bytes] | None = None) -> list[PoppedId] | None:
        """Pop ids from the heads of the lists, the first queue first, without waiting.

        An id that is none of our tracked jobs' is popped alone, and goes by way of RQ's intermediate list.

        Args:
            most: Upper bound of the number of ids.
            popped: Answer of `wait`; that id comes first.

        Returns:
            None while RQ is suspended; `popped` is then back in its list.
        """
        queue = ""
        for _ in range(_MOST_ROUNDS):
            state, lists = self._run_pop(most, popped)
            queue = queue_of(lists[0].decode()) if lists else queue
            popped = None
            if state == _SUSPENDED:
                return None
            unread = state == _TO_BE_CLASSIFIED
            found = self._clear_head(queue) if unread else self._checked(self._read(lists))
            if found or self._installation is None or not lists:
                return found
        # The next call of `pop` looks at the other lists.
        self._sources.skip(queue)
        self.more_to_classify = True
        return []

    def _run_pop(self, most: int, popped: tuple[str, bytes] | None) -> tuple[int, list[Any]]:
        key, rq_id = popped or ("", b"")
        with reachable(self.where):
            answer: Any = self._pop(self._sources.keys, [most, self._prefix, rq_id, key, self._sources.modes])
        state, lists, no_lists = answer
        self._sources.report_no_lists([key.decode() for key in no_lists])
        self.more_to_classify = False
        return state, lists

    def _read(self, lists: list[Any]) -> list[PoppedId]:
        pairs = iter(lists)
        return [
            self._popped_id(rq_id, queue_of(key.decode()))
            for key, rq_ids in zip(pairs, pairs, strict=True)
            for rq_id in rq_ids
        ]

    def _popped_id(self, rq_id: bytes, queue: str) -> PoppedId:
        match = self._tracked_id.fullmatch(rq_id)
        text = rq_id.decode(errors="surrogateescape")
        return (
            PoppedId(text, queue, int(match[1]), int(match[2])) if match else PoppedId(text, queue, None, 0)
        )

    def _checked(self, found: list[PoppedId]) -> list[PoppedId]:
        """Return popped ids; one that does not have the namespace's form only if it is ours all the same, or plain."""
        if self._installation is None or len(found) != 1 or found[0].job_id is not None:
            return found
        (alone,) = found
        try:
            with reachable(self.where):
                (job,) = classify_ids(self._redis, [to_bytes(alone.rq_id)], self._installation())
        except UnavailableError:
            with suppress(UnavailableError):
                self.give_back([(alone.queue, alone.rq_id)])
            raise
        if job.kind is Kind.OURS:
            self._discard(alone)
            return [_under_older_namespace(alone.queue, to_bytes(alone.rq_id), job.job_id)]
        if job.kind is Kind.FOREIGN:
            self.give_back([(alone.queue, alone.rq_id)])
            return self._clear_head(alone.queue)
        return found

    def _clear_head(self, queue: str) -> list[PoppedId]:
        installation = self._installation() if self._installation is not None else ""
        with reachable(self.where):
            found, is_foreign = self._strangers.clear_head(
                queue, self._tracked_id, installation, only_tracked=self._sources.run_only_tracked(queue)
            )
        if is_foreign:
            self._sources.skip(queue)
        return [_under_older_namespace(queue, rq_id, job_id) for rq_id, job_id in found]

    def _discard(self, popped: PoppedId) -> None:
        """Remove an id from the intermediate list."""
        with reachable(self.where):
            self._redis.lrem(intermediate_key(popped.queue), 1, to_bytes(popped.rq_id))  # type: ignore[arg-type]

    def give_back(self, popped: Sequence[tuple[str, str]]) -> None:
        """Put ids back to the heads of their lists, in the order in which they were: queue and RQ id of each."""
        with reachable(self.where), self._redis.pipeline(transaction=False) as pipeline:
            for queue, text in reversed(popped):
                rq_id = to_bytes(text)
                pipeline.lrem(intermediate_key(queue), 1, rq_id)  # type: ignore[arg-type]
                pipeline.lpush(queue_key(queue), rq_id)
            pipeline.execute()

    def give_back_unbegun(self, popped: PoppedId) -> bool:
        """Put the id of a plain RQ job back if RQ has not begun with the job; returns whether that is so."""
        rq_id, queue = to_bytes(popped.rq_id), popped.queue
        keys: list[Any] = [queue_key(queue), intermediate_key(queue), b"rq:executions:" + rq_id]
        with reachable(self.where):
            return bool(self._give_back_unbegun(keys, [rq_id]))

    def sort_unclaimed(self, unclaimed: Sequence[PoppedId]) -> tuple[list[PoppedId], list[PoppedId]]:
        """Sort ids that have the form of ours, but that no claim accepted, and find the plain RQ jobs among them.

        A plain job is in RQ's intermediate list from now on; in queues where only tracked jobs run, it becomes a
        failed job of RQ's instead. The hashes of tracked jobs are deleted, but for those that RQ jobs depend on.

        Returns:
            The plain jobs, which are to be run, and the deliveries of tracked jobs that RQ jobs depend on.
        """
        if not unclaimed:
            return [], []
        with reachable(self.where):
            # No database has this installation: only the plain jobs are searched.
            jobs = classify_ids(self._redis, [to_bytes(each.rq_id) for each in unclaimed], "")
            plain = [each for each, job in zip(unclaimed, jobs, strict=True) if job.kind is Kind.PLAIN]
            for each in plain:
                rq_id = to_bytes(each.rq_id)
                if self._sources.run_only_tracked(each.queue):
                    self._redis.lpush(queue_key(each.queue), rq_id)
                    self._strangers.refuse(each.queue, rq_id)
                else:
                    self._redis.rpush(intermediate_key(each.queue), rq_id)
        tracked = [each for each in unclaimed if each not in plain]
        awaited = set(self._ended.clear_unless_awaited([each.rq_id for each in tracked]))
        to_be_run = [
            each._replace(job_id=None, delivery=0)
            for each in plain
            if not self._sources.run_only_tracked(each.queue)
        ]
        return to_be_run, [each for each in tracked if each.rq_id in awaited]

    def clear(self, rq_ids: Sequence[str]) -> list[str]:
        """Delete the hashes of deliveries whose jobs have ended.

        Returns:
            RQ ids of those on which plain RQ jobs depend. A job that comes to depend on one later finds no hash: to
            RQ, that dependency has been met.
        """
        return self._ended.clear(rq_ids)

    def clear_unless_awaited(self, rq_ids: Sequence[str]) -> None:
        """Delete the hashes of deliveries whose jobs will be delivered again, but for those that RQ jobs depend on."""
        if rq_ids:
            self._ended.clear_unless_awaited(rq_ids)

    def close(self) -> None:
        """Close all connections."""
        self._waiter.close()
        super().close()


def _under_older_namespace(queue: str, rq_id: bytes, job_id: int) -> PoppedId:
    """Delivery of ours whose id begins with an older namespace."""
    delivery = re.search(rb"-(\d{1,18})$", rq_id)
    return PoppedId(to_text(rq_id), queue, job_id, int(delivery[1]) if delivery else 0)
