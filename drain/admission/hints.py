"""Hints: one statement finds the queues with rules that just received jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from time import monotonic

from drain.admission.awake import MOST_AT_ONCE
from drain.database.postgres import Connection
from drain.tables import keyed

# Pause per duration of a hint.
_PAUSE = 4
_RECENT_LIMIT = 2000


class Hints:
    """Finds queues on the leader's connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_expected = False
        self._next_at = 0.0
        self._last_id: int | None = None
        # Queues in turn.
        self._staged_in: dict[str, int] = {}

    def expect(self) -> None:
        """Let the next look find jobs just staged, otherwise up to a second later."""
        self._is_expected = True

    def forget(self) -> None:
        """Begin the next hint at the rows staged after it."""
        self._last_id = None

    @property
    def next_at(self) -> float:
        """Time by `monotonic()` of the next hint; infinite for none."""
        return self._next_at if self._is_expected else float("inf")

    def find(self, has_rules: Callable[[str], bool]) -> Iterator[tuple[str, int]]:
        """Yield queues with new jobs, and an id below theirs."""
        if self._last_id is None:
            self._last_id = keyed.last_id(self._connection)
        if not self._is_expected or monotonic() < self._next_at:
            return
        began = monotonic()
        if not self._staged_in:
            queues, last = keyed.recent_queues(self._connection, self._last_id, _RECENT_LIMIT)
            self._staged_in = dict.fromkeys(filter(has_rules, queues), self._last_id)
            self._last_id = last
        for queue in list(islice(self._staged_in, MOST_AT_ONCE)):
            yield queue, self._staged_in.pop(queue)
        self._is_expected = bool(self._staged_in)
        self._next_at = monotonic() + _PAUSE * (monotonic() - began)
