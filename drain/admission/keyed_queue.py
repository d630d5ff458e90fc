"""Queue with rules: which of its due rows and due retries may be admitted now.

The leader alone admits. Between two looks at `inflight_jobs` the number of running jobs can only fall, so a count from
the last look, with what was admitted since, is never too low, and no limit is exceeded. All that is remembered here is
rebuilt from the tables when a term begins or rules appear.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from time import monotonic

from drain.admission.allowances import Allowances, DatabaseClock
from drain.admission.arrivals import Arrivals
from drain.admission.ordering import Ordering
from drain.admission.retries import DueRetries
from drain.admission.rules import Rules
from drain.admission.running import RunningJobs
from drain.admission.selection import Ahead, Selection
from drain.admission.sources import UNKEYED, AgingLanes, Keys, Lanes, OrderedKeys, Source
from drain.admission.turns import Turns
from drain.database.postgres import Connection
from drain.tables import keyed, running
from drain.tables.keyed import Paused
from drain.tables.staged import DueJob

# Shortest pause between two looks at the running jobs while a limit is reached, and otherwise.
_NAP_SECONDS = 0.005
_REST_SECONDS = 0.5
# Pause between two looks at the database's clock, for rates.
_CLOCK_SECONDS = 10.0
# Pause before a row of an ordered queue is read again that had to wait.
_ASIDE_SECONDS = 0.25
# Number of streams that are known at a time; others are found when these are done.
MOST_STREAMS = 100_000


class RuledQueue:
    """Selection in one queue that has rules or pauses, for one leader and on its connection.

    Args:
        connection: The leader's.
        rules: Rules of the queue.

    Attributes:
        next_look_at: Time at which looking again could help, by this process' clock (`time.monotonic`).
    """

    # One thing: what is known of one queue between two batches, and the steps of a batch in their order.

    def __init__(self, connection: Connection, rules: Rules) -> None:
        self._connection = connection
        self._paused = Paused()
        self._paused_keys: Mapping[str, datetime | None] = {}
        self._clock = DatabaseClock()
        self.change(rules)

    def change(self, rules: Rules) -> None:
        """Follow other rules of the same queue."""
        self.rules = rules
        self._running = RunningJobs(self._connection, rules.queue, with_retries=rules.ordered)
        self._allowances = Allowances(rules, self._running, self._clock)
        self._is_rebuilt = False
        self._begin_again()

    def pause(
        self,
        job_names: Collection[str],
        keys: Mapping[str, datetime | None],
        pairs: Collection[tuple[str, str]] = (),
    ) -> None:
        """Pass over these jobs from now on, and no others.

        Args:
            job_names: Names of jobs.
            keys: Keys, each with the end of its pause; None for no end.
            pairs: Keys and names of jobs.
        """
        paused = Paused(sorted(job_names), sorted(pairs), sorted(keys))
        if (paused, keys) != (self._paused, self._paused_keys):
            self._paused, self._paused_keys = paused, dict(keys)
            self._begin_again()

    def _begin_again(self) -> None:
        """Forget which rows are due; the next looks find them."""
        rules = self.rules
        self._turns = Turns(fair=rules.fair, weights=rules.weights)
        self._source = self._new_source()
        # In lanes, paused keys are left out by the statements.
        self._allowances.paused = {} if isinstance(self._source, Lanes | AgingLanes) else self._paused_keys
        self._ahead: Ahead = {}
        self._arrivals = Arrivals(self._source, self._turns, self._ahead, MOST_STREAMS)
        self._ordering = Ordering(self._source, self._allowances, hold=rules.on_dead == "hold")
        held = self._ordering.held if rules.ordered else None
        self._retries = DueRetries(self._connection, rules.queue, self._running, self._allowances, held)
        self._retries.paused = self._paused
        self._selection: Selection | None = None
        self._aside: set[int] = set()
        # Streams that are to be looked at again at a time.
        self._later: list[tuple[float, str]] = []
        self._looked_at, self._look_seconds = 0.0, 0.0
        self.next_look_at = 0.0

    def _new_source(self) -> Source:
        where = (self._connection, self.rules.queue)
        if self.rules.aging_seconds:
            return AgingLanes(*where, self._paused, self.rules.aging_seconds)
        if self.rules.ordered:
            return OrderedKeys(*where, self._paused)
        if self.rules.for_keys or self._paused_keys:
            return Keys(*where, self._paused)
        return Lanes(*where, self._paused)

    def look(self) -> None:
        """Read what has ended and what has come, as often as it is worth it; in autocommit mode."""
        self._settle(None)
        if not self._is_rebuilt:
            self._rebuild()
        elif self._allowances.has_rates and self._clock.age_seconds > _CLOCK_SECONDS:
            self._clock.set(running.clock(self._connection))
        if self._allowances.looks_at_running and monotonic() >= self._look_at_running_at:
            self._look_at_running()
        self._arrivals.look()
        self._set_next_look()

    def select(self, room: int, *, skip_locked: bool = False) -> list[DueJob]:
        """Select up to `room` rows that may be admitted now, in their order, within the batch's transaction.

        Rows whose `expires_at` has passed come besides.

        Args:
            room: Upper bound of the rows.
            skip_locked: Pass over rows that another session has locked. The rows that are returned are locked then.
        """
        self._settle(None)
        if not self._is_rebuilt or (self.rules.ordered and self._arrivals.is_first_sweep):
            return []
        self._wake()
        may = self._allowances.of_queue()
        self._turns.mark()
        self._selection = selection = self._new_selection()
        rows = selection.run(min(room, may))
        if skip_locked and rows:
            free = keyed.lock(self._connection, [row.id for row in rows])
            self.set_aside([row for row in rows if row.id not in free])
            rows = [row for row in rows if row.id in free]
        if not rows:
            self._settle(())
        return rows

    def _new_selection(self) -> Selection:
        parts = (self._source, self._turns, self._allowances, self._ahead)
        if not self.rules.ordered:
            return Selection(*parts)
        # Which row of a key is the first must be known in the transaction.
        self._ahead.clear()
        return Selection(*parts, self._ordering.vet, self._paused.applies_to)

    def set_aside(self, rows: Sequence[DueJob]) -> None:
        """Pass over rows of the last selection until a sweep finds them again, about a second later; then `admitted`.

        In an ordered queue they keep the others of their key waiting.
        """
        self._aside.update(row.id for row in rows)

    def admitted(self, rows: Sequence[DueJob]) -> None:
        """Count these rows of the last selection as running, after the commit; others are still due."""
        self._settle(rows)
        self._set_next_look()

    def redeliverable(self, limit: int) -> list[int]:
        """Find up to `limit` due retries that may be admitted now."""
        if not self._is_rebuilt:
            return []
        return self._retries.find(min(limit, self._allowances.of_queue()))

    def redelivered(self, ids: Iterable[int]) -> None:
        """Count these retries as running, after the commit."""
        for job_id in ids:
            self._begin(job_id, self._retries.key_of(job_id))

    def _begin(self, job_id: int, key: str) -> None:
        if self._allowances.looks_at_running:
            self._running.add(job_id, key)
        self._allowances.take(key)

    def _settle(self, admitted: Sequence[DueJob] | None) -> None:
        """End the last selection: these rows were admitted; None if its transaction was rolled back."""
        selection, self._selection = self._selection, None
        aside, self._aside = self._aside, set()
        if selection is None:
            return
        if admitted is None:
            self._turns.undo()
            self._read_again(selection.touched)
            return
        ids = {row.id for row in admitted if not row.expired}
        for stream, rows in selection.rows.items():
            for row in rows:
                if row.id in ids:
                    self._begin(row.id, row.key or UNKEYED)
                    self._ordering.admitted(stream, row.id)
        for stream in selection.touched:
            self._go_on(stream, selection, ids, aside)
        for stream in selection.blocked:
            self._put_off(stream)

    def _read_again(self, streams: Iterable[str]) -> None:
        for stream in streams:
            self._ahead.pop(stream, None)

    def _go_on(self, stream: str, selection: Selection, ids: set[int], aside: set[int]) -> None:
        """Move the cursor of a stream behind the rows that need not be read again."""
        passed = set() if self.rules.ordered else aside
        for row in selection.rows.get(stream, ()):
            if row.id not in ids and row.id not in passed and not row.expired:
                self._turns.leave(stream)
                self._read_again([stream])
                if row.id in aside:
                    heapq.heappush(self._later, (monotonic() + _ASIDE_SECONDS, stream))
                else:
                    self._turns.enter(stream, self._source.place(stream))
                return
            self._source.advance(stream, row)
        if selection.is_at_end(stream):
            self._turns.leave(stream)
            self._source.forget(stream)
            self._read_again([stream])

    def _put_off(self, stream: str) -> None:
        """Look at a stream again once it may go on, if that is known; else the end of a job of its key brings it back."""
        if stream not in self._source.cursors:
            return
        self._turns.leave(stream)
        if self._allowances.of_key(stream):
            self._enter(stream)
            return
        again_at = self._allowances.next_of_key_at(stream)
        if len(self._source.cursors) > MOST_STREAMS // 2:
            # A sweep finds the stream again.
            self._source.forget(stream)
            self._read_again([stream])
        elif again_at is not None:
            heapq.heappush(self._later, (again_at, stream))

    def _wake(self) -> None:
        now = monotonic()
        while self._later and self._later[0][0] <= now:
            self._enter(heapq.heappop(self._later)[1])

    def _enter(self, stream: str) -> None:
        if stream in self._source.cursors:
            self._turns.enter(stream, self._source.place(stream))

    def _rebuild(self) -> None:
        self._clock.set(running.clock(self._connection))
        if self._allowances.looks_at_running:
            self._running.rebuild()
        self._allowances.refill(self._connection)
        self._is_rebuilt = True

    @property
    def _waits_for_slots(self) -> bool:
        """True if the end of a running job may let another one begin."""
        if not self._allowances.looks_at_running or not self._source.cursors:
            return False
        return not self._allowances.of_queue() or len(self._turns.waiting) < len(self._source.cursors)

    def _look_at_running(self) -> None:
        began = monotonic()
        for key in set(self._running.look().values()):
            self._enter(key)
        self._looked_at = monotonic()
        self._look_seconds = self._looked_at - began

    @property
    def _look_at_running_at(self) -> float:
        if self._waits_for_slots:
            return self._looked_at + max(_NAP_SECONDS, self._look_seconds)
        return self._looked_at + max(_REST_SECONDS, 9 * self._look_seconds)

    def _set_next_look(self) -> None:
        times = [self._arrivals.next_look_at]
        if self._turns.waiting and self._allowances.of_queue():
            times.append(monotonic())
        if self._waits_for_slots:
            times.append(self._look_at_running_at)
        if (at := self._allowances.next_of_queue_at()) is not None:
            times.append(at)
        if self._later:
            times.append(self._later[0][0])
        self.next_look_at = min(times)
