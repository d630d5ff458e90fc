"""The enqueuer's side: RQ jobs are written, and their ids appended to the lists of their queues."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any

import redis

from drain.failpoints import FailurePoint, failpoint
from drain.wire import scripts
from drain.wire.calls import Kind, classify_ids
from drain.wire.connection import reachable
from drain.wire.ids import is_thin, to_text
from drain.wire.jobs import FAILED_TTL_SECONDS, IMPORTS_ENTRY_POINT, Delivery
from drain.wire.keys import queue_key
from drain.wire.namespace_guard import Owner, Ownership, read_owner
from drain.wire.queues import QueueReader
from drain.wire.superseded_deliveries import EarlierDeliveries, ReplacedDelivery, RQVerdict
from drain.wire.thin import IDS_PER_CALL, ThinDeliveries

log = logging.getLogger(__name__)

# Number of jobs that one call of the script writes. At a thousand jobs a call Redis serves its other clients every few
# milliseconds. Measured beside a pipeline of single commands: a tenth of the time in Python, the same in Redis.
JOBS_PER_CALL = 1000
# Upper bound of the queues of one call: two milliseconds of Redis' time.
_QUEUES_PER_CALL = 500
# Number of ids of a list that are read at a time together with the hash of each.
_HASHES_PER_PAGE = 500


class Producer(QueueReader):
    """Pushes jobs to RQ's queues for one database, and reads these queues. Errors are those of `RedisConnection`.

    Args:
        redis_url: URL of the Redis.
        namespace: First part of our RQ ids.

    """

    # One thing: the calls of one connection to Redis.

    def __init__(self, redis_url: str, namespace: str) -> None:
        super().__init__(redis_url, namespace)
        self._pushed_lengths: dict[str, int] = {}
        self._push = self._redis.register_script(scripts.load("owners", "push"))
        self._owners = Ownership(self._redis, self.where, namespace)
        self._thin = ThinDeliveries(self._redis, self.where, namespace, self._owners)
        self._earlier = EarlierDeliveries(self._redis)

    @property
    def installation(self) -> str:
        """UUID of the database that feeds, which `identify` sets; "" for a client that only looks."""
        return self._owners.installation

    def identify(self, installation: str, label: str) -> None:
        """Set the database that feeds: `push` claims the namespace and the queues for it.

        Args:
            installation: UUID of the database.
            label: Database and server, for people who read it in messages of other databases.
        """
        self._owners.installation, self._owners.label = installation, label

    def push(self, deliveries: Iterable[Delivery]) -> Counter[str]:
        """Write the jobs and append them to their queues' lists, in the given order within a queue.

        When this returns, Redis has stored all of them, but for those of queues that are refused: the key is no list,
        or another database feeds the queue. When it raises, Redis may have stored some: pushing them again is harmless
        for tracked jobs, and at least once for forwarded ones.

        Returns:
            Number of refused jobs of each queue.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace; what was not yet pushed is not pushed.
        """
        rest = iter(deliveries)
        refused: Counter[str] = Counter()
        while jobs := list(islice(rest, JOBS_PER_CALL)):
            # Redelivery finds refused jobs, and pushes them, once nothing is in their way.
            if queues := set(self._send(jobs)):
                refused.update(job.queue for job in jobs if job.queue in queues)
            failpoint(FailurePoint.PUSHED_A_SLICE)
        return refused

    def push_thin(self, rq_ids: Mapping[str, Sequence[str]]) -> Counter[str]:
        """Append ids of thin deliveries, by queue, to the lists of their queues; returns and raises as `push` does."""
        refused: Counter[str] = Counter()
        for queue, ids in rq_ids.items():
            for first in range(0, len(ids), IDS_PER_CALL):
                pushed = ids[first : first + IDS_PER_CALL]
                refused.update(dict.fromkeys(self._read(self._thin.push(queue, pushed)), len(pushed)))
                failpoint(FailurePoint.PUSHED_A_SLICE)
        return refused

    def need_no_hash(self, queues: Sequence[str]) -> set[str]:
        """Return those of these queues on which `drain work` of our namespace listens, and no other worker."""
        return self._thin.need_no_hash(queues)

    def need_hashes(self, queue: str | None = None) -> None:
        """Leave a queue, or all queues, out of the answers of `need_no_hash` for an hour, under each leader."""
        self._thin.need_hashes(queue)

    def push_together(self, deliveries: Sequence[Delivery]) -> list[str]:
        """Write and append jobs in one call: all of them or none.

        When this raises because Redis refused, none has been stored; when no answer came, all or none.

        Args:
            deliveries: At most `JOBS_PER_CALL`.

        Returns:
            Names of the queues whose key is no list, or that another database feeds. If there are any, none of the
            jobs has been stored.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace; nothing is pushed.
        """
        return self._send(deliveries, sorted({queue_key(delivery.queue) for delivery in deliveries}))

    def _send(self, deliveries: Sequence[Delivery], keys: Sequence[str] = ()) -> list[str]:
        owners = self._owners
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        common = (now, owners.installation, owners.label, owners.key, FAILED_TTL_SECONDS, IMPORTS_ENTRY_POINT)
        with reachable(self.where):
            arguments = [*common, *chain.from_iterable(deliveries)]
            answer: Any = owners.mending(lambda: self._push(keys=keys, args=arguments))
        return self._read(answer)

    def _read(self, answer: Any) -> list[str]:
        """Read the answer of a push; returns the names of the queues that were refused."""
        owner, no_lists, foreign, lengths, misused = answer
        self._owners.require_ours(owner)
        self._owners.report_misused([key.decode() for key in misused])
        refused = [queue.decode() for queue in no_lists]
        for queue in refused:
            log.error(
                "Redis key rq:queue:%s is not a list; its jobs wait until you rename that key",
                queue,
                extra={"event": "no_list", "queue": queue},
            )
        self._pushed_lengths |= _by_queue(lengths)
        others = {queue: read_owner(text) for queue, text in _by_queue(foreign).items()}
        self._owners.report(others)
        return [*refused, *others]

    def take_pushed_lengths(self) -> dict[str, int]:
        """Return the length of the list of each queue after the latest push to it, since the last call of this."""
        lengths, self._pushed_lengths = self._pushed_lengths, {}
        return lengths

    def rq_verdicts(self, rq_ids: Sequence[str]) -> list[RQVerdict]:
        """Return RQ's verdict on each delivery that did not come back, in one round trip."""
        with reachable(self.where):
            return self._earlier.verdicts(rq_ids)

    def move_dependents(self, pairs: Sequence[tuple[str, str]]) -> int:
        """Let plain RQ jobs that depend on an earlier delivery depend on the later one; returns their number."""
        with reachable(self.where):
            return self._earlier.move_dependents(pairs)

    def forget(self, replaced: Sequence[ReplacedDelivery]) -> None:
        """Delete RQ's data about deliveries that later ones have replaced."""
        if replaced:
            with reachable(self.where):
                self._earlier.forget(replaced)

    def mark(self) -> None:
        """Write a mark, in our name, that is gone when this Redis has lost its memory.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace.
        """
        self._owners.mark()

    def remembers(self) -> bool:
        """Return whether the mark is there, and no delivery is missing.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace.
        """
        return self._owners.remembers()

    def fed_by_others(self, queues: Collection[str]) -> dict[str, Owner]:
        """Return those of these queues that another database feeds, with that database, and report them."""
        return self._owners.fed_by_others(queues)

    def queues_fed(self) -> set[str]:
        """Return the names of the queues that our database feeds."""
        return set(self._owners.queues_of(self.installation))

    def forget_queues(self, queues: Collection[str]) -> int:
        """Forget those of these queues that we feed and Redis holds nothing of, until the next push to them.

        Returns:
            The number of queues that were forgotten.
        """
        pages = iter(queues)
        return sum(
            self._owners.forget_queues(page)
            for page in iter(lambda: list(islice(pages, _QUEUES_PER_CALL)), [])
        )

    def take_over(self, installation: str) -> int:
        """Forget that another database feeds our namespace, and any queues: that database is gone.

        If it fed any, this Redis counts as one that has lost its memory until all waiting jobs have been pushed again.

        Returns:
            Number of namespaces and queues that it fed.
        """
        return self._owners.take_over(installation)

    def remove_ids_of(self, installation: str) -> Iterator[int]:
        """Remove the ids that a database which is gone has pushed from the lists of the queues that it feeds.

        The hashes stay. To be called before `take_over`, which forgets which queues these are.

        Yields:
            Number of ids that have been removed, page by page.
        """
        for queue in self._owners.queues_of(installation):
            kept = 0
            # From the tail to the head, as in `listed`; removed ids no longer count.
            while rq_ids := self._page(queue, -kept - _HASHES_PER_PAGE, -kept - 1):
                with reachable(self.where):
                    removed = _remove(self._redis, queue, rq_ids, installation)
                kept += len(rq_ids) - removed
                yield removed


def _by_queue(answer: Sequence[Any]) -> dict[str, Any]:
    """Read names of queues, each followed by what belongs to the queue."""
    each = iter(answer)
    return {queue.decode(): value for queue, value in zip(each, each, strict=True)}


def _remove(client: redis.Redis, queue: str, rq_ids: Sequence[bytes], installation: str) -> int:
    """Remove those of these ids whose call names the installation; returns how many there were."""
    copies = Counter(rq_ids)
    jobs = classify_ids(client, list(copies), installation)
    with client.pipeline(transaction=False) as pipeline:
        for rq_id, job in zip(copies, jobs, strict=True):
            # A thin delivery has no hash, and a queue is fed by one database.
            if job.installation == installation or (job.kind is Kind.GONE and is_thin(to_text(rq_id))):
                # From the tail, so that no copy is removed that is yet to be read.
                pipeline.lrem(queue_key(queue), -copies[rq_id], rq_id)  # type: ignore[arg-type]
        return sum(pipeline.execute())
