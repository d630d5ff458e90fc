"""What each job went through, by the database's own log of changes, as a word of an automaton."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import psycopg

from drain.tables.claims import Claim

# A change locks the job's row, so the order of a job's changes is that of their commits.
LOG = """
CREATE TABLE changes (n bigserial PRIMARY KEY, xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at timestamptz NOT NULL DEFAULT clock_timestamp(), place text NOT NULL,
    id bigint NOT NULL, is_there boolean NOT NULL, delivery bigint, token bigint,
    worker text, lease timestamptz, is_released boolean, due timestamptz, stands bigint, is_cancelled boolean);
CREATE FUNCTION log_change() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE job jsonb := to_jsonb(CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END);
BEGIN
    INSERT INTO changes (place, id, is_there, delivery, token, worker, lease, is_released,
        due, stands, is_cancelled)
    VALUES (TG_ARGV[0], (job ->> 'id')::bigint, TG_OP <> 'DELETE', (job ->> 'delivery')::bigint,
        (job ->> 'fencing_token')::bigint, job ->> 'claimed_by', (job ->> 'lease_expires_at')::timestamptz,
        job ->> 'claimed_at' IS NOT DISTINCT FROM job ->> 'failed_at', (job ->> 'next_run_at')::timestamptz,
        (job ->> 'superseded_by')::bigint, job ->> 'reason' IS NOT DISTINCT FROM 'cancelled');
    RETURN NULL;
END $$;
CREATE TRIGGER log AFTER INSERT OR UPDATE OR DELETE ON staged_jobs
FOR EACH ROW EXECUTE FUNCTION log_change('staged');
CREATE TRIGGER log AFTER INSERT OR UPDATE OR DELETE ON inflight_jobs
FOR EACH ROW EXECUTE FUNCTION log_change('inflight');
CREATE TRIGGER log AFTER INSERT OR UPDATE OR DELETE ON finished_jobs
FOR EACH ROW EXECUTE FUNCTION log_change('finished');
CREATE TRIGGER log AFTER INSERT OR UPDATE OR DELETE ON dead_jobs
FOR EACH ROW EXECUTE FUNCTION log_change('dead')
"""
_READ = """
SELECT id, n, xid, at, place, is_there, delivery, token, worker, lease, is_released, due, stands, is_cancelled
FROM changes ORDER BY id, n
"""
# From where a job may go in one transaction.
_PATHS = {
    "": {"staged"},
    "staged": {"staged", "inflight", "dead", "finished", "withdrawn"},
    "inflight": {"inflight", "finished", "dead", "staged"},
    "dead": {"dead", "staged", "inflight"},
    "finished": {"finished"},
}
_OPEN = ("staged", "inflight")
# Names of transitions; "again" is a new delivery, and "returned" the end of a claim that did not finish.
LETTERS = (
    "staged",
    "moved",
    "again",
    "claimed",
    "returned",
    "changed",
    "finished",
    "dead",
    "revived",
    "withdrawn",
)


class _Change(NamedTuple):
    id: int
    n: int
    xid: str
    at: datetime
    place: str
    is_there: bool
    delivery: int | None
    token: int | None
    worker: str | None
    lease: datetime | None
    is_released: bool | None
    due: datetime | None
    stands: int | None
    is_cancelled: bool | None


class _State(NamedTuple):
    place: str = ""
    delivery: int = 0
    token: int = 0
    worker: str | None = None
    lease: datetime | None = None
    claimed_delivery: int = 0
    due: datetime | None = None
    is_released: bool = False


@dataclass
class Notes:
    """What workers know, and the tables do not.

    Attributes:
        claimed: The claimed delivery, by job and token.
        claimants: Process and job of each claim.
        ended: Job and token of each outcome that was accepted, and whether it is a finish.
        problems: What programs have seen and should not have.
        has_failed: A job may wait for its next attempt.
        shares_names: Several workers may be threads of one process.
        may_list_twice: Redis may bring a delivery back, so that it is claimed again once its lease is over.
        may_claim_again: A worker repeats a claim whose answer was lost.
    """

    claimed: dict[tuple[int, int], int] = field(default_factory=dict)
    claimants: set[tuple[str, int]] = field(default_factory=set)
    ended: set[tuple[int, int, bool]] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    has_failed: bool = False
    shares_names: bool = False
    may_list_twice: bool = False
    may_claim_again: bool = False

    def has_claims(self) -> bool:
        """Return True if a worker may hold a claim."""
        return len(self.claimed) > len(self.ended)

    def has_later(self, claims: Iterable[Claim]) -> bool:
        """Return True if another worker has claimed one of these jobs since."""
        return any((claim.id, claim.fencing_token + 1) in self.claimed for claim in claims)


class History(NamedTuple):
    """All changes of all jobs.

    Attributes:
        problems: What a job did that no job may do.
        letters: Each transition and its time.
    """

    problems: list[str]
    letters: list[tuple[str, datetime]]


def read(connection: psycopg.Connection[Any], notes: Notes) -> History:
    """Read the log."""
    history = History(list(notes.problems), [])
    changes = map(_Change._make, connection.execute(_READ))
    ends = set()
    gave_way: list[tuple[int, int, int]] = []
    # When a later attempt began, or the request went on to another job.
    covered: dict[int, int] = {}
    for job, its in groupby(changes, attrgetter("id")):
        state = _State()
        for _, group in groupby(its, attrgetter("xid")):
            together = list(group)
            after = _after(state, together, notes)
            if isinstance(after, str):
                history.problems.append(f"job {job}: {after} after {state}")
                break
            through = notes.claimed.get((job, after.token), after.delivery)
            if after.token > state.token and through != after.delivery:
                problem = f"claimed through delivery {through} past {after.delivery}"
                history.problems.append(f"job {job}: {problem}")
            history.letters.append((_letter(state, after), together[-1].at))
            n = together[-1].n
            stands = next((change.stands for change in together if change.stands), None)
            is_cancelled = any(change.is_cancelled and change.is_there for change in together)
            if (after.place != "inflight" or not after.lease) and not stands and not is_cancelled:
                # The end of a lease finishes nothing.
                ends.add((job, state.token, after.place == "finished"))
            if stands:
                gave_way.append((n, job, stands))
            if stands or after.place == "dead" or (after.token > state.token and after.lease):
                covered[job] = n
            state = after
    for n, job, stands in gave_way:
        if n > covered.get(stands, 0):
            history.problems.append(f"job {job}: gave way to {stands}, which began no attempt afterwards")
    outdated = sorted(notes.ended - ends)
    history.problems.extend(
        f"job {job}: an outcome is accepted under token {token}" for job, token, _ in outdated
    )
    return history


def _letter(before: _State, after: _State) -> str:
    letter = "changed"
    if before.place == "dead" and after.place in _OPEN:
        letter = "revived"
    elif before.place != after.place:
        letter = "moved" if after.place == "inflight" else after.place
    elif after.token > before.token and after.lease:
        letter = "claimed"
    elif after.delivery > before.delivery:
        letter = "again"
    elif before.lease and not after.lease:
        letter = "returned"
    return letter


def _after(before: _State, changes: list[_Change], notes: Notes) -> _State | str:
    places = {before.place} - {""}
    state = before
    for change in changes:
        (places.add if change.is_there else places.discard)(change.place)
        if change.place == "inflight" and change.is_there:
            after = _moved_on(state, change, notes)
            if isinstance(after, str):
                return after
            state = after
        else:
            state = state._replace(token=max(state.token, change.token or 0))
    if not places and before.place == "staged":
        places = {"withdrawn"}
    if len(places) != 1:
        return f"in {sorted(places) or 'no table'}"
    (place,) = places
    if place not in _PATHS[before.place]:
        return f"from {before.place or 'nowhere'} to {place}"
    if place == "finished" and before.place == "inflight":
        gave_way = any(change.stands for change in changes)
        # A worker whose lease is over may still finish, until another one claims.
        if before.lease if gave_way else not before.token:
            return "gave way to another under a claim" if gave_way else "finished without a claim"
    if place != "inflight":
        state = state._replace(lease=None, due=None, is_released=False)
    return state._replace(place=place)


def _moved_on(before: _State, change: _Change, notes: Notes) -> _State | str:
    assert change.delivery is not None
    assert change.token is not None
    # Without a lease, a higher token fences earlier claims off.
    is_claim = change.token > before.token and change.lease is not None
    is_held = before.lease is not None and before.lease > change.at
    is_repeated = (notes.may_list_twice and before.lease) or (notes.may_claim_again and is_held)
    is_own = notes.may_claim_again and change.worker == before.worker
    again = change.delivery > before.delivery
    extended = change.lease and not is_claim
    problems = {
        f"delivery {change.delivery}": change.delivery < before.delivery,
        f"token {change.token}": change.token not in (before.token, before.token + 1),
        f"the claim of {change.worker} under token {change.token}": extended
        and change.worker != before.worker,
        f"a lease of {change.worker} without a claim": extended and (before.due or before.is_released),
        f"a claim of {change.worker} before its next attempt": is_claim and before.due,
        f"a claim of {change.worker} under a valid lease": is_held and is_claim and not is_own,
        "a delivery under a valid lease": is_held and again,
        "a delivery before its time": again and before.due and before.due > change.at,
        f"a second claim of delivery {change.delivery}": is_claim
        and change.delivery == before.claimed_delivery
        and not is_repeated,
    }
    if problem := next((problem for problem, is_there in problems.items() if is_there), None):
        return problem
    claimed = change.delivery if is_claim else before.claimed_delivery
    if change.is_released and before.lease and not change.lease:
        # The claim is undone: the job had not begun, and waits under the same delivery.
        claimed = 0
    return _State(
        "inflight",
        change.delivery,
        change.token,
        change.worker,
        change.lease,
        claimed,
        change.due,
        bool(change.is_released),
    )
