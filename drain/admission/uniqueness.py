"""Uniqueness: of the jobs that share a name and a unique key, and wait at the same time, one stands.

The leader decides, in the transaction of a batch, so no application ever waits for the commit of another one. The job
with the highest id says by `keep` which of them stands:

    first   the one that is in flight and waits, or else the one with the lowest id
    last    the one with the highest id

The others give way: they end in `finished_jobs` without a run, with the id of the one that stands. A job that a worker
has claimed runs and does not wait, so nothing gives way to it, and it gives way to nothing: it may have read what the
later job is about to change. A job that gives way was committed before the one that stands is claimed, since the
snapshot of the batch has seen the one committed and the other unclaimed, and claims of before are fenced off.

The one that stands takes no later request with it. It expires no earlier than any that gave way to it; and it notes
the latest of them, which is staged again if the one that stands is cancelled (`cancellations`). If a worker claims it
before that is written, nothing gives way to it.

With a quiet time the one that stands waits until none has come for so long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from drain.database.postgres import Connection
from drain.failpoints import FailurePoint, failpoint
from drain.tables import unique
from drain.tables.staged import DueJob
from drain.tables.unique import Candidate, Scope, Stand

# Upper bound of the rows that are read for one batch, ready ones and scheduled ones.
_MOST_ROWS = 20_000
# Upper bound of the keys that are looked at together in `settle_returned`.
_MOST_KEYS = 1000


@dataclass(frozen=True, slots=True)
class Settled:
    """Due rows of a batch after the decision.

    Attributes:
        standing: Rows that may be moved, in the order in which they were given.
        superseded: Number of jobs that gave way: rows of the batch, other staged rows, and jobs in flight.
        postponed: Number of rows that are scheduled again, since their quiet time is not over.
    """

    standing: Sequence[DueJob]
    superseded: int = 0
    postponed: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision about the jobs of one unique key.

    Attributes:
        stands: Id of the job that stands.
        seconds: Seconds for which it waits on; 0 for none.
        staged, in_flight: Ids of the jobs that give way to it.
        expires_at: Time when the last of them all expires, in seconds since 1970; None for never.
    """

    stands: int
    seconds: float = 0.0
    staged: Sequence[int] = field(default=())
    in_flight: Sequence[int] = field(default=())
    expires_at: float | None = None


def settle(connection: Connection, rows: Sequence[DueJob]) -> Settled:
    """Decide which of these due rows stand; record what gives way, and schedule again what has to wait.

    Rows that have expired, and rows without a unique key, stand.

    Args:
        connection: The leader's, in the transaction of the batch, which has read the rows and moved none.
        rows: Due rows.
    """
    scopes = {
        row.id: (row.job_name, row.unique_key)
        for row in rows
        if row.unique_key is not None and not row.expired
    }
    if not scopes:
        return Settled(rows)
    wanted = list(dict.fromkeys(scopes.values()))
    found = _read(connection, wanted)
    known = {each.id for candidates in found.values() for each in candidates}
    for id_, scope in scopes.items():
        # One of very many of its key: newer ones were read, and say what becomes of it, and when it expires.
        if id_ not in known:
            found[scope].append(Candidate(id_, "ready", expires_at=0.0))
    verdicts = [decide(candidates) for candidates in found.values()]
    moves = {verdict.stands for verdict in verdicts if verdict.seconds <= 0}
    standing = [row for row in rows if row.id not in scopes or row.id in moves]
    return Settled(standing, *_execute(connection, verdicts))


def settle_returned(connection: Connection) -> int:
    """Decide about unique keys under which several jobs in flight wait; returns how many jobs gave way.

    A job comes back to such a key when its attempt fails, its lease runs out or it is called back, while a later job
    waits already.

    Args:
        connection: The leader's, in autocommit mode, at read committed.
    """
    wanted = unique.read_shared(connection, _MOST_KEYS)
    if not wanted:
        return 0
    with connection.transaction():
        found = _read(connection, wanted).values()
        # A worker may have claimed all that was in flight, and then only scheduled jobs are left.
        due = (candidates for candidates in found if any(each.state != "scheduled" for each in candidates))
        superseded, _ = _execute(connection, [decide(candidates) for candidates in due])
    return superseded


def decide(candidates: Sequence[Candidate]) -> Verdict:
    """Decide which of these jobs stands; the one with the highest id says by `keep` how. At least one is not scheduled.

    Scheduled jobs count only beside a due one with a quiet time; and they do not give way to a job in flight, which
    has waited for its quiet time.
    """
    in_flight = [each.id for each in candidates if each.state == "inflight"]
    ready = [each for each in candidates if each.state == "ready"]
    is_quiet = any(each.quiet_seconds for each in ready)
    staged = [each for each in candidates if each.state == "scheduled"] if is_quiet else []
    staged += ready
    newest = max(staged or candidates, key=lambda each: each.id)
    ids = [each.id for each in staged]
    stands = max(in_flight + ids) if newest.keep == "last" else min(in_flight or ids)
    giving_way = ready if stands in in_flight else staged
    seconds = 0.0
    if any(each.id == stands for each in ready):
        seconds = max((each.seconds_left or 0.0 for each in staged if each.quiet_seconds), default=0.0)
    gone = [each.id for each in giving_way if each.id != stands]
    back = [id_ for id_ in in_flight if id_ != stands]
    expiries = {each.expires_at for each in candidates if each.id in {stands, *gone, *back}}
    return Verdict(
        stands,
        seconds,
        staged=gone,
        in_flight=back,
        expires_at=None if None in expiries else max(each for each in expiries if each is not None),
    )


def _read(connection: Connection, wanted: Sequence[Scope]) -> dict[Scope, list[Candidate]]:
    """Read what waits under each key, without the jobs that a worker may have in hand.

    A worker that has outlived its lease may still run a job that waits again, and finish it late. That run has not seen
    what a later job is about: so nothing gives way to such a job before its token is raised.
    """
    found = unique.read_candidates(connection, wanted, most=1 + _MOST_ROWS // len(wanted))
    claimed = {each.id for candidates in found.values() for each in candidates if each.was_claimed}
    gone = claimed - unique.fence(connection, list(claimed))
    return {
        scope: [each for each in candidates if each.id not in gone] for scope, candidates in found.items()
    }


def _execute(connection: Connection, verdicts: Sequence[Verdict]) -> tuple[int, int]:
    """Write what was decided; returns how many jobs gave way, and how many rows wait on."""
    verdicts = _with_free(connection, verdicts)
    stands = {
        verdict.stands: Stand(max(*verdict.staged, *verdict.in_flight, 0), verdict.expires_at)
        for verdict in verdicts
        if verdict.staged or verdict.in_flight
    }
    standing = unique.stand(connection, stands)
    verdicts = [each for each in verdicts if each.stands not in stands or each.stands in standing]
    staged = {id_: verdict.stands for verdict in verdicts for id_ in verdict.staged}
    in_flight = {id_: verdict.stands for verdict in verdicts for id_ in verdict.in_flight}
    waits = {verdict.stands: verdict.seconds for verdict in verdicts if verdict.seconds > 0}
    superseded = unique.supersede_staged(connection, staged) + unique.supersede_in_flight(
        connection, in_flight
    )
    if superseded:
        failpoint(FailurePoint.SUPERSEDED)
    return superseded, unique.postpone(connection, waits)


def _with_free(connection: Connection, verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Leave out what another session has locked: a job that does not give way must not be noted as one that has."""
    free = unique.lock(connection, [id_ for each in verdicts for id_ in (*each.staged, *each.in_flight)])
    return [
        replace(
            each,
            staged=[id_ for id_ in each.staged if id_ in free],
            in_flight=[id_ for id_ in each.in_flight if id_ in free],
        )
        for each in verdicts
    ]
