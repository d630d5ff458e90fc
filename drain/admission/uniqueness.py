"""Uniqueness: of the waiting jobs with one name and unique key, one stands.

The leader decides, in a batch's transaction, so no application waits for another's commit. `keep` of the highest id
chooses:

    first   the waiting one in flight, or else the lowest id
    last    the highest id

The others give way: they end in `finished_jobs` unrun, with the id of the standing job. Nothing gives way to a claimed
job: it may have read what a later job is about to change. The batch's snapshot has seen each job that gives way
committed and the standing one unclaimed, and earlier claims are fenced off.

No later request is lost. The standing job expires no earlier than any that gave way, and notes the latest, which is
staged again if it is cancelled (`cancellations`). If a worker claims it before that is written, nothing gives way.

With a quiet time, the standing job waits until no other has come for so long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from drain.database.postgres import Connection
from drain.failpoints import FailurePoint, failpoint
from drain.tables import unique
from drain.tables.staged import DueJob
from drain.tables.unique import Candidate, Scope, Stand

# Rows read per batch, ready and scheduled.
_MOST_ROWS = 20_000
_MOST_KEYS = 1000


@dataclass(frozen=True, slots=True)
class Settled:
    """Due rows of a batch after the decision.

    Attributes:
        standing: Rows that may move, in order.
        superseded: Jobs that gave way, in the batch or elsewhere.
        postponed: Rows rescheduled for their quiet time.
    """

    standing: Sequence[DueJob]
    superseded: int = 0
    postponed: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision on one key: `stands` waits for `seconds`; `staged` and `in_flight` ids give way.

    `expires_at` is the latest expiry, in seconds since 1970; None for never.
    """

    stands: int
    seconds: float = 0.0
    staged: Sequence[int] = field(default=())
    in_flight: Sequence[int] = field(default=())
    expires_at: float | None = None


def settle(connection: Connection, rows: Sequence[DueJob]) -> Settled:
    """Decide which due rows stand, and write the decision, in the batch's transaction, before any move.

    Expired rows, and rows without a unique key, stand.
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
        # One of very many: newer ones decide.
        if id_ not in known:
            found[scope].append(Candidate(id_, "ready", expires_at=0.0))
    verdicts = [decide(candidates) for candidates in found.values()]
    moves = {verdict.stands for verdict in verdicts if verdict.seconds <= 0}
    standing = [row for row in rows if row.id not in scopes or row.id in moves]
    return Settled(standing, *_execute(connection, verdicts))


def settle_returned(connection: Connection) -> int:
    """Decide about keys shared by waiting jobs in flight; return how many gave way.

    A job returns to such a key when an attempt fails, its lease expires or it is called back. In autocommit mode, at
    read committed.
    """
    wanted = unique.read_shared(connection, _MOST_KEYS)
    if not wanted:
        return 0
    with connection.transaction():
        found = _read(connection, wanted).values()
        # If all in flight were claimed, only scheduled jobs are left.
        due = (candidates for candidates in found if any(each.state != "scheduled" for each in candidates))
        superseded, _ = _execute(connection, [decide(candidates) for candidates in due])
    return superseded


def decide(candidates: Sequence[Candidate]) -> Verdict:
    """Decide which of these jobs, not all scheduled, stands.

    Scheduled jobs count only with a due one that has a quiet time, and do not give way to one in flight.
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
    """Read the waiting jobs of each key, without those that a worker may still run.

    A worker that outlived its lease may not have seen a later job's change. Nothing gives way to its job before its
    token is raised.
    """
    found = unique.read_candidates(connection, wanted, most=1 + _MOST_ROWS // len(wanted))
    claimed = {each.id for candidates in found.values() for each in candidates if each.was_claimed}
    gone = claimed - unique.fence(connection, list(claimed))
    return {
        scope: [each for each in candidates if each.id not in gone] for scope, candidates in found.items()
    }


def _execute(connection: Connection, verdicts: Sequence[Verdict]) -> tuple[int, int]:
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
    """Leave out locked jobs, which do not give way and must not be noted as such."""
    free = unique.lock(connection, [id_ for each in verdicts for id_ in (*each.staged, *each.in_flight)])
    return [
        replace(
            each,
            staged=[id_ for id_ in each.staged if id_ in free],
            in_flight=[id_ for id_ in each.in_flight if id_ in free],
        )
        for each in verdicts
    ]
