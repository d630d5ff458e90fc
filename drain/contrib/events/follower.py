"""Follower of all jobs: polls the tables and reports each event once.

A look is a read-only transaction with a few index look-ups per queue, and the new rows. Only recent jobs' reports are
remembered; others may be repeated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic

from drain.contrib.events import change_feed
from drain.contrib.events.change_feed import Row, Snapshot
from drain.contrib.events.life import ENDS, Event, life, now_waiting
from drain.database.postgres import Connection

_MOST_JOBS = 200_000
_MOST_GAPS = 2_000
_MOST_PAGES = 10
# Ids below the highest that may be missing at the first look.
_FIRST_GAPS = 1_000
# Looks an id may stay missing after all transactions that could have used it have ended.
_GAP_LOOKS = 3
# A failure may be committed this long after its time.
_LATE = timedelta(seconds=15)
# Pause between readings of all dead jobs, in durations.
_DEAD_PAUSE = 50


class Follower:
    """Reports new events; `is_behind` if the last look left staged jobs."""

    # One thing: cursors that all depend on the last snapshot.

    def __init__(self) -> None:
        self.is_behind = False
        self._last: Snapshot | None = None
        self._began = datetime.max.replace(tzinfo=UTC)
        # Highest id seen, and read among staged jobs.
        self._top = self._read_to = 0
        # Missing ids: the transaction when noticed, and looks since.
        self._gaps: dict[int, tuple[int, int]] = {}
        self._deliveries: dict[str, int] = {}
        # Tokens of claims, and jobs that have left flight.
        self._claims: dict[int, int] = {}
        self._left: set[int] = set()
        self._told: OrderedDict[int, tuple[datetime, int]] = OrderedDict()
        self._deaths: OrderedDict[tuple[int, datetime], None] = OrderedDict()
        self._dead_seen: Snapshot | None = None
        self._dead_at = 0.0

    def look(self, connection: Connection) -> list[Event]:
        """Return new events in time order; the first look only notes positions."""
        with change_feed.one_snapshot(connection) as present:
            # A failover to a lagging replica moves all positions back.
            if self._last is None or present.xmax < self._last.xmax:
                self._begin(connection, present)
                events: list[Event] = []
            else:
                events = sorted(
                    self._events(connection, self._last, present),
                    key=lambda event: (event.order, event.id, event.place),
                )
        self._last = present
        self._forget()
        return events

    def _begin(self, connection: Connection, present: Snapshot) -> None:
        self._began, self._dead_seen = present.now, present
        self._top = change_feed.last_id(connection)
        first = max(1, self._top - _FIRST_GAPS + 1)
        self._miss(set(range(first, self._top + 1)) - change_feed.known_from(connection, first), present)
        self._deliveries = change_feed.last_deliveries(connection)
        self._claims = change_feed.claims(connection)

    def _events(self, connection: Connection, last: Snapshot, present: Snapshot) -> Iterator[Event]:
        staged = self._read_staged(connection)
        inflight, extra = self._read_inflight(connection, last)
        yield from self._tell(staged, are_new=True)
        yield from self._tell(inflight)
        yield from self._tell_extra(extra, present)
        seen = change_feed.ids_of(staged) | change_feed.ids_of(inflight)
        for page in change_feed.new_finished(connection, last):
            yield from self._tell(page)
            seen |= change_feed.ids_of(page)
        for rows in self._read_dead(connection, present, seen):
            yield from self._tell(rows)
            seen |= change_feed.ids_of(rows)
        self._note_ids(seen, present)

    # --- new rows

    def _read_staged(self, connection: Connection) -> list[Row]:
        found = change_feed.staged_among(connection, self._gaps)
        top, pages = self._top, 0
        self.is_behind = True
        while self.is_behind and pages < _MOST_PAGES:
            page = change_feed.new_staged(connection, top)
            found += page
            top, pages = page[-1]["id"] if page else top, pages + 1
            self.is_behind = len(page) == change_feed.PAGE
        self._read_to = top
        return found

    def _read_inflight(
        self, connection: Connection, last: Snapshot
    ) -> tuple[list[Row], list[tuple[str, Row]]]:
        """Read jobs in flight that may have changed, and events that no row keeps."""
        delivered = change_feed.new_deliveries(connection, self._deliveries)
        for row in delivered:
            self._deliveries[row["queue"]] = row["delivery"]
        failed = change_feed.failed_since(connection, last.now - _LATE)
        before, self._claims = self._claims, change_feed.claims(connection)
        changed = {job_id for job_id, token in self._claims.items() if before.get(job_id) != token}
        left = before.keys() - self._claims.keys()
        looked_up = change_feed.inflight_among(connection, changed | left)
        extra = [("delivered_again", row) for row in delivered if row["claimed_at"]]
        extra += [("deferred", row) for row in looked_up if row["id"] in left and _is_deferred(row)]
        self._left = left - change_feed.ids_of(looked_up)
        return [*delivered, *failed, *looked_up], extra

    def _read_dead(self, connection: Connection, present: Snapshot, seen: set[int]) -> Iterator[list[Row]]:
        """Read dead jobs: at once those whose claim ended, all others now and then."""
        yield change_feed.dead_among(connection, self._left - seen)
        if monotonic() < self._dead_at or self._dead_seen is None:
            return
        began = monotonic()
        yield change_feed.new_dead(connection, self._dead_seen, present, self._began)
        self._dead_seen = present
        self._dead_at = monotonic() + _DEAD_PAUSE * (monotonic() - began)

    # --- reports

    def _tell(self, rows: Iterable[Row], *, are_new: bool = False) -> Iterator[Event]:
        """Yield unreported events; all if these jobs are new."""
        for row in rows:
            job_id = row["id"]
            events = life(row)
            told = self._told.get(job_id)
            since = told or (events[0].order if are_new else self._began, -1)
            for event in events:
                if event.event in ENDS:
                    if not self._is_first_death(row, event):
                        continue
                elif event.place <= since:
                    continue
                yield event
            self._note(job_id, max(since, events[-1].place))

    def _is_first_death(self, row: Row, event: Event) -> bool:
        # A finished row is read once, in the first snapshot that sees it; a dead row perhaps again.
        if row["state"] != "dead":
            return True
        key = (row["id"], event.at)
        is_first = key not in self._deaths
        self._deaths[key] = None
        return is_first

    def _tell_extra(self, extra: Sequence[tuple[str, Row]], present: Snapshot) -> Iterator[Event]:
        for name, row in extra:
            event = now_waiting(row, name, present.now)
            self._note(row["id"], event.place)
            yield event

    def _note(self, job_id: int, place: tuple[datetime, int]) -> None:
        self._told[job_id] = place
        self._told.move_to_end(job_id)

    # --- missing ids

    def _note_ids(self, seen: set[int], present: Snapshot) -> None:
        # With staged jobs left, only ids up to the last one read are known.
        top = self._read_to if self.is_behind else max([self._read_to, *seen])
        missing = set(range(max(self._top, top - _MOST_GAPS) + 1, top + 1)) - seen
        self._top = top
        self._gaps = {
            job_id: (xmax, looks + (present.xmin >= xmax))
            for job_id, (xmax, looks) in self._gaps.items()
            if job_id not in seen and looks < _GAP_LOOKS
        }
        self._miss(missing, present)

    def _miss(self, ids: Iterable[int], present: Snapshot) -> None:
        for job_id in sorted(ids, reverse=True):
            if len(self._gaps) >= _MOST_GAPS:
                return
            self._gaps[job_id] = (present.xmax, 0)

    def _forget(self) -> None:
        for memory in (self._told, self._deaths):
            while len(memory) > _MOST_JOBS:
                memory.popitem(last=False)


def _is_deferred(row: Row) -> bool:
    """Return True if a job waits after an attempt that neither failed nor was interrupted."""
    if row["next_run_at"] is None:
        return False
    return all(event.place <= _claim(row) for event in life(row) if event.event in ("failed", "interrupted"))


def _claim(row: Row) -> tuple[datetime, int]:
    return row["claimed_at"] or row["moved_at"], len(ENDS)


class JobFollower:
    """Follows one job; the first look returns its events so far."""

    def __init__(self, job_id: int) -> None:
        self.is_known = False
        self._job_id = job_id
        self._told: set[tuple[str, datetime]] = set()
        self._delivery: int | None = None

    def look(self, connection: Connection) -> list[Event]:
        """Return new events in time order."""
        with change_feed.one_snapshot(connection) as present:
            rows = change_feed.any_state(connection, self._job_id)
        found: list[Event] = []
        for row in rows:
            self.is_known = True
            events = [event for event in life(row) if (event.event, event.at) not in self._told]
            self._told |= {(event.event, event.at) for event in events}
            delivery, self._delivery = self._delivery, row.get("delivery")
            if delivery is not None and delivery != row.get("delivery", delivery) and row["claimed_at"]:
                events.append(now_waiting(row, "delivered_again", present.now))
            found += events
        return found
