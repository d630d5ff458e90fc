"""Admission of the leader: how many rows of each queue may leave now, and which, if the queue has rules."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from time import monotonic

from drain.admission.depths import Depths
from drain.admission.held import HeldError, HeldQueues
from drain.admission.keyed_queue import RuledQueue
from drain.admission.rules import Rules
from drain.database.postgres import Connection
from drain.tables import pauses, rules
from drain.tables.pauses import Pauses
from drain.tables.staged import DueJob
from drain.wire import QueueReader

log = logging.getLogger(__name__)

# Pause after hints to the queues with rules, as a multiple of their duration.
_HINTS_PAUSE = 4
# Interval between two looks at the rules and the pauses: the leader follows a change within a second.
_FOLLOW_SECONDS = 0.5


class Admission:
    """Decides for one leader, on its connection, which rows may leave `staged_jobs`.

    A queue has rules if it has a row in `queues`, or if some of its jobs or keys are paused. All other queues have no
    bound but that of their list. A queue whose rules cannot be followed is held: nothing of it leaves.

    Args:
        connection: The leader's.
        redis: Reader of the lists.
        depth: Bound of each list; 0 for none, None to let it follow the workers.
        forward_queues: Names of the queues in forward mode, whose lists have no bound.

    Attributes:
        paused: Pauses that held at the last look.
    """

    # One thing: the steps of a batch for all queues, in their order; what one queue does has a class of its own.

    def __init__(
        self,
        connection: Connection,
        redis: QueueReader,
        *,
        depth: int | None,
        forward_queues: Collection[str],
    ) -> None:
        self.paused = Pauses()
        self._connection = connection
        self._depths = Depths(redis, fixed=depth, unbounded=forward_queues)
        self._forward_queues = forward_queues
        self._ruled: dict[str, RuledQueue] = {}
        self._held = HeldQueues(connection)
        self._follow_at = 0.0
        self._expects_arrivals = False
        self._hints_at = 0.0

    def expect_arrivals(self) -> None:
        """Let the next look find what has just been staged in queues with rules; otherwise a second may pass."""
        self._expects_arrivals = True

    def look_when_due(self) -> bool:
        """Follow the rules, and look whether rows that wait may leave now, as far as it is time for each.

        Returns:
            True if some may have become free to leave.

        Raises:
            UnavailableError: Redis.
            psycopg.OperationalError: The database.
        """
        if monotonic() >= self._follow_at:
            self._follow()
        found = self._depths.look_when_due()
        for queue, ruled in list(self._ruled.items()):
            if monotonic() >= ruled.next_look_at and not self.paused.queue(queue):
                with self._following(queue):
                    found |= ruled.look() and self._depths.room(queue) > 0
        if self._expects_arrivals and monotonic() >= self._hints_at:
            found |= self._hint()
        return found

    def _hint(self) -> bool:
        began, found = monotonic(), False
        self._expects_arrivals = False
        for queue, ruled in list(self._ruled.items()):
            if not self.paused.queue(queue):
                with self._following(queue):
                    found |= ruled.hint() and self._depths.room(queue) > 0
        self._hints_at = monotonic() + _HINTS_PAUSE * (monotonic() - began)
        return found

    @property
    def next_look_at(self) -> float:
        """Time, by `monotonic()`, at which rows that wait may be allowed to leave; infinite if none wait."""
        times = [self._depths.next_look_at]
        if self._expects_arrivals and self._ruled:
            times.append(self._hints_at)
        times += (
            ruled.next_look_at
            for queue, ruled in self._ruled.items()
            if not self.paused.queue(queue) and self._depths.room(queue)
        )
        return min(times)

    @property
    def is_first_sweep(self) -> bool:
        """True if rows of a queue with rules may be free to leave that no look has found yet."""
        return any(
            ruled.is_first_sweep and not self.paused.queue(queue) and self._depths.room(queue) > 0
            for queue, ruled in self._ruled.items()
        )

    @property
    def ruled(self) -> Collection[str]:
        """Names of the queues with rules, held ones among them."""
        return self._ruled.keys() | self._held.names

    def room(self, queue: str) -> int:
        """Return how many rows of a queue may leave now in the order of its lanes; 0 for a queue with rules."""
        if self.paused.queue(queue) or self._has_rules(queue):
            return 0
        return self._depths.room(queue)

    def select(self, most: int, *, skip_locked: bool, leave: Collection[int]) -> dict[str, list[DueJob]]:
        """Select rows of the queues with rules, by queue, in the transaction of a batch.

        Args:
            most: Upper bound of the rows.
            skip_locked: Pass over rows that another session has locked.
            leave: Ids to pass over.

        Raises:
            HeldError: A queue is held from now on; the next transaction leaves it out.
        """
        selected: dict[str, list[DueJob]] = {}
        # Each queue comes first in its turn: a batch may not hold the rows of all.
        for queue in list(self._ruled):
            if most <= 0:
                break
            ruled = self._ruled[queue] = self._ruled.pop(queue)
            room = 0 if self.paused.queue(queue) else self._depths.room(queue)
            if not room:
                continue
            rows: list[DueJob] = []
            with self._following(queue, in_transaction=True):
                rows = ruled.select(min(room, most), skip_locked=skip_locked)
            left = [row for row in rows if row.id in leave]
            if left:
                ruled.set_aside(left)
                rows = [row for row in rows if row.id not in leave]
            if rows:
                selected[queue] = rows
                most -= len(rows)
        return selected

    def admitted(self, rows: Mapping[str, Sequence[DueJob]], gone: Collection[int]) -> None:
        """Note that the transaction is committed in which these rows were selected, and which of them have left.

        Args:
            rows: Selected rows of the queues with rules.
            gone: Ids of the rows that are in flight or pushed now.
        """
        for queue, selected in rows.items():
            if queue in self._ruled:
                with self._following(queue):
                    self._ruled[queue].admitted([row for row in selected if row.id in gone])

    def moved(self, rows: Sequence[DueJob]) -> None:
        """Count rows whose move is committed, and whose push begins."""
        self._depths.moved(Counter(map(attrgetter("queue"), rows)))

    def pushed(self, jobs: Mapping[str, int], lengths: Mapping[str, int]) -> None:
        """Note the numbers of jobs that were pushed, by queue, and the lengths of the lists afterwards."""
        self._depths.pushed(jobs, lengths)

    def redeliverable(self, queue: str, limit: int) -> list[int] | int:
        """Return how many due retries of a queue may be delivered now, or their ids if the queue has rules.

        Raises:
            HeldError: The queue is held from now on; the open transaction cannot go on.
        """
        if self.paused.queue(queue) or queue in self._held:
            return 0
        room = min(limit, self._depths.room(queue))
        if not self._has_rules(queue):
            return room
        with self._following(queue, in_transaction=True):
            return self._ruled[queue].redeliverable(room)
        return []

    def redelivered(self, queue: str, ids: Iterable[int]) -> None:
        """Count retries of a queue with rules as running, after the commit that has delivered them."""
        if queue in self._ruled:
            with self._following(queue):
                self._ruled[queue].redelivered(ids)

    def _has_rules(self, queue: str) -> bool:
        if queue in self._ruled or queue in self._held:
            return True
        if not self.paused.names_any(queue):
            return False
        self._ruled[queue] = self._new(Rules(queue))
        return True

    def pause(self, paused: Pauses) -> None:
        """Follow these pauses, which have just been read."""
        self.paused = paused
        for queue, ruled in self._ruled.items():
            self._pause(queue, ruled)

    def _follow(self) -> None:
        """Read rules and pauses, and let the queues follow them."""
        self.paused = Pauses(pauses.read(self._connection))
        rows = rules.read(self._connection)
        self._held.follow(rows)
        for queue, row in rows.items():
            if queue not in self._held:
                with self._following(queue):
                    self._follow_rules(Rules.from_row(row))
        for queue in self._ruled.keys() - rows.keys():
            if self.paused.names_any(queue):
                self._follow_rules(Rules(queue))
            else:
                del self._ruled[queue]
        self._held.note(rows)
        self._follow_at = monotonic() + _FOLLOW_SECONDS

    def _follow_rules(self, wanted: Rules) -> None:
        ruled = self._ruled.get(wanted.queue)
        if ruled is None:
            self._ruled[wanted.queue] = self._new(wanted)
            self._warn_of_forward_mode(wanted)
            return
        if ruled.rules != wanted:
            ruled.change(wanted)
        self._pause(wanted.queue, ruled)

    def _warn_of_forward_mode(self, rules: Rules) -> None:
        if rules.queue in self._forward_queues and (rules.running or rules.for_keys):
            log.warning(
                "queue %s is in forward mode: its running jobs are unknown, so it has no limits",
                rules.queue,
                extra={"event": "rules_not_followed", "queue": rules.queue},
            )

    @contextmanager
    def _following(self, queue: str, *, in_transaction: bool = False) -> Iterator[None]:
        """Hold the queue if the block cannot follow its rules; a transaction must end then."""
        with self._held.unless_followed(queue):
            yield
        if queue in self._held:
            self._ruled.pop(queue, None)
            if in_transaction:
                raise HeldError

    def _new(self, wanted: Rules) -> RuledQueue:
        ruled = RuledQueue(self._connection, wanted)
        self._pause(wanted.queue, ruled)
        return ruled

    def _pause(self, queue: str, ruled: RuledQueue) -> None:
        ruled.pause(self.paused.job_names(queue), self.paused.keys(queue), self.paused.pairs(queue))
