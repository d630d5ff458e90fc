"""Whether the lists in Redis and `inflight_jobs` agree.

Between the two there is always something under way: committed and about to be pushed, popped and about to be
claimed, lost and about to be delivered again under a new number. A delivery is missing only if, look after
look, it is in no list and its row waits under the same number still.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from drain.audit.report import Breach, samples
from drain.audit.watch import nobody_leads, slices
from drain.errors import UnavailableError
from drain.postgres import Connection
from drain.transitions import id_array, state
from drain.wire import Wire

_IDS_PER_STATEMENT = 10_000
_ROWS_PER_FETCH = 10_000
# The most queues that a breach names.
_NAMES = 3

_MISSING = "delivered, not claimed, and not in the list of their queue ({queues})"
_STRANGER = "; this Redis has forgotten, or never knew, the namespace {namespace}"
_UNKNOWN = (
    "in Redis ({queues}) and in no table: discarded or archived since, "
    "or of another database with the same namespace"
)
_AHEAD = (
    "in Redis ({queues}) under numbers that were never handed out: PostgreSQL has forgotten its latest commits, "
    "or another database has the same namespace"
)

_DELIVERED = """
SELECT queue, id, delivery FROM inflight_jobs WHERE lease_expires_at IS NULL AND next_run_at IS NULL
"""
_STILL_DELIVERED = f"{_DELIVERED} AND id = ANY (%s::bigint[])"
# One statement, and so one snapshot: a job is never seen between two tables.
_IN_NO_TABLE = """
SELECT id FROM unnest(%s::bigint[]) AS listed (id)
WHERE NOT EXISTS (SELECT FROM staged_jobs AS job WHERE job.id = listed.id)
    AND NOT EXISTS (SELECT FROM inflight_jobs AS job WHERE job.id = listed.id)
    AND NOT EXISTS (SELECT FROM finished_jobs AS job WHERE job.id = listed.id)
    AND NOT EXISTS (SELECT FROM dead_jobs AS job WHERE job.id = listed.id)
"""


class Entry(NamedTuple):
    """One delivery of a job: a row that waits under this number, or an entry in the list of its queue."""

    queue: str
    id: int
    delivery: int


class Lists:
    """Compares what has been delivered with what the lists hold.

    Args:
        connection: In autocommit mode.
        redis: Where the leader pushes.
    """

    def __init__(self, connection: Connection, redis: Wire) -> None:
        self._connection = connection
        self._redis = redis
        # None before the first look at each.
        self._missing: set[Entry] | None = None
        self._strays: set[Entry] | None = None
        self._problem: str | None = None
        self._remembers = True

    @property
    def in_doubt(self) -> bool:
        """Whether to look again before these are called breaches."""
        return bool(self._problem or self._missing or self._strays)

    def look(self) -> None:
        """Find what seems missing or astray; from the second time on, keep what still does."""
        self._missing = self._delivered() if self._missing is None else self._still_delivered(self._missing)
        try:
            self._read_lists(self._missing)
            self._remembers = self._redis.remembers()
            self._problem = None
        except UnavailableError as error:
            self._problem = str(error)

    def breaches(self) -> list[Breach]:
        """What has seemed wrong each time; or only that Redis could not be asked."""
        if self._problem:
            return [Breach("redis", self._problem)]
        strays = self._strays or set()
        unknown = self._unknown(strays)
        stranger = "" if self._remembers else _STRANGER.format(namespace=self._redis.namespace)
        missing = _MISSING + stranger + nobody_leads(self._connection)
        return [
            *_breach(self._missing or set(), missing),
            *_breach([entry for entry in strays if entry.id in unknown], _UNKNOWN),
            *_breach([entry for entry in strays if entry.id not in unknown], _AHEAD),
        ]

    def _delivered(self) -> set[Entry]:
        with self._connection.transaction(), self._connection.cursor(name="delivered") as cursor:
            cursor.itersize = _ROWS_PER_FETCH
            return {Entry(*row) for row in cursor.execute(_DELIVERED)}

    def _still_delivered(self, missing: set[Entry]) -> set[Entry]:
        found: set[Entry] = set()
        for slice_ in slices(missing, _IDS_PER_STATEMENT):
            ids = id_array(entry.id for entry in slice_)
            found.update(Entry(*row) for row in self._connection.execute(_STILL_DELIVERED, (ids,)))
        return found & missing

    def _read_lists(self, missing: set[Entry]) -> None:
        """Strike out of `missing` what is in a list, and find what should be in none."""
        strays: set[Entry] = set()
        for queue in self._queues(missing):
            for page in self._redis.listed(queue):
                listed = {Entry(queue, *job) for job in page}
                strays |= self._astray(listed - missing)
                missing -= listed
        self._strays = strays if self._strays is None else self._strays & strays

    def _queues(self, missing: set[Entry]) -> set[str]:
        """All at the first look, those in doubt from then on."""
        in_doubt = {entry.queue for entry in missing | (self._strays or set())}
        return in_doubt if self._strays is not None else in_doubt | self._redis.queues()

    def _astray(self, entries: set[Entry]) -> set[Entry]:
        """Those of jobs that are in no table, or under numbers that were never handed out."""
        if not entries:
            return entries
        unknown = self._unknown(entries)
        # Asked after the list: a number is handed out before it is pushed.
        last = state.progress(self._connection).last_delivery
        return {entry for entry in entries if entry.id in unknown or entry.delivery > last}

    def _unknown(self, entries: set[Entry]) -> set[int]:
        unknown: set[int] = set()
        for slice_ in slices(entries, _IDS_PER_STATEMENT):
            ids = id_array(entry.id for entry in slice_)
            unknown.update(id_ for (id_,) in self._connection.execute(_IN_NO_TABLE, (ids,)))
        return unknown


def _breach(entries: Collection[Entry], explanation: str) -> list[Breach]:
    if not entries:
        return []
    names = sorted({entry.queue for entry in entries})
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    queues = ", ".join(names[:_NAMES]) + more
    return [
        Breach(
            "redis", explanation.format(queues=queues), len(entries), samples({entry.id for entry in entries})
        )
    ]
