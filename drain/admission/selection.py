"""Selection of a queue's rows for a batch, in turns from its streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from drain.admission.allowances import Allowances
from drain.admission.sources import Found, Source
from drain.admission.turns import Turns
from drain.tables import keyed
from drain.tables.staged import DueJob, Place

# Rows found but not selected, by stream.
Ahead: TypeAlias = dict[str, deque[Found]]

# Streams, and rows of each, in the first read; later reads grow.
_FIRST_STREAMS = 64
_FIRST_ROWS = 8
_GROWTH = 4
_MOST_ROWS = 4096
_MOST_AHEAD = 200_000


class Selection:
    """Rows that may be admitted, in order, not counted yet.

    Args:
        source: Read in the batch's transaction.
        ahead: Rows found earlier; selected ones are removed.
        vet: Returns streams that must not be read.
        stops: True for a row, or None if not ready, that stops its ordered stream.

    Attributes:
        blocked: Streams with waiting rows that may admit no more.
        touched: Streams read to their end, or with selected rows.
    """

    def __init__(
        self,
        source: Source,
        turns: Turns,
        allowances: Allowances,
        ahead: Ahead,
        vet: Callable[[Sequence[str]], Collection[str]] = lambda _: (),
        stops: Callable[[DueJob | None], bool] = lambda _: False,
    ) -> None:
        self.rows: dict[str, list[DueJob]] = {}
        self.blocked: set[str] = set()
        self.touched: set[str] = set()
        self._source = source
        self._turns = turns
        self._allowances = allowances
        self._ahead = ahead
        self._vet = vet
        self._stops = stops
        self._emptied: set[str] = set()
        self._left: dict[str, int] = {}
        # Place and number of rows of each stream's next read.
        self._taken_up_to: dict[str, Place] = {}
        self._widths: dict[str, int] = {}
        self._streams = _FIRST_STREAMS
        self._are_many = len(ahead) * _FIRST_ROWS > _MOST_AHEAD

    def run(self, room: int) -> list[DueJob]:
        """Select up to `room` rows."""
        selected: list[DueJob] = []
        # Rows found earlier may be gone.
        while not selected and (taken := self._take(room)):
            rows = keyed.read_rows(self._source.connection, self._source.queue, [id_ for id_, _ in taken])
            for id_, stream in taken:
                row = rows.get(id_)
                if self._stops(row):
                    self._turns.leave(stream)
                    self.blocked.discard(stream)
                    # If the row is gone, sweeps find the stream again.
                    self._emptied.add(stream)
                elif row is not None:
                    self.rows.setdefault(stream, []).append(row)
                    selected.append(row)
        return selected

    def is_at_end(self, stream: str) -> bool:
        """Return whether a stream has only selected rows."""
        return stream in self._emptied and not self._ahead.get(stream)

    def _take(self, room: int) -> list[tuple[int, str]]:
        turns, ahead, left = self._turns, self._ahead, self._left
        taken: list[tuple[int, str]] = []
        while len(taken) < room and (stream := turns.first()) is not None:
            may = left.get(stream)
            if may is None:
                may = left[stream] = self._allowances.of_key(stream)
            if may <= 0:
                self._block(stream)
                continue
            found = ahead.get(stream)
            if not found:
                if stream in self._emptied:
                    turns.leave(stream)
                else:
                    self._find(room - len(taken))
                continue
            place, key = found[0]
            if not turns.fair and place > turns.waiting[stream]:
                turns.postpone(stream, place)
                continue
            found.popleft()
            taken.append((key[1], stream))
            self._taken_up_to[stream] = key
            left[stream] = may - 1
            turns.served(stream, found[0][0] if found else (place[0], place[1] + 1))
        self.touched.update(stream for _, stream in taken)
        return taken

    def _block(self, stream: str) -> None:
        self.blocked.add(stream)
        self._turns.leave(stream)

    def _find(self, room: int) -> None:
        streams = []
        for stream in self._turns.following(min(self._streams, room)):
            if stream not in self._left:
                self._left[stream] = self._allowances.of_key(stream)
            if self._left[stream] <= 0:
                self._block(stream)
            elif not self._ahead.get(stream) and stream not in self._emptied:
                streams.append(stream)
        self._streams *= _GROWTH
        new = [stream for stream in streams if stream not in self._widths]
        for stream in self._vet(new) if new else ():
            self._block(stream)
        wanted = [self._wish(stream, room) for stream in streams if stream not in self.blocked]
        for (stream, _, count), rows in zip(wanted, self._source.read(wanted), strict=True):
            if len(rows) < count:
                self._emptied.add(stream)
                self.touched.add(stream)
            if rows:
                self._ahead[stream] = deque(rows)

    def _wish(self, stream: str, room: int) -> tuple[str, Place, int]:
        width = 1 if stream and self._source.reads_one else self._widths.get(stream, _FIRST_ROWS)
        self._widths[stream] = min(width * _GROWTH, _MOST_ROWS)
        if self._are_many:
            width = min(width, self._left[stream], room)
        return stream, self._taken_up_to.get(stream) or self._source.cursors[stream], width
