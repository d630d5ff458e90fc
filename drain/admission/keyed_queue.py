"""Queue with rules: which due rows and retries may be admitted.

Only the leader admits. Between looks at `inflight_jobs`, running jobs can only end, so a count from the last look plus
later admissions is never too low. All is rebuilt from the tables when a term begins or rules appear.
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

# Shortest pauses between looks at running jobs: if rows wait for them, and otherwise.
_NAP_SECONDS = 0.002
_REST_SECONDS = 0.5
# Between looks that notifications ask for: any role may send them.
_NOTICED_SECONDS = 0.005
# While nothing may begin, pauses grow to this part of the time since the last start or end. Measured: at 50 ms, a
# hundred full queues took half a processor.
_NAP_PART = 0.02
_LONGEST_NAP_SECONDS = 1.0
# Then an idle queue may sleep.
_AWAKE_SECONDS = 5.0
_CLOCK_SECONDS = 10.0


class RuledQueue:
    """One queue with rules or pauses; the next look is at `next_look_at`, by `monotonic()`."""

    # One thing: a batch's steps in one queue.

    def __init__(self, connection: Connection, rules: Rules) -> None:
        self._connection = connection
        self._paused = Paused()
        self._paused_keys: Mapping[str, datetime | None] = {}
        self._turns = Turns()
        self._clock = DatabaseClock()
        self._follow(rules)

    def change(self, rules: Rules) -> None:
        """Follow other rules."""
        earlier = self.allowances
        self._follow(rules)
        self.allowances.keep_rates_of(earlier)

    def count_again(self) -> None:
        """Recount running jobs; the buckets stay, as they know more than the tables."""
        self._is_rebuilt = False
        self.allowances.rates.forgive_after_look()

    def end(self) -> None:
        """Stop following rules, in autocommit mode."""
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
        """Skip exactly these jobs: by name, by key with its pause's end, by key and name."""
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
        # When a notification asks for a look, and the earliest time for the next to do so.
        self._noticed_at, self._notice_from = float("inf"), 0.0
        self.next_look_at = 0.0

    def notice_end(self) -> None:
        """Look at running jobs soon, or once rows wait for them."""
        if self._noticed_at == float("inf"):
            self._noticed_at = max(monotonic(), self._notice_from, self._looked_at + self._look_seconds)
            self._notice_from = self._noticed_at + _NOTICED_SECONDS
            if self._waits_for_slots:
                self.next_look_at = min(self.next_look_at, self._noticed_at)

    def look(self) -> bool:
        """Read ended and new jobs, if due, in autocommit mode; return `may_admit`."""
        self._streams.roll_back()
        if not self._is_rebuilt:
            self._rebuild()
        elif self.allowances.rates and self._clock.age_seconds > _CLOCK_SECONDS:
            self._clock.set(running.clock(self._connection))
        if self.allowances.looks_at_running and monotonic() >= self._look_at_running_at:
            self._look_at_running()
        self._settle()
        # While the queue is full, a look every few milliseconds is one round trip.
        self._streams.look(hint=self.allowances.of_queue() > 0)
        self._set_next_look()
        return self.may_admit

    def wake(self) -> None:
        """Look again at due rows, after a sleep."""
        self._changed_at = monotonic()
        self._streams.begin_again()
        self.next_look_at = 0.0

    def hint(self, after: int) -> bool:
        """Read jobs above this id first, in autocommit mode; return `may_admit`."""
        if self._is_rebuilt:
            self._streams.roll_back()
            self._streams.hint(after)
            self._set_next_look()
        return self.may_admit

    def select(self, room: int, *, skip_locked: bool = False) -> list[DueJob]:
        """Select up to `room` rows in order, in a batch's transaction; `skip_locked` locks those returned.

        The caller buries expired ones.
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
        """Skip selected rows for about a second, until a sweep; call before `admitted`.

        In an ordered queue they hold their keys.
        """
        self._aside.update(row.id for row in rows)

    def admitted(self, rows: Sequence[DueJob]) -> None:
        """Count selected rows as running, after the commit; others stay due."""
        moved = [row for row in rows if not row.expired]
        if moved:
            self._changed_at = monotonic()
            self.allowances.staged_began()
        for row in moved:
            self._begin(row.id, row.key or UNKEYED)
        self._streams.end({row.id for row in moved}, self._aside)
        self._set_next_look()

    def redeliverable(self, limit: int) -> list[int]:
        """Find up to `limit` retries that may be admitted, at read committed."""
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
        """Count retries as running, with their numbers of claims."""
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
        """See `Arrivals`."""
        return self._streams.is_first_sweep

    @property
    def is_idle(self) -> bool:
        """True if no row is known to be due."""
        return self._is_rebuilt and not self._streams.known and not self.is_first_sweep

    @property
    def may_sleep(self) -> bool:
        """True if idle for a while."""
        return self.is_idle and monotonic() - self._changed_at > _AWAKE_SECONDS

    @property
    def may_admit(self) -> bool:
        """True if a row could be admitted at the last look."""
        return self._streams.has_waiting and self.allowances.of_queue() > 0

    @property
    def may_redeliver(self) -> bool:
        """True if a retry could be admitted at the last look."""
        return not self._is_rebuilt or self.allowances.retries_of_queue(staged_wait=False) > 0

    @property
    def _waits_for_slots(self) -> bool:
        if not self.allowances.looks_at_running or not self._streams.known:
            return False
        return self._streams.has_blocked or not self.allowances.of_queue()

    def _look_at_running(self) -> None:
        began, self._noticed_at = monotonic(), float("inf")
        ended = self._running.look()
        for key in ended:
            self._streams.job_ended(key)
        self._looked_at = monotonic()
        if ended:
            self._changed_at = self._looked_at
        self._look_seconds = self._looked_at - began

    @property
    def _nap_until(self) -> float:
        now = monotonic()
        return now + min(_NAP_PART * (now - self._changed_at), _LONGEST_NAP_SECONDS)

    @property
    def _look_at_running_at(self) -> float:
        if self._waits_for_slots:
            quiet = _NAP_PART * (self._looked_at - self._changed_at)
            pause = max(_NAP_SECONDS, self._look_seconds, min(quiet, _LONGEST_NAP_SECONDS))
            return min(self._noticed_at, self._looked_at + pause)
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
