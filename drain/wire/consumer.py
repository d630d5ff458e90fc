"""The worker's side: ids are popped from RQ's lists, many at a time, and given back if their jobs have not begun."""

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
    """Pops ids for one worker process: one connection to wait on, and others for all else.

    `wait` is for one thread; the rest is safe to use from several threads. Errors are those of `RedisConnection`.

    Args:
        redis_url: URL of the Redis.
        namespace: First part of our RQ ids.
        queues: Names of the queues, the first of which comes first.
        rotates: The queues take turns instead.
        installation: Returns the UUID of the worker's database, when an id has to be classified; without it every
            id that is not of the namespace's tracked jobs counts as a plain RQ job.
        only_tracked: Names of the queues in which only tracked jobs run.

    Attributes:
        presence: Data about this worker that RQ's tools show.
    """

    # One thing: all that a worker process asks of Redis; each method hands its question on to a class of its own.

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
        """True if the last `pop` stopped before it found an id that it may pop."""
        return self._popper.more_to_classify

    @property
    def leaves_plain(self) -> bool:
        """True if the last `pop` left plain jobs, which were not wanted."""
        return self._popper.leaves_plain

    @property
    def skips_lists(self) -> bool:
        """True if there are keys that `wait` does not wait for; `pop` looks whether that has changed."""
        return len(self._sources.ready) < len(self._sources.keys)

    def wait(self, seconds: float = WAIT_SECONDS) -> AwaitedId | None:
        """Pop one id as soon as there is one; None if none comes in time, or `end_wait` is called.

        With a single queue, the id is in RQ's intermediate list until it is given to `pop`, so that a plain RQ job is
        not lost if its worker dies.
        """
        self._popper.more_to_classify = False
        return self._waiter.wait(seconds)

    def end_wait(self) -> None:
        """Let `wait` return at once, in whatever thread it is; no id that it has popped is lost.

        If Redis does not answer, the connection is shut down: `wait` then raises UnavailableError.
        """
        self._waiter.end_wait()

    def take(self, awaited: AwaitedId) -> PoppedId | None:
        """Take an answer of `wait` without a further exchange; afterwards it must be given to `pop` as `taken`.

        Returns:
            None if that cannot be done: RQ is suspended, or the id does not have the form of our tracked jobs'.
        """
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
        """Pop ids from the heads of the lists, in their order, without waiting.

        An id that is none of our tracked jobs' is popped alone, and goes by way of RQ's intermediate list.

        Args:
            most: Upper bound of the number of ids.
            popped: Answer of `wait`; that id comes first.
            taken: Answer of `wait` that `take` has returned; it leaves RQ's intermediate list.
            tracked: Tracked jobs are wanted; otherwise they stay, and no answer of `wait` may be given.
            plain: Plain jobs are wanted; otherwise they stay, as `leaves_plain` says.

        Returns:
            None while RQ is suspended; `popped` is then back in its list.
        """
        return self._popper.pop(most, popped, taken, tracked=tracked, plain=plain)

    def give_back(self, popped: Sequence[tuple[str, str]]) -> None:
        """Put ids back to the heads of their lists, in the order in which they were: queue and RQ id of each."""
        self._moves.give_back(popped)

    def give_back_unbegun(self, popped: PoppedId) -> bool:
        """Put the id of a plain RQ job back if RQ has not begun with the job; returns whether that is so."""
        return self._moves.give_back_unbegun(popped)

    def sort_unclaimed(self, unclaimed: Sequence[PoppedId]) -> tuple[list[PoppedId], list[PoppedId]]:
        """Sort ids that have the form of ours, but that no claim accepted, and find the plain RQ jobs among them.

        A plain job is in RQ's intermediate list from now on; in queues where only tracked jobs run, it becomes a
        failed job of RQ's instead. The hashes of tracked jobs are deleted, but for those that RQ jobs depend on.

        Returns:
            The plain jobs, which the caller must run, and the deliveries of tracked jobs that RQ jobs depend on.
        """
        if not unclaimed:
            return [], []
        with reachable(self.where):
            # No database has this installation: only the plain jobs are searched.
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

    def tell(self, job_ids: Sequence[int]) -> None:
        """Tell those who wait for the results of jobs that these have ended."""
        self._ended.tell(job_ids)

    def close(self) -> None:
        """Close all connections."""
        self._waiter.close()
        super().close()
