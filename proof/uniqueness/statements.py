"""Statements about the waiting jobs of one name and unique key, without expiry and quiet times.

A cancelled job's latest request is staged again, as job 11 and more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from proof.atoms import Execute, Select, ids
from proof.checker import Violation, World
from proof.delivery.statements import (
    DEAD,
    FINISHED,
    INFLIGHT,
    LAST_DELIVERY,
    REQUESTS,
    STAGED,
    Statements as Delivery,
)
from proof.postgres import Blocked, Rows, Statement, Writer, of_table

# Added to a request that is staged again.
AGAIN = 10


class Job(NamedTuple):
    """Row of `staged_jobs` or `inflight_jobs`; `stands_for`: the latest job that gave way to it."""

    keep: str
    stands_for: int = 0
    delivery: int = 0
    token: int = 0
    worker: str = ""
    is_claimed: bool = False
    waits: bool = False


class Superseded(NamedTuple):
    """Row of `finished_jobs` of a job that gave way; of others, it is the token of the claim."""

    by: int


class Candidate(NamedTuple):
    """Waiting job."""

    id: int
    keep: str
    is_staged: bool = True
    was_claimed: bool = False


class Verdict(NamedTuple):
    """Job that stands, and jobs that give way, staged and in flight."""

    stands: int
    staged: tuple[int, ...] = ()
    in_flight: tuple[int, ...] = ()


def waiting_in_flight(rows: Rows) -> frozenset[tuple[int, int, bool]]:
    """Return the jobs that wait in flight; an attempt since then shows."""
    in_flight = of_table(rows, INFLIGHT).items()
    return frozenset((at, row.delivery, row.waits) for at, row in in_flight if not row.is_claimed)


def decide(candidates: Sequence[Candidate], broken: str) -> Verdict:
    """Decide as `drain.admission.uniqueness` does."""
    in_flight = [each.id for each in candidates if not each.is_staged]
    staged = [each for each in candidates if each.is_staged]
    newest = max(staged or candidates, key=lambda each: each.id)
    found = [each.id for each in staged]
    stands = max(in_flight + found) if newest.keep == "last" else min(in_flight or found)
    back = tuple(at for at in in_flight if at != stands)
    if broken == "a delivered job stays although the last one is kept":
        back = ()
    return Verdict(stands, tuple(at for at in found if at != stands), back)


class Statements:
    """The statements, at most one of them broken."""

    def __init__(self, broken: str) -> None:
        self.broken = broken
        self.delivery = Delivery(broken)

    def stage(self, job: int, keep: str) -> Execute:
        """Insert a job, in the application's transaction."""

        def insert(writer: Writer, row_id: int, row: Any) -> None:
            writer.insert(STAGED, row_id, Job(keep))
            writer.update(REQUESTS, row_id, "staged")

        return Execute(Statement("", REQUESTS, ids([job]), insert))

    def read_due(self, *, skips_locked: bool) -> Execute:
        """Read staged jobs; lock them if rows are locked elsewhere."""
        return Execute(
            Statement(
                *("drain.tables.lanes.READ_DUE", STAGED, lambda at, row, lapsed: True, lambda w, at, row: at),
                reads=not skips_locked,
                skips_locked=skips_locked,
            )
        )

    def read_candidates(self) -> Select:
        """Read the waiting jobs of the key; return also those in flight."""

        def read(rows: Rows) -> tuple[tuple[Candidate, ...], tuple[Any, ...]]:
            staged = [Candidate(at, row.keep) for at, row in of_table(rows, STAGED).items()]
            in_flight = [
                Candidate(at, row.keep, is_staged=False, was_claimed=row.token > 0 and not row.is_claimed)
                for at, row in of_table(rows, INFLIGHT).items()
                if not row.is_claimed or self.broken == "a running job stands"
            ]
            if self.broken == "jobs in flight do not count":
                in_flight = []
            return tuple(sorted(staged + in_flight)), tuple(sorted(waiting_in_flight(rows)))

        return Select("drain.tables.unique.READ_CANDIDATES", read)

    def fence(self, jobs: Collection[int]) -> Execute:
        """Raise the token of waiting jobs that were claimed."""

        def fence(writer: Writer, row_id: int, row: Job) -> int:
            if self.broken != "nothing is fenced off":
                writer.update(INFLIGHT, row_id, row._replace(token=row.token + 1))
            return row_id

        return self._on_waiting("drain.tables.unique.FENCE", jobs, fence)

    def lock(self, table: str, jobs: Collection[int]) -> Execute:
        """Lock waiting jobs, by `drain.tables.unique.LOCK_STAGED` and `drain.tables.unique.LOCK_IN_FLIGHT`."""
        if table == INFLIGHT:
            return self._on_waiting("drain.tables.unique.LOCK_IN_FLIGHT", jobs, lambda w, at, row: at)
        name = "drain.tables.unique.LOCK_STAGED"
        return Execute(Statement(name, STAGED, ids(jobs), lambda w, at, row: at, skips_locked=True))

    def stand(self, table: str, verdict: Verdict) -> Execute:
        """Note the latest job that gives way, in a waiting job that stands."""
        latest = max(*verdict.staged, *verdict.in_flight, 0)
        if self.broken == "note the earliest request":
            latest = min(*verdict.staged, *verdict.in_flight, 1000)

        def stand(writer: Writer, row_id: int, row: Job) -> int:
            # A job that gives way may stand for a later one.
            others = [writer.database.see(writer.process).get((name, latest)) for name in (STAGED, INFLIGHT)]
            noted = max(latest, row.stands_for, *(other.stands_for for other in others if other))
            if self.broken == "note the earliest request":
                noted = latest
            if self.broken != "note no request":
                writer.update(table, row_id, row._replace(stands_for=noted))
            return row_id

        if table == INFLIGHT:
            return self._on_waiting("drain.tables.unique.STAND_IN_FLIGHT", [verdict.stands], stand)
        name = "drain.tables.unique.STAND_STAGED"
        return Execute(Statement(name, STAGED, ids([verdict.stands]), stand, skips_locked=True))

    def _on_waiting(self, name: str, jobs: Collection[int], effect: Any) -> Execute:
        def waits(at: int, row: Job, lapsed: Collection[int]) -> bool:
            return at in jobs and (not row.is_claimed or self.broken == "a running job stands")

        return Execute(Statement(name, INFLIGHT, waits, effect, skips_locked=True))

    def supersede(self, table: str, jobs: Collection[int], by: int) -> Execute:
        """Finish jobs that give way, by `drain.tables.unique.SUPERSEDE_STAGED` and `SUPERSEDE_IN_FLIGHT`."""

        def supersede(writer: Writer, row_id: int, row: Job) -> None:
            writer.delete(table, row_id)
            writer.insert(FINISHED, row_id, Superseded(by))

        return Execute(Statement("drain.tables.unique.SUPERSEDE_IN_FLIGHT", table, ids(jobs), supersede))

    def move(self, jobs: Collection[int], last: int, waiting: Collection[Any]) -> Execute:
        """Move these rows; none of `waiting` may still wait in flight, unless it is locked."""
        numbers = {job: last + place for place, job in enumerate(jobs, 1)}
        known = {*waiting, *((job, number, False) for job, number in numbers.items())}

        def move(writer: Writer, row_id: int, row: Job) -> None:
            database = writer.database
            others = known & waiting_in_flight(database.see(writer.process))
            if any(not database.owner((INFLIGHT, at), writer.process) for at, *_ in others):
                raise Violation("two jobs wait under one key")
            writer.delete(STAGED, row_id)
            writer.insert(INFLIGHT, row_id, row._replace(delivery=numbers[row_id]))

        sequences = {LAST_DELIVERY: last + len(numbers)}
        return Execute(Statement("drain.tables.staged.MOVE", STAGED, ids(jobs), move, sequences=sequences))

    def cancel(self, table: str, job: int) -> Execute:
        """Cancel a job, by `drain.tables.cancellations._CANCEL_STAGED` and `_CANCEL_INFLIGHT`."""

        def cancel(writer: Writer, row_id: int, row: Job) -> None:
            writer.delete(table, row_id)
            writer.insert(DEAD, row_id, row.stands_for)
            if row.stands_for and self.broken != "cancel forgets the request":
                writer.insert(STAGED, AGAIN + row.stands_for, Job("first"))

        return Execute(Statement("drain.tables.cancellations._CANCEL_INFLIGHT", table, ids([job]), cancel))


class Claim(Execute):
    """Claim; note which requests the attempt sees committed."""

    def step(self, world: World, process: str) -> list[Any] | Blocked:
        """Claim."""
        before = world.started
        answers = super().step(world, process)
        seen = tuple(
            at for at, row in of_table(world.database.committed, REQUESTS).items() if row == "staged"
        )
        for job, _, token in world.started - before:
            world.notes = {**world.notes, f"{job} {token}": seen}
        return answers
