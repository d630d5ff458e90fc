"""Dead jobs in groups: those of one job name whose error came from one place in the application's own code.

The table has no index by time or by name, and may hold very many rows. So the rows with the highest ids are looked at,
up to a bound, through the primary key: those of the jobs that were staged last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from drain.database.postgres import Connection
from drain.read.tracebacks import Frame, innermost_own_frame

# Upper bound of the rows that are grouped.
LOOKED_AT = 10_000
# Rows that one statement reads.
_SLICE = 500
# Characters of a message that are read.
_MESSAGE = 300
# Characters of a traceback that are read, from its beginning and from its end: a longer one is most often recursion.
_HALF = 4000
# OFFSET keeps the text from being read from the row once for each of its uses: measured, a quarter of a second for all.
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
    """Row of `dead_jobs`, as far as groups need it.

    Attributes:
        id: Id of the job.
        job_name: Name of the job.
        queue: Queue of the job.
        died_at: Time of its end.
        reason: `failed`, `gave up`, `expired`, `unreadable`, `lease`, `cancelled`.
        error: Type of its last error; None if it has had none.
        message: Message of that error, or the explanation of its end.
        frame: Innermost frame in the application's own code; None where a job did not die of an exception.
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
        """Place of the error in the code; or the reason, where a job did not die of an exception."""
        return self.frame.short if self.frame else self.reason


class Ended(NamedTuple):
    """Dead job of a group: its id, and the time of its end. Ten thousand whole ones take 10 MB."""

    id: int
    died_at: datetime


@dataclass(slots=True)
class Group:
    """Dead jobs of one name and one place.

    Attributes:
        digest: Short name of the group, in letters and digits; the same as long as name and place are.
        latest: The one of them that died last.
        deaths: All of them that were looked at, the highest id first.
    """

    digest: str
    latest: Death
    deaths: list[Ended] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        """Ids of the jobs, the highest first."""
        return [death.id for death in self.deaths]

    @property
    def first_died_at(self) -> datetime:
        """Time of the earliest of these deaths."""
        return min(death.died_at for death in self.deaths)


class Groups(NamedTuple):
    """All groups, the largest first.

    Attributes:
        groups: The groups.
        looked_at: Number of the rows that were looked at.
        has_more: True if the table has more rows.
    """

    groups: Sequence[Group]
    looked_at: int
    has_more: bool

    def find(self, digest: str) -> Group | None:
        """Find a group by its short name; None if no job that was looked at is in it."""
        return next((group for group in self.groups if group.digest == digest), None)


class Listed(NamedTuple):
    """Dead job in a list."""

    id: int
    queue: str
    died_at: datetime
    attempts: int
    tag: str | None
    key: str | None
    reason: str
    message: str


def read_groups(connection: Connection, looked_at: int = LOOKED_AT) -> Groups:
    """Group the dead jobs with the highest ids.

    Args:
        connection: Any.
        looked_at: Upper bound of the rows.
    """
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
    """Read these dead jobs for a list, the highest id first; those that are no longer dead are left out."""
    return [Listed._make(row) for row in connection.execute(_LISTED, (list(ids),), binary=True)]


def _newest(connection: Connection, most: int) -> Iterator[Death]:
    """Read rows slice by slice: all tracebacks at once would take much memory."""
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
