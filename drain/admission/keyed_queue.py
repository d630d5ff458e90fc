"""Queue with rules: which of its due rows and due retries may be admitted now.

The leader alone admits. Between two looks at `inflight_jobs` the number of running jobs can only fall, so a count from
the last look, with what was admitted since, is never too low, and no limit is exceeded. All that is remembered here is
rebuilt from the tables when a term begins or rules appear.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from time import monotonic

from drain.admission.allowances import Allowances
from drain.admission.rates import DatabaseClock
from drain.admission.retries import DueRetries
from drain.admission.rules import Rules
from drain.admission.running import RunningJobs
from drain.admission.sources import UNKEYED
from drain.admission.streams import Streams
from drain.admission.turns import Turns
from drain.database.postgres import Connection
from drain.tables import keyed, running
from drain.tables.keyed import Paused
from drain.tables.staged import DueJob

# Shortest pause between two looks at the running jobs while rows wait for their end, and otherwise.
_NAP_SECONDS = 0.002
_REST_SECONDS = 0.5
# Such a pause, and that between two sweeps while nothing may begin, grows to this part of the time since a job was last
# seen to begin or to end, up to a bound. Measured: at 50 ms a hundred queues that are full took half a processor.
_NAP_PART = 0.02
_LONGEST_NAP_SECONDS = 1.0
# Time for which an idle queue is looked at.
_AWAKE_SECONDS = 5.0
# Pause between two looks at the database's clock, for rates.
_CLOCK_SECONDS = 10.0


class RuledQueue:
    """Selection in one queue that has rules or pauses, for one leader and on its connection.

    Args:
        connection: The leader's.
        rules: Rules of the queue.

    Attributes:
        rules: Rules of the queue.
        allowances: How many more jobs may begin.
        next_look_at: Time at which looking again could help, by this process' clock (`time.monotonic`).
    """

    # One thing: the steps of a batch in one queue, in their order; what they work on has classes of its own.

    def __init__(self, connection: Connection, rules: Rules) -> None:
        self._connection = connection
        self._paused = Paused()
        self._paused_keys: Mapping[str, datetime | None] = {}
        self._turns = Turns()
        self._clock = DatabaseClock()
        self._follow(rules)

    def change(self, rules: Rules) -> None:
        """Follow other rules of the same queue."""
        earlier = self.allowances
        self._follow(rules)
        self.allowances.keep_rates_of(earlier)

    def count_again(self) -> None:
        """Count running jobs from the tables again. The buckets stay, since they know more than the tables show."""
        self._is_rebuilt = False
        self.allowances.rates.forgive_after_look()

    def end(self) -> None:
        """Follow no rules any more; in autocommit mode."""
        self.allowances.rates.let_go(self._connection)

    def _follow(self, rules: Rules) -> None:
        self.rules = rules
        self._running = RunningJobs(self._connection, rules.queue)
        self.allowances = Allowances(rules, self._running, self._clock)
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
            pairs: Keys, each with the name of those of its jobs that are paused.
        """
        paused = Paused(sorted(job_names), sorted(pairs), sorted(keys))
        if (paused, keys) == (self._paused, self._paused_keys):
            return
        self._paused, self._paused_keys = paused, dict(keys)
        if self._streams.follow(paused, self._paused_keys):
            self._retries.follow(paused)
            self.next_look_at = 0.0
        else:
            self._begin_again()

    def _begin_again(self) -> None:
        """Forget which rows are due; the next looks find them."""
        earlier, self._turns = self._turns, Turns(fair=self.rules.fair, weights=self.rules.weights)
        self._turns.go_on_from(earlier)
        self._streams = Streams(
            *(self._connection, self.rules, self._paused, self._paused_keys, self.allowances), self._turns
        )
        ordering = self._streams.ordering if self.rules.ordered else None
        self._retries = DueRetries(
            self._connection, self.rules.queue, self._paused, self._running, self.allowances, ordering
        )
        self._aside: set[int] = set()
        self._looked_at, self._look_seconds, self._changed_at = 0.0, 0.0, monotonic()
        self.next_look_at = 0.0

    def look(self) -> bool:
        """Read ended and new jobs, as often as it is worth it; in autocommit mode.

        Returns:
            True if some row may be admitted now.
        """
        self._streams.roll_back()
        if not self._is_rebuilt:
            self._rebuild()
        elif self.allowances.rates and self._clock.age_seconds > _CLOCK_SECONDS:
            self._clock.set(running.clock(self._connection))
        if self.allowances.looks_at_running and monotonic() >= self._look_at_running_at:
            self._look_at_running()
        self._settle()
        # While the queue is full, a look every few milliseconds is one exchange.
        self._streams.look(hint=self.allowances.of_queue() > 0)
        self._set_next_look()
        return self.may_admit

    def wake(self) -> None:
        """Look again at what is due, after a time without looks."""
        self._changed_at = monotonic()
        self._streams.begin_again()
        self.next_look_at = 0.0

    def hint(self, after: int) -> bool:
        """Read lately staged jobs, with ids above this one, before the next look; in autocommit mode.

        Returns:
            True if some row may be admitted now.
        """
        if self._is_rebuilt:
            self._streams.roll_back()
            self._streams.hint(after)
            self._set_next_look()
        return self.may_admit

    def select(self, room: int, *, skip_locked: bool = False) -> list[DueJob]:
        """Select up to `room` rows that may be admitted now, in their order, within the batch's transaction.

        Some of them may have expired (`expired`); the caller gives these up.

        Args:
            room: Upper bound of the rows.
            skip_locked: Pass over rows that another session has locked. The rows that are returned are locked then.
        """
        self._streams.roll_back()
        self._aside = set()
        if not self._is_rebuilt:
            return []
        rows = self._streams.select(min(room, self.allowances.of_queue()))
        if skip_locked and rows:
            free = keyed.lock(self._connection, self.rules.queue, [row.id for row in rows])
            self.set_aside([row for row in rows if row.id not in free])
            rows = [row for row in rows if row.id in free]
        if not rows:
            self._streams.end((), self._aside)
        return rows

    def set_aside(self, rows: Sequence[DueJob]) -> None:
        """Pass over rows of the last selection until a sweep finds them again, about a second later; then `admitted`.

        In an ordered queue they keep the others of their key waiting.
        """
        self._aside.update(row.id for row in rows)

    def admitted(self, rows: Sequence[DueJob]) -> None:
        """Count these rows of the last selection as running, after the commit; others are still due."""
        moved = [row for row in rows if not row.expired]
        if moved:
            self._changed_at = monotonic()
            self.allowances.staged_began()
        for row in moved:
            self._begin(row.id, row.key or UNKEYED)
        self._streams.end({row.id for row in moved}, self._aside)
        self._set_next_look()

    def redeliverable(self, limit: int) -> list[int]:
        """Find up to `limit` due retries that may be admitted now, at read committed."""
        if not self._is_rebuilt:
            self._rebuild()
        self._settle()
        most = self.allowances.retries_of_queue(staged_wait=self._streams.has_waiting)
        found = self._retries.find(min(limit, most))
        if len(found) < limit:
            self.allowances.keep_for_retries(self._retries.keys_left())
        return found

    def _settle(self) -> None:
        if claimed := self.allowances.rates.settle(self._connection):
            self._changed_at = monotonic()
        for key in claimed:
            self._streams.enter(key)

    def redelivered(self, claims: Mapping[int, int]) -> None:
        """Count these retries as running, each with the number of its claims so far."""
        for job_id, number in claims.items():
            self._begin(job_id, self._retries.key_of(job_id), number)
            self.allowances.retries_began()

    def _begin(self, job_id: int, key: str, claims: int = 0) -> None:
        if self.allowances.looks_at_running:
            self._running.add(job_id, key)
        self.allowances.rates.take(job_id, key, claims)

    def _rebuild(self) -> None:
        self._clock.set(running.clock(self._connection))
        if self.allowances.looks_at_running:
            self._running.rebuild()
        self.allowances.rates.refill(self._connection)
        self._is_rebuilt = True

    @property
    def is_first_sweep(self) -> bool:
        """True if rows may wait that no look has found yet."""
        return self._streams.is_first_sweep

    @property
    def is_idle(self) -> bool:
        """True if nothing of the queue is known to be due."""
        return self._is_rebuilt and not self._streams.known and not self.is_first_sweep

    @property
    def may_sleep(self) -> bool:
        """True if the queue is idle, and no job of it has begun or ended for a while."""
        return self.is_idle and monotonic() - self._changed_at > _AWAKE_SECONDS

    @property
    def may_admit(self) -> bool:
        """True if some row may be admitted now, as far as the last look knows."""
        return self._streams.has_waiting and self.allowances.of_queue() > 0

    @property
    def may_redeliver(self) -> bool:
        """True if some retry may be admitted now, as far as the last look knows."""
        return not self._is_rebuilt or self.allowances.retries_of_queue(staged_wait=False) > 0

    @property
    def _waits_for_slots(self) -> bool:
        """True if the end of a running job may let another one begin."""
        if not self.allowances.looks_at_running or not self._streams.known:
            return False
        return self._streams.has_blocked or not self.allowances.of_queue()

    def _look_at_running(self) -> None:
        began = monotonic()
        ended = self._running.look()
        for key in ended:
            self._streams.job_ended(key)
        self._looked_at = monotonic()
        if ended:
            self._changed_at = self._looked_at
        self._look_seconds = self._looked_at - began

    @property
    def _nap_until(self) -> float:
        """End of a pause that grows while nothing changes."""
        now = monotonic()
        return now + min(_NAP_PART * (now - self._changed_at), _LONGEST_NAP_SECONDS)

    @property
    def _look_at_running_at(self) -> float:
        if self._waits_for_slots:
            quiet = _NAP_PART * (self._looked_at - self._changed_at)
            return self._looked_at + max(_NAP_SECONDS, self._look_seconds, min(quiet, _LONGEST_NAP_SECONDS))
        return self._looked_at + max(_REST_SECONDS, 9 * self._look_seconds)

    def _set_next_look(self) -> None:
        may_sweep = self.may_admit or self.is_first_sweep
        times = [self._streams.next_look_at(0.0 if may_sweep else self._nap_until)]
        if self.may_admit:
            times.append(monotonic())
        if self._waits_for_slots:
            times.append(self._look_at_running_at)
        if (at := self.allowances.rates.next_of_queue_at()) is not None:
            times.append(max(at, self._nap_until) if self.allowances.rates.waits_for_claims else at)
        if self.allowances.rates.holds_keys and self._streams.has_blocked:
            times.append(self._nap_until)
        self.next_look_at = min(times)
