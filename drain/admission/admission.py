"""Admission of due rows, across queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from time import monotonic

from drain.admission.awake import MOST_AT_ONCE, AwakeQueues
from drain.admission.depths import Depths
from drain.admission.held import HeldError, HeldQueues, warn_of_forward_mode
from drain.admission.hints import Hints
from drain.admission.keyed_queue import RuledQueue
from drain.admission.rules import Rules
from drain.database.postgres import Connection
from drain.errors import ConfigError
from drain.tables import rules
from drain.tables.pauses import FollowedPauses, Pauses
from drain.tables.rules import RulesRow
from drain.tables.staged import DueJob
from drain.wire import QueueReader

# Changes apply within a second.
_FOLLOW_SECONDS = 0.5


class Admission:
    """Decides which rows may leave `staged_jobs`, on the leader's connection.

    A queue has rules if it has a row in `queues`, or paused jobs or keys. Others are bounded by their list alone.

    Args:
        depth: See `Depths.fixed`.
        forward_queues: Their lists are unbounded.

    Attributes:
        outdated: Queues with changed limits: call back their unclaimed deliveries, then `called_back`.
    """

    # One thing: a batch's steps across queues.

    def __init__(
        self,
        connection: Connection,
        redis: QueueReader,
        *,
        depth: int | None,
        forward_queues: Collection[str],
    ) -> None:
        self.paused = Pauses()
        self.outdated: set[str] = set()
        self._connection = connection
        self._depths = Depths(redis, fixed=depth, unbounded=forward_queues)
        self._forward_queues = forward_queues
        self.followed_pauses = FollowedPauses(connection)
        self._rules = rules.followed()
        self._queues = AwakeQueues(self._make, self._pause)
        self._held = HeldQueues(connection)
        self._hints = Hints(connection)
        self._follow_at = self._looks_at = 0.0
        self._has_unread = False

    def expect_arrivals(self) -> None:
        """Let the next look find jobs just staged under rules."""
        self._hints.expect()

    def notice_ends(self, queues: Collection[str]) -> None:
        """Let the next look find jobs that have ended in these queues; other names are ignored."""
        for queue in self._queues.awake.keys() & queues:
            self._queues.awake[queue].notice_end()

    def limits_running(self, queue: str) -> bool:
        """Return True if a job may wait for another of the queue to end."""
        ruled = self._queues.awake.get(queue)
        return ruled is not None and ruled.allowances.looks_at_running

    def look_when_due(self) -> bool:
        """Follow rules and look, if due; return True if rows may have become free."""
        if monotonic() >= self._follow_at:
            self.follow()
        found = self._depths.look_when_due()
        self._queues.take_turns()
        if monotonic() >= self._looks_at:
            found |= self._look()
        return self._follow_hints() or found

    def _look(self) -> bool:
        began, found = monotonic(), False
        due = self._queues.due(self.paused.queue)
        for queue in due:
            if ruled := self._queues.awake.get(queue):
                with self._following(queue):
                    found |= ruled.look() and self._depths.room(queue) > 0
        is_full = len(due) >= MOST_AT_ONCE and not self.may_find_more
        self._looks_at = monotonic() + (monotonic() - began if is_full else 0.0)
        return found

    def _follow_hints(self) -> bool:
        if not (self._rules.rows or self.paused or self._queues.awake):
            # Saves a lone job's batch one of four exchanges.
            self._hints.forget()
            return False
        found = False
        for queue, after in self._hints.find(self._has_rules):
            if (ruled := self._queues.awake.get(queue)) is None:
                self._queues.call(queue)
            elif not self.paused.queue(queue):
                with self._following(queue):
                    found |= ruled.hint(after) and self._depths.room(queue) > 0
        return found

    @property
    def next_look_at(self) -> float:
        """Time by `monotonic()` when waiting rows may become free; infinite for none."""
        times = [self._depths.next_look_at, self._queues.next_turn_at]
        if self._rules.rows or self._queues.awake:
            times.append(self._hints.next_at)
        looks = (
            ruled.next_look_at
            for queue, ruled in self._queues.awake.items()
            if not self.paused.queue(queue) and self._depths.room(queue)
        )
        return min(*times, max(self._looks_at, min(looks, default=float("inf"))))

    @property
    def waits_for_room(self) -> bool:
        """True if rows wait until a list has room."""
        return self._depths.next_look_at < float("inf")

    @property
    def may_find_more(self) -> bool:
        """True if free rows under rules may still be unknown."""
        return (
            self._has_unread
            or self._queues.next_turn_at <= monotonic()
            or any(
                ruled.is_first_sweep and not self.paused.queue(queue) and self._depths.room(queue) > 0
                for queue, ruled in self._queues.awake.items()
            )
        )

    @property
    def ruled(self) -> Collection[str]:
        """Queues with rules, held ones too."""
        return self._rules.rows.keys() | self._queues.awake.keys()

    @property
    def awake(self) -> Collection[str]:
        """Queues with rules that may have due rows."""
        return self._queues.awake.keys()

    def take_fallen_asleep(self) -> Collection[str]:
        """Queues that fell asleep since the last call; a found lane wakes them."""
        queues, self._queues.fallen_asleep = self._queues.fallen_asleep, set()
        return queues

    def room(self, queue: str) -> int:
        """Rows that may leave in lane order; 0 under rules."""
        if self.paused.queue(queue):
            return 0
        if self._has_rules(queue):
            if queue not in self._held:
                self._queues.call(queue)
            return 0
        return self._depths.room(queue)

    def select(self, most: int, *, skip_locked: bool, leave: Collection[int]) -> dict[str, list[DueJob]]:
        """Select rows under rules, without the ids in `leave`, in a batch's transaction.

        Raises:
            HeldError: A queue is held now; the next transaction leaves it out.
        """
        selected: dict[str, list[DueJob]] = {}
        awake, read = self._queues.awake, 0
        self._has_unread = False
        # Each queue comes first in turn: a batch may not hold all rows.
        for queue in list(awake):
            if most <= 0 or read >= MOST_AT_ONCE:
                self._has_unread = read >= MOST_AT_ONCE
                break
            ruled = awake[queue] = awake.pop(queue)
            room = 0 if self.paused.queue(queue) or not ruled.may_admit else self._depths.room(queue)
            if not room:
                continue
            read += 1
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
        """Note a committed batch; `gone` rows are in flight or pushed."""
        for queue, selected in rows.items():
            if queue in self._queues.awake:
                with self._following(queue):
                    self._queues.awake[queue].admitted([row for row in selected if row.id in gone])

    def moved(self, rows: Sequence[DueJob]) -> None:
        """Count rows moved by a commit, before the push."""
        self._depths.moved(Counter(map(attrgetter("queue"), rows)))

    def pushed(self, jobs: Mapping[str, int], lengths: Mapping[str, int]) -> None:
        """Note pushed jobs, and list lengths afterwards."""
        self._depths.pushed(jobs, lengths)

    def holds_retries(self, queue: str) -> bool:
        """Return whether no retry could be delivered at the last look."""
        ruled = self._queues.awake.get(queue)
        return ruled is not None and not ruled.may_redeliver

    def redeliverable(self, queue: str, limit: int) -> list[int] | int:
        """Count due retries that may be delivered; under rules, return their ids.

        Raises:
            HeldError: The queue is held now; the transaction cannot continue.
        """
        if self.paused.queue(queue) or queue in self._held:
            return 0
        room = min(limit, self._depths.room(queue))
        if not self._has_rules(queue):
            return room
        with self._following(queue, in_transaction=True):
            ruled = self._queues.wake(queue)
            return ruled.redeliverable(room) if ruled else []
        return []

    def redelivered(self, queue: str, claims: Mapping[int, int]) -> None:
        """See `RuledQueue.redelivered`."""
        if queue in self._queues.awake:
            with self._following(queue):
                self._queues.awake[queue].redelivered(claims)

    def _has_rules(self, queue: str) -> bool:
        return queue in self._rules.rows or self.paused.names_any(queue)

    def pause(self, paused: Pauses) -> None:
        """Follow pauses."""
        if paused is self.paused:
            return
        self.paused = paused
        for queue in self._queues:
            if not self._has_rules(queue):
                self._end(queue)
        for queue, ruled in self._queues.awake.items():
            self._pause(queue, ruled)

    def follow(self) -> None:
        """Read and apply changed rules and pauses, in autocommit mode."""
        changed = self._rules.look(self._connection)
        self.pause(self.followed_pauses.look())
        for queue, before in changed.items():
            row = self._rules.rows.get(queue)
            if not (row and before and row.same_rules(before)):
                self._held.release(queue)
                self._follow_row(queue, row)
                # At the first look too: the last leader may have died between a change and its call-back.
                self._note_outdated(queue, row, before)
        self._held.note(self._rules.rows, changed)
        self._follow_at = monotonic() + _FOLLOW_SECONDS

    def called_back(self) -> None:
        """Recount outdated queues after their call-back."""
        for queue in self.outdated:
            if queue in self._queues.awake:
                self._queues.awake[queue].count_again()
        self.outdated.clear()

    def _note_outdated(self, queue: str, row: RulesRow | None, before: RulesRow | None) -> None:
        if row is None or queue in self._held:
            return
        earlier: tuple[object, ...] = ()
        # Rules that could not be followed limited no deliveries.
        with suppress(ConfigError):
            earlier = (Rules.from_row(before) if before else Rules(queue)).limits
        with suppress(ConfigError):
            wanted = Rules.from_row(row).limits
            if any(wanted) and wanted != earlier:
                self.outdated.add(queue)

    def _follow_row(self, queue: str, row: RulesRow | None) -> None:
        if row is None:
            # A lane, known or found, wakes the queue if it has pauses.
            self._end(queue)
            return
        with self._following(queue):
            wanted = Rules.from_row(row)
            warn_of_forward_mode(wanted, self._forward_queues)
            ruled = self._queues.get(queue)
            if ruled is not None and ruled.rules != wanted:
                ruled.change(wanted)

    def _end(self, queue: str) -> None:
        if ruled := self._queues.get(queue):
            ruled.end()
        self._queues.forget(queue)

    @contextmanager
    def _following(self, queue: str, *, in_transaction: bool = False) -> Iterator[None]:
        """Hold the queue if the block cannot follow its rules; its transaction must end then."""
        with self._held.unless_followed(queue):
            yield
        if queue in self._held:
            self._queues.forget(queue)
            if in_transaction:
                raise HeldError

    def _make(self, queue: str) -> RuledQueue | None:
        row = self._rules.rows.get(queue)
        if queue in self._held or not self._has_rules(queue):
            return None
        with self._following(queue):
            return RuledQueue(self._connection, Rules.from_row(row) if row else Rules(queue))
        return None

    def _pause(self, queue: str, ruled: RuledQueue) -> None:
        ruled.pause(self.paused.job_names(queue), self.paused.keys(queue), self.paused.pairs(queue))
