"""Selection: the rows of one queue that a batch admits, taken in turns from the streams of a source."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

from drain.admission.allowances import Allowances
from drain.admission.sources import Found, Source
from drain.admission.turns import Turns
from drain.tables.staged import DueJob, Key

# Number of streams that the first read of a selection asks for, and of rows of each of them; each further read of the
# selection, and of the stream, asks for some times as many.
_FIRST_STREAMS = 64
_FIRST_ROWS = 2
_GROWTH = 4
_MOST_ROWS = 4096


class Selection:
    """Rows that may be admitted now, in their order. Nothing is counted as admitted yet.

    Args:
        source: Read within the batch's transaction.
        turns: The order of the streams, marked.
        allowances: How many rows of each stream there may be.
        vet: Finds those of some streams that must not be read, within the transaction.
        stops: Says of a row that it keeps its stream from going on: it is paused, in an ordered queue.

    Attributes:
        rows: Rows that were selected, each with its stream.
        blocked: Streams that may admit no more, with rows that wait.
        emptied: Streams that were read to their end.
        found: Rows that were read and not selected.
    """

    def __init__(
        self,
        source: Source,
        turns: Turns,
        allowances: Allowances,
        vet: Callable[[Sequence[str]], Collection[str]] = lambda _: (),
        stops: Callable[[DueJob], bool] = lambda _: False,
    ) -> None:
        self.rows: list[tuple[str, DueJob]] = []
        self.blocked: set[str] = set()
        self.emptied: set[str] = set()
        self.found: dict[str, deque[Found]] = {}
        self._selected: dict[str, list[DueJob]] = {}
        self._source = source
        self._turns = turns
        self._allowances = allowances
        self._vet = vet
        self._stops = stops
        self._left: dict[str, int] = {}
        # Place behind which a stream is read on in this selection, and the number of rows of its next read.
        self._read_up_to: dict[str, Key] = {}
        self._widths: dict[str, int] = {}
        self._streams = _FIRST_STREAMS

    def run(self, room: int) -> None:
        """Select up to `room` rows."""
        turns, found, left = self._turns, self.found, self._left
        counted = 0
        while counted < room and (stream := turns.first()) is not None:
            if self._may(stream) <= 0:
                self._block(stream)
                continue
            rows = found.get(stream)
            if not rows:
                if stream in self.emptied or stream in self.blocked:
                    turns.leave(stream)
                else:
                    self._read(room - counted)
                continue
            place, row = rows[0]
            if not turns.fair and place > turns.waiting[stream]:
                turns.postpone(stream, place)
                continue
            if self._stops(row):
                self._block(stream)
                continue
            rows.popleft()
            self.rows.append((stream, row))
            self._selected.setdefault(stream, []).append(row)
            turns.served(stream, rows[0][0] if rows else (place[0], place[1] + 1))
            # An expired row is given up, and does not begin.
            if not row.expired:
                left[stream] -= 1
                counted += 1
            elif self._allowances.one_at_a_time:
                left[stream] = 0

    @property
    def touched(self) -> Collection[str]:
        """Streams of which rows were selected, or that were read to their end."""
        return self._selected.keys() | self.emptied

    def rows_of(self, stream: str) -> Sequence[DueJob]:
        """Return the rows of one stream that were selected."""
        return self._selected.get(stream, ())

    def is_empty(self, stream: str) -> bool:
        """Return True if nothing is left of a stream but the rows that were selected."""
        return stream in self.emptied and not self.found.get(stream)

    def _may(self, stream: str) -> int:
        left = self._left.get(stream)
        if left is None:
            left = self._left[stream] = self._allowances.of_key(stream)
        return left

    def _block(self, stream: str) -> None:
        self.blocked.add(stream)
        self._turns.leave(stream)

    def _read(self, room: int) -> None:
        """Read the next rows of the first streams in the order."""
        streams = []
        for stream in self._turns.following(min(self._streams, room)):
            if self._may(stream) <= 0:
                self._block(stream)
            elif not self.found.get(stream) and stream not in self.emptied:
                streams.append(stream)
        self._streams *= _GROWTH
        new = [stream for stream in streams if stream not in self._widths]
        for stream in self._vet(new) if new else ():
            self._block(stream)
        wanted = [self._wish(stream, room) for stream in streams if stream not in self.blocked]
        if not wanted:
            return
        for (stream, _, count), rows in zip(wanted, self._source.read(wanted), strict=True):
            if len(rows) < count:
                self.emptied.add(stream)
            if rows:
                self.found[stream] = deque(rows)
                self._read_up_to[stream] = rows[-1][1].place

    def _wish(self, stream: str, room: int) -> tuple[str, Key, int]:
        width = self._widths.get(stream, _FIRST_ROWS)
        self._widths[stream] = min(width * _GROWTH, _MOST_ROWS)
        after = self._read_up_to.get(stream) or self._source.cursors[stream]
        return stream, after, min(width, self._may(stream) + 1, room + 1)
