"""Small tables in the leader's memory; each look reads only changes.

A row is read again if its transaction may have been open at the last look; after a delete, all rows are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from drain.database.postgres import Connection

T = TypeVar("T")

_READ = """
SELECT seen.*, changed.* FROM (
    SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS xid) AS text), clock_timestamp(),
        (SELECT count(*) FROM {table})
) AS seen (open_from, now, number) LEFT JOIN (
    SELECT {columns} FROM {table}
    WHERE %(since)s::text IS NULL OR pg_catalog.age(xmin) <= pg_catalog.age(%(since)s::text::xid)
) AS changed ON true
"""


class _Seen(NamedTuple):
    open_from: str
    now: datetime
    number: int


class FollowedTable(Generic[T]):
    """Rows by primary key, the first of `columns`, and the time of the last look."""

    def __init__(self, table: str, columns: str, row_of: Callable[[Any], T]) -> None:
        self._statement = _READ.format(table=table, columns=columns)
        self._row_of = row_of
        self._since: str | None = None
        self.rows: dict[Any, T] = {}
        self.now: datetime | None = None

    def look(self, connection: Connection) -> Mapping[Any, T | None]:
        """Read changes, in autocommit mode; return changed and deleted rows as they were, None for new ones."""
        seen, found = self._read(connection, self._since)
        if len(self.rows.keys() | found.keys()) != seen.number:
            seen, found = self._read(connection, None)
            found |= dict.fromkeys(self.rows.keys() - found.keys())
        before = {key: self.rows.get(key) for key, row in found.items() if self.rows.get(key) != row}
        for key in before:
            if (row := found[key]) is None:
                del self.rows[key]
            else:
                self.rows[key] = row
        self._since, self.now = seen.open_from, seen.now
        return before

    def _read(self, connection: Connection, since: str | None) -> tuple[_Seen, dict[Any, T | None]]:
        values = connection.execute(self._statement, {"since": since}, binary=True).fetchall()
        found: dict[Any, T | None] = {
            each[3]: self._row_of(each[3:]) for each in values if each[3] is not None
        }
        return _Seen._make(values[0][:3]), found
