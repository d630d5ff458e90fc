"""Whether the lists in Redis and `inflight_jobs` agree.

Between the two there is always something under way: committed and about to be pushed, popped and about to be
claimed, lost and about to be delivered again under a new number. A delivery is missing only if, look after
look, it is in no list and its row waits under the same number still.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain

from drain.audit.orphans import Stray, astray, stray_breaches
from drain.audit.recheck import nobody_leads, slices
from drain.audit.report import Breach, queue_names, samples
from drain.database.postgres import Connection
from drain.errors import OwnedByAnotherError, SchemaError, UnavailableError
from drain.tables import leader_progress
from drain.tables.columns import DELIVERED, id_array
from drain.wire import Producer
from drain.wire.owners import Owner

_IDS_PER_STATEMENT = 10_000
_ROWS_PER_FETCH = 10_000
_MISSING = "delivered, not claimed, and not in the list of their queue ({queues})"
_STRANGER = "; this Redis has forgotten, or never knew, the namespace {namespace}"
_OTHER = "; queue {queue} is fed by another database, {owner}"
_DELIVERED = f"SELECT queue, id, delivery FROM inflight_jobs WHERE {DELIVERED}"
# A join, which is looked up by primary key whatever the planner knows of the table. Tried: `id = ANY` of ten
# thousand ids took twenty seconds where it had last been analyzed when it was empty.
_STILL_DELIVERED = f"""
SELECT id, delivery FROM pg_catalog.unnest(%s::bigint[]) AS doubtful (id) JOIN inflight_jobs USING (id)
WHERE {DELIVERED}
"""

# By queue: the delivery number of each id. A million of them take about a hundred megabytes.
Deliveries = dict[str, dict[int, int]]


class Lists:
    """Compares what has been delivered with what the lists hold.

    Args:
        connection: In autocommit mode.
        redis: Where the leader pushes.
    """

    def __init__(self, connection: Connection, redis: Producer) -> None:
        self._connection = connection
        self._redis = redis
        # Whether the row is there is for another check to say.
        with suppress(SchemaError):
            redis.identify(*leader_progress.identity(connection))
        self._others: dict[str, Owner] = {}
        # None before the first look at each.
        self._missing: Deliveries | None = None
        self._strays: set[Stray] | None = None
        self._problem: str | None = None
        self._owned_by_another: str | None = None
        self._remembers = True

    @property
    def in_doubt(self) -> bool:
        """Whether to look again before these are called breaches."""
        return bool(self._problem or self._owned_by_another or self._missing or self._strays)

    def look(self) -> None:
        """Find what seems missing or astray; from the second time on, keep what still does."""
        missing = self._delivered() if self._missing is None else self._still_delivered(self._missing)
        try:
            self._read_lists(missing)
            self._remembers = self._redis.remembers()
            self._others = self._redis.fed_by_others(missing.keys())
            self._problem = self._owned_by_another = None
        except UnavailableError as error:
            self._problem, self._owned_by_another = str(error), None
        except OwnedByAnotherError as error:
            self._problem, self._owned_by_another = None, str(error)
        self._missing = {queue: numbers for queue, numbers in missing.items() if numbers}

    def breaches(self) -> list[Breach]:
        """What has seemed wrong each time; or only that another database feeds the namespace."""
        if self._owned_by_another:
            return [Breach("redis", self._owned_by_another)]
        if self._problem:
            return []
        return [*self._missing_breach(), *stray_breaches(self._connection, self._strays or set())]

    def unchecked(self) -> dict[str, str]:
        """The check, if Redis did not answer."""
        return {"redis": self._problem} if self._problem else {}

    def _missing_breach(self) -> list[Breach]:
        missing = self._missing or {}
        if not missing:
            return []
        stranger = "" if self._remembers else _STRANGER.format(namespace=self._redis.namespace)
        others = "".join(
            _OTHER.format(queue=queue, owner=self._others[queue]) for queue in sorted(self._others)
        )
        explanation = _MISSING.format(queues=queue_names(missing)) + stranger + others
        explanation += nobody_leads(self._connection)
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
        """Strike out of `missing` what is in a list, and find what should be in none."""
        strays: set[Stray] = set()
        for queue in self._queues(missing):
            numbers = missing.get(queue, {})
            for page in self._redis.listed(queue):
                others: set[Stray] = set()
                for id_, delivery in page:
                    if numbers.get(id_) == delivery:
                        del numbers[id_]
                    else:
                        others.add(Stray(queue, id_, delivery))
                strays |= astray(self._connection, others)
        self._strays = strays if self._strays is None else self._strays & strays

    def _queues(self, missing: Deliveries) -> set[str]:
        """All at the first look, those in doubt from then on."""
        in_doubt = set(missing) | {stray.queue for stray in self._strays or ()}
        return in_doubt if self._strays is not None else in_doubt | self._redis.queues()
