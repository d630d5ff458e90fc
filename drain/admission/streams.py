"""Streams of one queue, from arrival to end."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from time import monotonic

from drain.admission.allowances import Allowances
from drain.admission.arrivals import Arrivals
from drain.admission.ordering import Ordering
from drain.admission.rules import Rules
from drain.admission.selection import Ahead, Selection
from drain.admission.sources import AgingLanes, Keys, Lanes, OrderedKeys, Source
from drain.admission.turns import Turns
from drain.database.postgres import Connection
from drain.tables.keyed import Paused
from drain.tables.staged import DueJob

# Pause before another read of a row set aside.
_ASIDE_SECONDS = 0.25
# Others are found once these are done.
MOST_STREAMS = 100_000


class Streams:
    """Known streams under one set of rules and pauses.

    Each is in the order, or blocked until a job of its key ends or a time comes.

    Args:
        paused_keys: With the end of each pause, or None.
    """

    # One thing: a stream from arrival to end.

    def __init__(
        self,
        connection: Connection,
        rules: Rules,
        paused: Paused,
        paused_keys: Mapping[str, datetime | None],
        allowances: Allowances,
        turns: Turns,
    ) -> None:
        self._rules = rules
        self._paused = paused
        self._allowances = allowances
        self._turns = turns
        self._source = _source_of(connection, rules, paused)
        # For lanes, statements skip paused keys.
        allowances.paused = paused_keys if isinstance(self._source, Keys) else {}
        self._ahead: Ahead = {}
        self._arrivals = Arrivals(self._source, self._turns, self._ahead, MOST_STREAMS)
        self.ordering = Ordering(connection, rules.queue, allowances, hold=rules.on_dead == "hold")
        self._selection: Selection | None = None
        # When streams come back.
        self._later: list[tuple[float, str]] = []

    def follow(self, paused: Paused, paused_keys: Mapping[str, datetime | None]) -> bool:
        """Follow other paused keys and keep all turns; False if other streams are needed.

        `RateLimited` may pause keys several times a second: too often for a sweep each.
        """
        kind = _kind_of(self._rules, paused)
        names_differ = (paused.names, paused.pairs) != (self._paused.names, self._paused.pairs)
        if names_differ or not issubclass(kind, Keys) or not isinstance(self._source, kind):
            return False
        before, self._allowances.paused = self._allowances.paused, paused_keys
        for key, until in before.items():
            if key not in paused_keys or paused_keys[key] != until:
                self.enter(key)
        return True

    @property
    def has_waiting(self) -> bool:
        """True if a stream is in the order."""
        return bool(self._turns.waiting)

    @property
    def is_first_sweep(self) -> bool:
        """See `Arrivals`."""
        return self._arrivals.is_first_sweep

    @property
    def known(self) -> int:
        """Number of known streams."""
        return len(self._source.cursors)

    @property
    def has_blocked(self) -> bool:
        """True if a known stream is blocked."""
        return len(self._turns.waiting) < self.known

    def next_look_at(self, sweep_from: float) -> float:
        """Time by `monotonic()` when a stream comes back or a sweep is worthwhile.

        No sweep begins before `sweep_from`; a begun one goes on.
        """
        later = self._later[0][0] if self._later else float("inf")
        sweep_at = self._arrivals.next_look_at
        if self._arrivals.is_between_sweeps:
            sweep_at = max(sweep_at, sweep_from)
        return min(sweep_at, later, self.ordering.next_look_at)

    def look(self, *, hint: bool) -> None:
        """Find streams with new or due rows, or no longer held."""
        self._arrivals.look(hint=hint)
        now = monotonic()
        while self._later and self._later[0][0] <= now:
            self.enter(heapq.heappop(self._later)[1])
        for key in self.ordering.look():
            self.enter(key)

    def hint(self, after: int) -> None:
        """Find streams with rows above this id."""
        self._arrivals.hint(after)

    def begin_again(self) -> None:
        """Sweep at once, as at first."""
        self._arrivals.begin_again()

    def select(self, room: int) -> list[DueJob]:
        """Select up to `room` rows in a batch's transaction; then call `end`."""
        self._turns.mark()
        self._selection = selection = self._new_selection()
        return selection.run(room)

    def _new_selection(self) -> Selection:
        parts = (self._source, self._turns, self._allowances, self._ahead)
        if not self._rules.ordered:
            return Selection(*parts)
        # A key's first row must be found in the transaction.
        self._ahead.clear()
        return Selection(*parts, self.ordering.vet, self._keeps_others)

    def _keeps_others(self, row: DueJob | None) -> bool:
        """Return True for a row that holds its key or waits: paused, locked before it matured, or behind a retry."""
        return row is None or self._paused.applies_to(row) or self.ordering.is_behind(row)

    def enter(self, stream: str) -> None:
        """Return a known stream to the order."""
        if stream in self._source.cursors:
            self._turns.enter(stream, self._source.place(stream))

    def job_ended(self, key: str) -> None:
        """Return the key to the order; a read shows whether it is held."""
        self._allowances.held.discard(key)
        self.enter(key)

    def end(self, admitted: Collection[int], aside: Collection[int]) -> None:
        """End the last selection after the commit.

        Args:
            admitted: Ids that left `staged_jobs`.
            aside: Ids that wait until found again.
        """
        selection, self._selection = self._selection, None
        if selection is None:
            return
        for stream in selection.touched:
            self._go_on(stream, selection, admitted, aside)
        for stream in selection.blocked:
            self._put_off(stream)

    def roll_back(self) -> None:
        """Undo a selection that was not ended."""
        selection, self._selection = self._selection, None
        if selection is not None:
            self._turns.undo()
            self._read_again(selection.touched)

    def _go_on(
        self, stream: str, selection: Selection, admitted: Collection[int], aside: Collection[int]
    ) -> None:
        passed = () if self._rules.ordered else aside
        for row in selection.rows.get(stream, ()):
            if row.id not in admitted and row.id not in passed and not row.expired:
                self._turns.leave(stream)
                self._read_again([stream])
                if row.id in aside:
                    heapq.heappush(self._later, (monotonic() + _ASIDE_SECONDS, stream))
                else:
                    self.enter(stream)
                return
            self._source.advance(stream, row)
        if selection.is_at_end(stream):
            self._forget(stream)

    def _put_off(self, stream: str) -> None:
        if stream not in self._source.cursors:
            return
        self._turns.leave(stream)
        again_at = self._allowances.next_of_key_at(stream)
        if self._allowances.of_key(stream):
            self.enter(stream)
        elif self.known > MOST_STREAMS // 2:
            # A sweep finds it again.
            self._forget(stream)
        elif again_at is not None:
            heapq.heappush(self._later, (again_at, stream))

    def _forget(self, stream: str) -> None:
        self._turns.leave(stream)
        self._source.forget(stream)
        self._read_again([stream])

    def _read_again(self, streams: Iterable[str]) -> None:
        for stream in streams:
            self._ahead.pop(stream, None)


def _source_of(connection: Connection, rules: Rules, paused: Paused) -> Source:
    if rules.aging_seconds:
        return AgingLanes(connection, rules.queue, paused, rules.aging_seconds)
    return _kind_of(rules, paused)(connection, rules.queue, paused)


def _kind_of(rules: Rules, paused: Paused) -> type[Source]:
    if rules.aging_seconds:
        return AgingLanes
    if rules.ordered:
        return OrderedKeys
    # Paused keys are skipped without reading their rows.
    return Keys if rules.for_keys or paused.keys else Lanes
