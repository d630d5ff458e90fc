"""Files of open days: one per batch, later merged by hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from datetime import date, timedelta
from time import monotonic
from typing import TYPE_CHECKING

from drain.pipeline import files
from drain.pipeline.files import COLUMNS, Writer, Written
from drain.pipeline.lake.files import Archive, File, Span

if TYPE_CHECKING:
    import pyarrow as pa

_EPOCH = date(1970, 1, 1)
_HOUR_SECONDS = 3600
_DAY_SECONDS = 86_400
# A past hour without new files for this long is merged.
_QUIET_SECONDS = 60.0
_ROWS = 8_192


class Hours:
    """Files of `drain archive --follow`, and their position in transaction order.

    File names alone record the position. A batch across two days has two files; dying between their names leaves the
    older day incomplete until it is closed.

    Args:
        since: First day in Postgres.
        next_transaction: Not reached by any transaction yet.
    """

    def __init__(self, archive: Archive, since: date, next_transaction: int) -> None:
        self._archive = archive
        self._since = since
        self._hours: defaultdict[tuple[date, int], list[File]] = defaultdict(list)
        self._written_at: dict[tuple[date, int], float] = {}
        self._merging: tuple[date, Iterator[None]] | None = None
        # Left to their close: closed days, or those from another server or version.
        self._left: set[date] = set()
        for day in map(date.fromisoformat, archive.days()):
            if day >= since:
                files.remove_unused(archive, day)
                self._resume(day, next_transaction)
        spans = [file.span for each in self._hours.values() for file in each]
        self.position = max((span.end for span in spans if span), default=0)

    def _resume(self, day: date, next_transaction: int) -> None:
        spans = {file: file.span for file in self._archive.files(day)}
        if any(span is None or span.end >= next_transaction for span in spans.values()):
            self._left.add(day)
            return
        for file, span in spans.items():
            if span:
                self._hours[day, span.hour].append(file)

    def leave(self, days: Collection[date]) -> None:
        """Leave days to their close."""
        self._left.update(days)
        if self._merging and self._merging[0] in days:
            self._end_merge()
        for day, hour in [key for key in self._hours if key[0] in days]:
            del self._hours[day, hour]

    def write(self, batches: Iterable[pa.RecordBatch], end: int) -> int:
        """Write rows of transactions in (`position`, `end`]; return the latest row's microseconds, or 0."""
        writers: dict[date, Writer] = {}
        latest: dict[date, int] = {}
        overall = 0
        try:
            for day, last, rows in _by_day(batches):
                overall = max(overall, last)
                if day >= self._since and day not in self._left:
                    if day not in writers:
                        writers[day] = Writer(self._archive, day, f"batch-{end}")
                    writers[day].add(rows, sort=True)
                    latest[day] = max(latest.get(day, 0), last)
            done = {day: writer.finish(sort=True) for day, writer in writers.items()}
        except BaseException:
            for writer in writers.values():
                writer.discard()
            raise
        spans = {day: Span(_hour(at), self.position, end) for day, at in latest.items()}
        # Latest first: if interrupted, the older day is closed, and thereby completed, sooner.
        for day in sorted(done, reverse=True):
            self._add(day, done[day], spans[day])
        self.position = end
        return overall

    def merge(self, now: float, until: float) -> None:
        """Merge past hours' files until a `monotonic()` time, and at least a little; `now` is the database's time."""
        while True:
            if self._merging is None:
                found = self._due(now)
                if found is None:
                    return
                self._merging = (found[0], self._merged(*found))
            if next(self._merging[1], self) is self:
                self._merging = None
            if monotonic() >= until:
                return

    def close(self) -> None:
        """Stop without a half-written file."""
        self._end_merge()

    def _end_merge(self) -> None:
        if self._merging:
            self._merging[1].close()  # type: ignore[attr-defined]
            self._merging = None

    def _due(self, now: float) -> tuple[date, int] | None:
        present = (_day(int(now)), int(now) % _DAY_SECONDS // _HOUR_SECONDS)
        for key, parts in self._hours.items():
            is_quiet = monotonic() - self._written_at.get(key, -_QUIET_SECONDS) >= _QUIET_SECONDS
            if len(parts) > 1 and key != present and is_quiet:
                return key
        return None

    def _merged(self, day: date, hour: int) -> Iterator[None]:
        parts = list(self._hours[day, hour])
        spans = [file.span for file in parts if file.span]
        writer = Writer(self._archive, day, f"merged-{hour:02}")
        try:
            for file in parts:
                for batch in self._archive.batches(file, COLUMNS, rows=_ROWS):
                    if writer.add(batch.cast(writer.schema), sort=True):
                        yield
            done = writer.finish(sort=True)
        except BaseException:
            writer.discard()
            raise
        self._hours[day, hour] = [file for file in self._hours[day, hour] if file not in parts]
        self._add(day, done, Span(hour, min(span.start for span in spans), max(span.end for span in spans)))
        # Singly: an object store takes a minute for all. Closing the day removes the rest.
        for file in parts:
            files.remove(self._archive, [file.path])
            yield

    def _add(self, day: date, done: Written, span: Span) -> None:
        name = f"hour-{span.hour:02}-{span.start}-{span.end}.parquet"
        files.give_names(self._archive, [(done, name)])
        path = f"{self._archive.directory(day)}/{name}"
        self._hours[day, span.hour].append(File(path, str(day), 0))
        self._written_at[day, span.hour] = monotonic()


def _by_day(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[date, int, pa.RecordBatch]]:
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        days = pc.floor_temporal(batch["finished_at"], unit="day").cast(pa.date32())
        for day in pc.unique(days).to_pylist():
            rows = batch.filter(pc.equal(days, pa.scalar(day)))
            yield day, pc.max(rows["finished_at"].cast(pa.int64())).as_py(), rows


def _day(seconds: int) -> date:
    return _EPOCH + timedelta(days=seconds // _DAY_SECONDS)


def _hour(microseconds: int) -> int:
    return microseconds // 1_000_000 % _DAY_SECONDS // _HOUR_SECONDS
