"""Sources of due rows: the streams of a queue, and reads of each.

    Keys           a stream per key, by priority and id; rows without a key are one more
    OrderedKeys    the same, by id alone
    Lanes          a stream per kind of lane, if no rule looks at keys
    AgingLanes     a stream per priority of each lane, in the order of waits

A stream is known while its rows may be due. Reads begin behind a cursor, so as not to step over drained rows; `notice`
moves it back for an earlier row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import ClassVar, TypeAlias

from drain.database.postgres import Connection
from drain.tables import keyed, staged
from drain.tables.keyed import Head, Paused, Wanted
from drain.tables.staged import LAST_PRIORITY, START, DueJob, Place

# Place among all streams; and priority and id.
Found: TypeAlias = tuple[tuple[float, int], Place]

UNKEYED = ""
_UNKEYED_KINDS = (0, 2)
_ALL_KINDS = (0, 1, 2, 3)
# Priorities that age separately.
_MOST_PRIORITIES = 1000
_BEFORE_ALL = (float("-inf"), 0)


class Source(ABC):
    """Streams of one queue, read on the leader's connection.

    Attributes:
        hinted: Jobs that hints skip.
        cursors: Place of each known stream's next read.
        reads_one: A read finds at most one row of each key.
    """

    reads_one: ClassVar[bool] = False

    def __init__(self, connection: Connection, queue: str, paused: Paused) -> None:
        self.connection = connection
        self.queue = queue
        self.paused = paused
        self.hinted = paused
        self.cursors: dict[str, Place] = {}

    @abstractmethod
    def heads(self, limit: int) -> tuple[list[Head], bool]:
        """Next first rows of a sweep; True at its end."""

    @abstractmethod
    def stream(self, head: Head) -> str:
        """Stream of a row."""

    @abstractmethod
    def read(self, wanted: Sequence[tuple[str, Place, int]]) -> list[list[Found]]:
        """Read a number of rows of each stream after a place, in a batch's transaction."""

    def notice(self, head: Head) -> tuple[str, tuple[float, int]]:
        """Learn of a stream; return its name and a lower bound of its place."""
        stream, before = self.stream(head), (head.priority, head.id - 1)
        cursor = self.cursors.get(stream)
        if cursor is None or before < cursor:
            self.cursors[stream] = before
        return stream, (head.priority, head.id)

    def advance(self, stream: str, row: DueJob) -> None:
        """Continue after this row."""
        if stream in self.cursors:
            self.cursors[stream] = row.place

    def place(self, stream: str) -> tuple[float, int]:
        """Lower bound of the place of a known stream's next row."""
        priority, id_ = self.cursors[stream]
        return priority, id_ + 1

    def forget(self, stream: str) -> None:
        """Forget a stream."""
        self.cursors.pop(stream, None)


class Keys(Source):
    """A stream for each key."""

    def __init__(self, connection: Connection, queue: str, paused: Paused) -> None:
        super().__init__(connection, queue, paused)
        self._swept = ""

    def heads(self, limit: int) -> tuple[list[Head], bool]:
        """See `Source`."""
        found: list[Head] = []
        if not self._swept:
            found = keyed.heads_of_lanes(
                self.connection, self.queue, _UNKEYED_KINDS, self.paused, each=False, limit=2
            )
        keys = keyed.heads_of_keys(self.connection, self.queue, self._swept, limit, self.hinted)
        self._swept = keys[-1].key or "" if len(keys) == limit else ""
        return found + keys, not self._swept

    def stream(self, head: Head) -> str:
        """See `Source`."""
        return head.key or UNKEYED

    def read(self, wanted: Sequence[tuple[str, Place, int]]) -> list[list[Found]]:
        """See `Source`."""
        by_key = [Wanted(*each) for each in wanted if each[0]]
        rows = keyed.read_keys(self.connection, self.queue, by_key, self.paused) if by_key else []
        found = iter(rows)
        return [
            [(place, place) for place in (next(found) if stream else self._read_unkeyed(after, count))]
            for stream, after, count in wanted
        ]

    def _read_unkeyed(self, after: Place, count: int) -> list[Place]:
        lanes = [
            Wanted(UNKEYED, max(after, first), count, kind, up_to)
            for kind, first, up_to in _BOUNDS
            if kind in _UNKEYED_KINDS and after < (up_to, 2**63 - 1)
        ]
        found = keyed.read_lanes(self.connection, self.queue, lanes, self.paused)
        return [place for places in found for place, _ in places][:count]


class OrderedKeys(Keys):
    """Keys in id order. Cursors only decide turns: a key is read from its beginning, in the batch's transaction."""

    reads_one = True

    def __init__(self, connection: Connection, queue: str, paused: Paused) -> None:
        super().__init__(connection, queue, paused)
        # A paused row holds those behind it.
        self.hinted = Paused()
        self._following: dict[str, Place | None] = {}

    def read(self, wanted: Sequence[tuple[str, Place, int]]) -> list[list[Found]]:
        """Read the first due row of each key, and rows without a key behind a place.

        A row that has not matured does so now; one locked by another session is found and stays where it is.
        """
        keys = [stream for stream, _, _ in wanted if stream]
        first = keyed.first_of_keys(self.connection, self.queue, keys) if keys else {}
        late = [row.id for row in first.values() if not row.is_ready]
        if late:
            staged.mature_these(self.connection, late)
        self._following.update((key, row.following) for key, row in first.items())
        places = {key: (row.priority, row.id) for key, row in first.items()}
        return [
            [(places[stream], places[stream])]
            if stream in places
            else [(place, place) for place in (() if stream else self._read_unkeyed(after, count))]
            for stream, after, count in wanted
        ]

    def advance(self, stream: str, row: DueJob) -> None:
        """Move a key's turn to its next row, if known."""
        super().advance(stream, row)
        following = self._following.pop(stream, None)
        if following and stream in self.cursors:
            self.cursors[stream] = (following[0], following[1] - 1)

    def forget(self, stream: str) -> None:
        """See `Source`."""
        super().forget(stream)
        self._following.pop(stream, None)


# Kind of lane, the place before its first row, and its last priority.
_FIRST_PATIENT = (0, 2**63 - 1)
_BOUNDS = (
    (0, START, 0),
    (1, START, 0),
    (2, _FIRST_PATIENT, LAST_PRIORITY),
    (3, _FIRST_PATIENT, LAST_PRIORITY),
)


class Lanes(Source):
    """Lanes by priority and id."""

    def heads(self, limit: int) -> tuple[list[Head], bool]:
        """See `Source`."""
        return keyed.heads_of_lanes(
            self.connection, self.queue, _ALL_KINDS, self.paused, each=False, limit=limit
        ), True

    def stream(self, head: Head) -> str:
        """See `Source`."""
        return str(head.kind)

    def read(self, wanted: Sequence[tuple[str, Place, int]]) -> list[list[Found]]:
        """See `Source`."""
        wishes = [Wanted("", after, count, int(stream), LAST_PRIORITY) for stream, after, count in wanted]
        found = keyed.read_lanes(self.connection, self.queue, wishes, self.paused)
        return [[(place, place) for place, _ in places] for places in found]


class AgingLanes(Source):
    """Lanes with aging: `aging_seconds` of waiting count as one step of priority."""

    def __init__(self, connection: Connection, queue: str, paused: Paused, aging_seconds: float) -> None:
        super().__init__(connection, queue, paused)
        self._aging_seconds = aging_seconds

    def heads(self, limit: int) -> tuple[list[Head], bool]:
        """See `Source`."""
        return keyed.heads_of_lanes(
            self.connection,
            self.queue,
            _ALL_KINDS,
            self.paused,
            each=True,
            limit=max(limit, _MOST_PRIORITIES),
        ), True

    def stream(self, head: Head) -> str:
        """See `Source`."""
        return f"{head.kind}:{head.priority}"

    def notice(self, head: Head) -> tuple[str, tuple[float, int]]:
        """See `Source`."""
        # Only a read finds when the row became due.
        return super().notice(head)[0], _BEFORE_ALL

    def place(self, stream: str) -> tuple[float, int]:  # noqa: ARG002
        """See `Source`."""
        return _BEFORE_ALL

    def read(self, wanted: Sequence[tuple[str, Place, int]]) -> list[list[Found]]:
        """See `Source`."""
        found = keyed.read_lanes(self.connection, self.queue, list(self._wishes(wanted)), self.paused)
        # Both grow equally with time: the order of two rows is constant.
        return [
            [((place[0] * self._aging_seconds + due_at, place[1]), place) for place, due_at in places]
            for places in found
        ]

    @staticmethod
    def _wishes(wanted: Iterable[tuple[str, Place, int]]) -> Iterable[Wanted]:
        for stream, after, count in wanted:
            kind, _, priority = stream.partition(":")
            yield Wanted("", after, count, int(kind), int(priority))
