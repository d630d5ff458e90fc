"""The worker's side: pops ids in batches, and gives back jobs not begun."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from drain.wire.blocking_pop import WAIT_SECONDS, Waiter
from drain.wire.calls import Kind, classify_ids
from drain.wire.connection import RedisConnection, reachable
from drain.wire.ended import EndedDeliveries
from drain.wire.foreign_jobs import Strangers
from drain.wire.ids import AwaitedId, PoppedId, to_bytes
from drain.wire.keys import intermediate_key, queue_key
from drain.wire.moves import ListMoves
from drain.wire.pop import Popper
from drain.wire.sources import SourceLists
from drain.wire.workers import WorkerPresence


class Consumer(RedisConnection):
    """Redis for one worker process. Thread-safe, except `wait`.

    Args:
        redis_url: URL of the Redis.
        namespace: Prefix of our RQ ids.
        queues: In order of preference.
        rotates: Queues take turns instead.
        installation: Returns the database's UUID; None treats other ids as plain jobs.
        only_tracked: Queues that refuse plain jobs.
    """

    # One thing: everything a worker process asks of Redis.

    def __init__(
        self,
        redis_url: str,
        namespace: str,
        queues: Sequence[str],
        *,
        rotates: bool = False,
        installation: Callable[[], str] | None = None,
        only_tracked: Collection[str] = (),
    ) -> None:
        super().__init__(redis_url)
        self.presence = WorkerPresence(self._redis, self.where)
        self._sources = SourceLists(queues, only_tracked, rotates=rotates)
        self._waiter = Waiter(redis_url, self.where, self._sources, self._redis)
        self._strangers = Strangers(self._redis, f"{namespace}-")
        self._moves = ListMoves(self._redis, self.where)
        self._ended = EndedDeliveries(self._redis, self.where)
        self._popper = Popper(
            self._redis,
            self.where,
            namespace,
            sources=self._sources,
            moves=self._moves,
            strangers=self._strangers,
            installation=installation,
        )

    @property
    def more_to_classify(self) -> bool:
        """True if the last `pop` gave up before it found an id."""
        return self._popper.more_to_classify

    @property
    def leaves_plain(self) -> bool:
        """True if the last `pop` left unwanted plain jobs."""
        return self._popper.leaves_plain

    @property
    def skips_lists(self) -> bool:
        """True if `wait` ignores keys that `pop` checks."""
        return len(self._sources.ready) < len(self._sources.keys)

    def wait(self, seconds: float = WAIT_SECONDS) -> AwaitedId | None:
        """Pop one id; None on timeout or `end_wait`.

        With one queue, RQ's intermediate list keeps the id until `pop`, so plain jobs survive a crash.
        """
        self._popper.more_to_classify = False
        return self._waiter.wait(seconds)

    def end_wait(self) -> None:
        """Make `wait` return without losing an id, or raise UnavailableError if Redis hangs."""
        self._waiter.end_wait()

    def take(self, awaited: AwaitedId) -> PoppedId | None:
        """Accept a tracked id from `wait` unless RQ is suspended; pass it to `pop` later."""
        return self._popper.take(awaited)

    def pop(
        self,
        most: int,
        popped: AwaitedId | None = None,
        *,
        taken: AwaitedId | None = None,
        tracked: bool = True,
        plain: bool = True,
    ) -> list[PoppedId] | None:
        """Pop ids without waiting; None while RQ is suspended.

        Other ids are popped singly, via RQ's intermediate list.

        Args:
            most: Maximum number of ids.
            popped: Id from `wait`; comes first, or returns to its list on suspension.
            taken: Id accepted by `take`; leaves RQ's intermediate list.
            tracked: False leaves tracked jobs, and excludes `popped` and `taken`.
            plain: False leaves plain jobs.
        """
        return self._popper.pop(most, popped, taken, tracked=tracked, plain=plain)

    def give_back(self, popped: Sequence[tuple[str, str]]) -> None:
        """Return ids (queue, RQ id) to their lists' heads, in order."""
        self._moves.give_back(popped)

    def give_back_unbegun(self, popped: PoppedId) -> bool:
        """Give a plain job back unless RQ has begun it; returns whether it did."""
        return self._moves.give_back_unbegun(popped)

    def sort_unclaimed(self, unclaimed: Sequence[PoppedId]) -> tuple[list[PoppedId], list[PoppedId]]:
        """Sort unclaimed ids into plain jobs to run and deliveries that RQ jobs depend on.

        Plain jobs move to RQ's intermediate list, or fail in only-tracked queues. Other hashes are deleted.
        """
        if not unclaimed:
            return [], []
        with reachable(self.where):
            # No database has this installation: only plain jobs matter.
            jobs = classify_ids(self._redis, [to_bytes(each.rq_id) for each in unclaimed], "")
            plain = [each for each, job in zip(unclaimed, jobs, strict=True) if job.kind is Kind.PLAIN]
            for each in plain:
                rq_id = to_bytes(each.rq_id)
                if self._sources.takes_only_tracked(each.queue):
                    self._redis.lpush(queue_key(each.queue), rq_id)
                    self._strangers.refuse(each.queue, rq_id)
                else:
                    self._redis.rpush(intermediate_key(each.queue), rq_id)
        tracked = [each for each in unclaimed if each not in plain]
        awaited = set(self._ended.clear_unless_awaited([each.rq_id for each in tracked]))
        to_be_run = [
            each._replace(job_id=None, delivery=0)
            for each in plain
            if not self._sources.takes_only_tracked(each.queue)
        ]
        return to_be_run, [each for each in tracked if each.rq_id in awaited]

    def clear(self, rq_ids: Sequence[str]) -> list[str]:
        """Delete ended deliveries' hashes; returns ids that RQ jobs depend on.

        RQ treats a missing hash as a satisfied dependency.
        """
        return self._ended.clear(rq_ids)

    def clear_unless_awaited(self, rq_ids: Sequence[str]) -> None:
        """Delete replaced deliveries' hashes, unless RQ jobs depend on them."""
        if rq_ids:
            self._ended.clear_unless_awaited(rq_ids)

    def tell(self, job_ids: Sequence[int]) -> None:
        """Notify those waiting for these jobs' results."""
        self._ended.tell(job_ids)

    def close(self) -> None:
        """Close all connections."""
        self._waiter.close()
        super().close()
