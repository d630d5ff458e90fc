"""Dead jobs grouped by name and by where in the application they failed.

No index fits, so the rows with the highest ids are read, up to a bound.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from drain.database.postgres import Connection
from drain.read.tracebacks import Frame, innermost_own_frame

LOOKED_AT = 10_000
_SLICE = 500
_MESSAGE = 300
# Characters from each end; longer tracebacks are mostly recursion.
_HALF = 4000
# OFFSET 0 detoasts the text once, not at each use: measured, a quarter of a second for all.
_NEWEST = f"""
SELECT id, job_name, queue, died_at, reason, last_error ->> 'type',
    left(coalesce(last_error ->> 'message', explanation), {_MESSAGE}),
    CASE WHEN octet_length(traceback.text) > {2 * _HALF}
        THEN left(traceback.text, {_HALF}) || E'\\n' || right(traceback.text, {_HALF}) ELSE traceback.text END
FROM dead_jobs, LATERAL (
    SELECT CASE WHEN reason IN ('failed', 'gave up') THEN last_error ->> 'traceback' END AS text OFFSET 0) AS traceback
WHERE id < %(before)s ORDER BY id DESC LIMIT %(limit)s
"""
_BEHIND_ALL = 2**63 - 1
_LISTED = """
SELECT id, queue, died_at, attempts, tag, key, reason,
    left(coalesce(last_error ->> 'message', explanation), 300)
FROM dead_jobs WHERE id = ANY (%s::bigint[]) ORDER BY id DESC
"""


class Death(NamedTuple):
    """Row of `dead_jobs`.

    Attributes:
        reason: `failed`, `gave up`, `expired`, `unreadable`, `lease`, `cancelled`.
        message: Of the last error, or the explanation.
        frame: Where in the application; None without an exception.
    """

    id: int
    job_name: str
    queue: str
    died_at: datetime
    reason: str
    error: str | None
    message: str
    frame: Frame | None

    @property
    def where(self) -> str:
        """Place of the error, or the reason."""
        return self.frame.short if self.frame else self.reason


class Ended(NamedTuple):
    """Dead job: 10,000 whole rows would take 10 MB."""

    id: int
    died_at: datetime


@dataclass(slots=True)
class Group:
    """Dead jobs of one name and place, highest id first; `digest` is stable while these are."""

    digest: str
    latest: Death
    deaths: list[Ended] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """Job ids, highest first."""
        return [death.id for death in self.deaths]

    @property
    def first_died_at(self) -> datetime:
        """Earliest death."""
        return min(death.died_at for death in self.deaths)


class Groups(NamedTuple):
    """Groups, largest first."""

    groups: Sequence[Group]
    looked_at: int
    has_more: bool

    def find(self, digest: str) -> Group | None:
        """Return the group, if read."""
        return next((group for group in self.groups if group.digest == digest), None)


class Listed(NamedTuple):
    """Dead job as listed."""

    id: int
    queue: str
    died_at: datetime
    attempts: int
    tag: str | None
    key: str | None
    reason: str
    message: str


def read_groups(connection: Connection, looked_at: int = LOOKED_AT) -> Groups:
    """Group the dead jobs with the highest ids."""
    by_digest: dict[str, Group] = {}
    number = 0
    for death in _newest(connection, looked_at + 1):
        number += 1
        if number > looked_at:
            break
        name = _digest(death)
        group = by_digest.setdefault(name, Group(name, death))
        group.deaths.append(Ended(death.id, death.died_at))
        if death.died_at > group.latest.died_at:
            group.latest = death
    largest_first = sorted(
        by_digest.values(), key=lambda group: (-len(group.deaths), -group.latest.died_at.timestamp())
    )
    return Groups(largest_first, min(number, looked_at), number > looked_at)


def listed(connection: Connection, ids: Sequence[int]) -> list[Listed]:
    """Read those still dead, highest id first."""
    return [Listed._make(row) for row in connection.execute(_LISTED, (list(ids),), binary=True)]


def _newest(connection: Connection, most: int) -> Iterator[Death]:
    """Read in slices to bound memory."""
    before, left = _BEHIND_ALL, most
    while left > 0:
        given = {"before": before, "limit": min(_SLICE, left)}
        rows = connection.execute(_NEWEST, given, binary=True).fetchall()
        for *values, traceback in rows:
            frame = innermost_own_frame(traceback or "", values[1])
            yield Death._make((*values, frame))
        if len(rows) < given["limit"]:
            return
        before, left = rows[-1][0], left - len(rows)


def _digest(death: Death) -> str:
    place = "\0".join(map(str, death.frame)) if death.frame else death.reason
    return hashlib.sha256(f"{death.job_name}\0{place}".encode()).hexdigest()[:16]
