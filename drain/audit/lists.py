"""Comparison of the Redis lists with `inflight_jobs`.

Some jobs are always between the two: committed, not pushed; popped, not claimed; lost, not redelivered. A delivery is
missing only if every look finds it in no list while its row waits with the same number.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain

from drain.audit.orphans import Entry, orphan_breaches, orphans_among
from drain.audit.recheck import no_leader_note, slices
from drain.audit.report import Breach, queue_names, samples
from drain.database.postgres import Connection
from drain.errors import OwnedByAnotherError, SchemaError, UnavailableError
from drain.tables import leader_progress
from drain.tables.columns import DELIVERED, id_array
from drain.wire import Producer
from drain.wire.namespace_guard import Owner

_IDS_PER_STATEMENT = 10_000
_ROWS_PER_FETCH = 10_000
_MISSING = "delivered but not claimed, and not in their queue's Redis list ({queues})"
_FORGOTTEN = "; this Redis has lost, or never had, the namespace {namespace}"
_FED_BY_ANOTHER = "; queue {queue} belongs to another database, {owner}"
_NO_LIST = "; the Redis key {key} is not a list: rename it"
_DELIVERED = f"SELECT queue, id, delivery FROM inflight_jobs WHERE {DELIVERED}"
# A join uses the primary key even with stale statistics; measured, `id = ANY` of 10,000 ids took 20 s on stale ones.
_STILL_DELIVERED = f"""
SELECT id, delivery FROM pg_catalog.unnest(%s::bigint[]) AS doubtful (id) JOIN inflight_jobs USING (id)
WHERE {DELIVERED}
"""

# By id and queue; a million take 100 MB.
Deliveries = dict[str, dict[int, int]]


class ListsCheck:
    """Check that delivered jobs are listed."""

    def __init__(self, connection: Connection, redis: Producer) -> None:
        self._connection = connection
        self._redis = redis
        # Another check reports this.
        with suppress(SchemaError):
            redis.identify(*leader_progress.identity(connection))
        self._others: dict[str, Owner] = {}
        self._not_lists: list[str] = []
        self._missing: Deliveries | None = None
        self._orphans: set[Entry] | None = None
        self._problem: str | None = None
        self._owned_by_another: str | None = None
        self._remembers = True

    @property
    def in_doubt(self) -> bool:
        """True while anything looks wrong or Redis fails."""
        return bool(self._problem or self._owned_by_another or self._missing or self._orphans)

    def look(self) -> None:
        """Find missing deliveries and orphans, or keep the remaining ones."""
        missing = self._delivered() if self._missing is None else self._still_delivered(self._missing)
        try:
            self._read_lists(missing)
            self._remembers = self._redis.remembers()
            self._others = self._redis.fed_by_others(missing.keys())
            self._not_lists = self._redis.not_lists(sorted(missing))
            self._problem = self._owned_by_another = None
        except UnavailableError as error:
            self._problem, self._owned_by_another = str(error), None
        except OwnedByAnotherError as error:
            self._problem, self._owned_by_another = None, str(error)
        self._missing = {queue: numbers for queue, numbers in missing.items() if numbers}

    def breaches(self) -> list[Breach]:
        """List the suspects found every time, or the namespace's other owner."""
        if self._owned_by_another:
            return [Breach("redis", self._owned_by_another)]
        if self._problem:
            return []
        return [*self._missing_breach(), *orphan_breaches(self._connection, self._orphans or set())]

    def unchecked(self) -> dict[str, str]:
        """Name this check if Redis did not answer."""
        return {"redis": self._problem} if self._problem else {}

    def _missing_breach(self) -> list[Breach]:
        missing = self._missing or {}
        if not missing:
            return []
        forgotten = "" if self._remembers else _FORGOTTEN.format(namespace=self._redis.namespace)
        others = "".join(
            _FED_BY_ANOTHER.format(queue=queue, owner=self._others[queue]) for queue in sorted(self._others)
        )
        wrong = "".join(_NO_LIST.format(key=key) for key in self._not_lists)
        explanation = _MISSING.format(queues=queue_names(missing)) + forgotten + others + wrong
        explanation += no_leader_note(self._connection)
        ids = samples(chain.from_iterable(missing.values()))
        return [Breach("redis", explanation, sum(map(len, missing.values())), ids)]

    def _delivered(self) -> Deliveries:
        found: Deliveries = {}
        with self._connection.transaction(), self._connection.cursor(name="delivered") as cursor:
            cursor.itersize = _ROWS_PER_FETCH
            for queue, id_, delivery in cursor.execute(_DELIVERED):
                found.setdefault(queue, {})[id_] = delivery
        return found

    def _still_delivered(self, missing: Deliveries) -> Deliveries:
        for numbers in missing.values():
            for ids in slices(tuple(numbers), _IDS_PER_STATEMENT):
                rows = self._connection.execute(_STILL_DELIVERED, (id_array(ids),))
                now = dict(rows.fetchall())
                for id_ in ids:
                    if now.get(id_) != numbers[id_]:
                        del numbers[id_]
        return missing

    def _read_lists(self, missing: Deliveries) -> None:
        orphans: set[Entry] = set()
        for queue in self._queues(missing):
            numbers = missing.get(queue, {})
            for page in self._redis.listed(queue):
                others: set[Entry] = set()
                for id_, delivery in page:
                    if numbers.get(id_) == delivery:
                        del numbers[id_]
                    else:
                        others.add(Entry(queue, id_, delivery))
                orphans |= orphans_among(self._connection, others)
        self._orphans = orphans if self._orphans is None else self._orphans & orphans

    def _queues(self, missing: Deliveries) -> set[str]:
        in_doubt = set(missing) | {orphan.queue for orphan in self._orphans or ()}
        return in_doubt if self._orphans is not None else in_doubt | self._redis.queues()
