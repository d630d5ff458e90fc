"""The enqueuer's side: writes RQ jobs and appends their ids to lists."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any

import redis

from drain.failpoints import FailurePoint, failpoint
from drain.wire import scripts
from drain.wire.calls import Kind, classify_ids
from drain.wire.connection import reachable
from drain.wire.ids import is_thin, to_text
from drain.wire.jobs import FAILED_TTL_SECONDS, IMPORTS_ENTRY_POINT, Delivery, Template
from drain.wire.keys import queue_key
from drain.wire.namespace_guard import Owner, Ownership, read_owner
from drain.wire.queues import QueueReader
from drain.wire.superseded_deliveries import EarlierDeliveries, ReplacedDelivery, RQVerdict
from drain.wire.thin import IDS_PER_CALL, ThinDeliveries

log = logging.getLogger(__name__)

# Milliseconds of Redis' time. Measured: a tenth of a pipeline's time in Python, the same in Redis.
JOBS_PER_CALL = 1000
# 2 ms of Redis' time.
_QUEUES_PER_CALL = 500
_HASHES_PER_PAGE = 500
# Fields of a `Delivery`; an attribute's lookup takes longer.
_RQ_ID, _TEMPLATE = itemgetter(0), itemgetter(2)


class Producer(QueueReader):
    """Pushes one database's jobs to RQ's queues."""

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
        """UUID of the feeding database; "" for readers."""
        return self._owners.installation

    def identify(self, installation: str, label: str) -> None:
        """Set the database that pushes; `label` is for display."""
        self._owners.installation, self._owners.label = installation, label

    def push(self, deliveries: Iterable[Delivery]) -> Counter[str]:
        """Push jobs; returns refused jobs per queue.

        A queue is refused if its key is not a list or another database feeds it. On errors, some jobs may be stored:
        pushing again is harmless for tracked jobs, at-least-once for forwarded ones.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace; the rest is not pushed.
        """
        rest = iter(deliveries)
        refused: Counter[str] = Counter()
        while jobs := list(islice(rest, JOBS_PER_CALL)):
            # Redelivery pushes them later.
            if queues := set(self._send(jobs)):
                refused.update(job.queue for job in jobs if job.queue in queues)
            failpoint(FailurePoint.PUSHED_A_SLICE)
        return refused

    def push_thin(self, rq_ids: Mapping[str, Sequence[str]]) -> Counter[str]:
        """Append thin deliveries; returns and raises as `push`."""
        refused: Counter[str] = Counter()
        for queue, ids in rq_ids.items():
            for first in range(0, len(ids), IDS_PER_CALL):
                pushed = ids[first : first + IDS_PER_CALL]
                refused.update(dict.fromkeys(self._read(self._thin.push(queue, pushed)), len(pushed)))
                failpoint(FailurePoint.PUSHED_A_SLICE)
        return refused

    def need_no_hash(self, queues: Sequence[str]) -> set[str]:
        """Return queues where only our `drain work` listens."""
        return self._thin.need_no_hash(queues)

    def need_hashes(self, queue: str | None = None) -> None:
        """Require hashes in a queue, or in all, for an hour."""
        self._thin.need_hashes(queue)

    def push_together(self, deliveries: Sequence[Delivery]) -> list[str]:
        """Push at most `JOBS_PER_CALL` jobs atomically; returns refused queues, as `push`.

        If any is refused, nothing is stored; without a reply, all or nothing.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace; nothing is pushed.
        """
        return self._send(deliveries, sorted({queue_key(delivery.queue) for delivery in deliveries}))

    def _send(self, deliveries: Sequence[Delivery], keys: Sequence[str] = ()) -> list[str]:
        owners = self._owners
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        common = (now, owners.installation, owners.label, owners.key, FAILED_TTL_SECONDS, IMPORTS_ENTRY_POINT)
        with reachable(self.where):
            arguments = [*common, *_runs(deliveries)]
            answer: Any = owners.mending(lambda: self._push(keys=keys, args=arguments))
        return self._read(answer)

    def _read(self, answer: Any) -> list[str]:
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
        """Return list lengths since the last call."""
        lengths, self._pushed_lengths = self._pushed_lengths, {}
        return lengths

    def rq_verdicts(self, rq_ids: Sequence[str]) -> list[RQVerdict]:
        """Return RQ's verdicts, in one round trip."""
        with reachable(self.where):
            return self._earlier.verdicts(rq_ids)

    def move_dependents(self, pairs: Sequence[tuple[str, str]]) -> int:
        """Move RQ dependents to later deliveries."""
        with reachable(self.where):
            return self._earlier.move_dependents(pairs)

    def forget(self, replaced: Sequence[ReplacedDelivery]) -> None:
        """Delete RQ's data about replaced deliveries."""
        if replaced:
            with reachable(self.where):
                self._earlier.forget(replaced)

    def mark(self) -> None:
        """Mark the namespace as ours, until Redis loses its data.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace.
        """
        self._owners.mark()

    def remembers(self) -> bool:
        """Return whether the mark exists and no delivery is missing.

        Raises:
            OwnedByAnotherError: Another database feeds the namespace.
        """
        return self._owners.remembers()

    def fed_by_others(self, queues: Collection[str]) -> dict[str, Owner]:
        """Return and report queues fed by others."""
        return self._owners.fed_by_others(queues)

    def queues_fed(self) -> set[str]:
        """Return our database's queues."""
        return set(self._owners.queues_of(self.installation))

    def forget_queues(self, queues: Collection[str]) -> int:
        """Release our empty queues."""
        pages = iter(queues)
        return sum(
            self._owners.forget_queues(page)
            for page in iter(lambda: list(islice(pages, _QUEUES_PER_CALL)), [])
        )

    def take_over(self, installation: str) -> int:
        """Release a vanished database's namespace and queues; returns how many.

        If any, Redis counts as having lost its data until all waiting jobs are pushed.
        """
        return self._owners.take_over(installation)

    def remove_ids_of(self, installation: str) -> Iterator[int]:
        """Remove a vanished database's ids; yields counts.

        Call before `take_over`, which forgets its queues. Hashes stay.
        """
        for queue in self._owners.queues_of(installation):
            kept = 0
            # From the tail, as in `listed`.
            while rq_ids := self._page(queue, -kept - _HASHES_PER_PAGE, -kept - 1):
                with reachable(self.where):
                    removed = _remove(self._redis, queue, rq_ids, installation)
                kept += len(rq_ids) - removed
                yield removed


def _runs(deliveries: Iterable[Delivery]) -> list[Any]:
    """Return the script's arguments: the templates, then each run of jobs with the same one."""
    # redis-py takes 0.25 us per argument; with all fields of a job, a push took twice as long in Python.
    templates: dict[Template, int] = {}
    runs: list[int | str] = []
    for template, run in groupby(deliveries, _TEMPLATE):
        runs += templates.setdefault(template, len(templates)), " ".join(map(_RQ_ID, run))
    return [len(templates), *chain.from_iterable(templates), *runs]


def _by_queue(answer: Sequence[Any]) -> dict[str, Any]:
    each = iter(answer)
    return {queue.decode(): value for queue, value in zip(each, each, strict=True)}


def _remove(client: redis.Redis, queue: str, rq_ids: Sequence[bytes], installation: str) -> int:
    copies = Counter(rq_ids)
    jobs = classify_ids(client, list(copies), installation)
    with client.pipeline(transaction=False) as pipeline:
        for rq_id, job in zip(copies, jobs, strict=True):
            # Thin deliveries have no hash, but the queue's owner is known.
            if job.installation == installation or (job.kind is Kind.GONE and is_thin(to_text(rq_id))):
                # From the tail: unread copies stay.
                pipeline.lrem(queue_key(queue), -copies[rq_id], rq_id)  # type: ignore[arg-type]
        return sum(pipeline.execute())
