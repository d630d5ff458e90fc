"""Statements about places: what runs, waits and may begin.

All jobs are of one queue, with a limit of running jobs, or in order and of one key.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from proof.atoms import Claimed, Execute, Select, Started, ids
from proof.checker import Violation, World
from proof.delivery.statements import (
    DEAD,
    FINISHED,
    INFLIGHT,
    LAST_DELIVERY,
    STAGED,
    Job,
    Statements as Delivery,
)
from proof.postgres import Blocked, Rows, Statement, Writer, of_table

CANCELLED, QUEUES = "cancelled_claims", "queues"


class Memory(NamedTuple):
    """What the leader remembers.

    Attributes:
        limit: Jobs that may run; of a key, if `is_ordered`.
        running: Jobs counted as running, or None before the first look.
        cancelled: Cancelled jobs that their workers still had at the last look.
        again: Jobs admitted again since, though counted.
        is_outdated: The limit has changed: call back what no worker has claimed.
        up_to: Deliveries up to this number are to be called back again, since some were locked; 0 for none.
    """

    limit: int
    is_ordered: bool
    last: int
    running: tuple[int, ...] | None = None
    cancelled: int = 0
    again: int = 0
    is_outdated: bool = True
    up_to: int = 0

    @property
    def room(self) -> int:
        """How many more may begin."""
        return max(0, self.limit - len(self.running or ()) - self.cancelled - self.again)


class Rules(NamedTuple):
    """What applies, for the invariants.

    Attributes:
        up_to: Last delivery under earlier rules.
        started: Claims when all other deliveries up to that one had been called back; None before.
    """

    limit: int
    up_to: int = 0
    started: frozenset[tuple[int, int]] | None = None


class Held(NamedTuple):
    """Whether a dead job holds the key, its first retry or 0, and all that waits."""

    is_held: bool
    retry: int
    waiting: tuple[int, ...]


def runs(rows: Rows) -> tuple[int, ...]:
    """Return the jobs that are delivered or claimed."""
    return tuple(sorted(at for at, row in of_table(rows, INFLIGHT).items() if not row.waits))


def retries(rows: Rows) -> tuple[int, ...]:
    """Return the jobs that wait for a place."""
    return tuple(sorted(at for at, row in of_table(rows, INFLIGHT).items() if row.waits))


class Statements:
    """The statements, at most one of them broken."""

    def __init__(self, broken: str, *, skips_dead: bool = False) -> None:
        self.broken = broken
        self.skips_dead = skips_dead
        self.delivery = Delivery(broken)

    def read_rules(self) -> Select:
        """Read the limit, by `drain.tables.rules.READ_ALL`."""
        return Select("READ_ALL", lambda rows: rows[QUEUES, 1])

    def count(self, part: bool | None = None) -> Select:  # noqa: FBT001
        """Count running jobs and cancelled claims, by `drain.tables.running.IN_FLIGHT`; a `part` if broken."""

        def count(rows: Rows) -> tuple[tuple[int, ...], int]:
            found = runs(rows)
            if part is not None:
                found = tuple(at for at in found if rows[INFLIGHT, at].is_claimed == part)
            return found, self._cancelled(rows)

        return Select("IN_FLIGHT", count)

    def look(self, running: Collection[int]) -> Select:
        """Ask which of these still run, by `drain.tables.running.STILL_RUNNING`."""

        def look(rows: Rows) -> tuple[tuple[int, ...], int]:
            still = [at for at in runs(rows) if at in running]
            if self.broken == "look for claimed jobs alone":
                still = [at for at in still if rows[INFLIGHT, at].is_claimed]
            if self.broken == "look for jobs in flight":
                still = [at for at in running if (INFLIGHT, at) in rows]
            return tuple(still), self._cancelled(rows)

        return Select("STILL_RUNNING", look)

    def _cancelled(self, rows: Rows) -> int:
        return 0 if self.broken == "count no cancelled claims" else len(of_table(rows, CANCELLED))

    def find(self, room: int) -> Select:
        """Find due rows that may begin: in order the key's first, by `drain.tables.keyed.FIRST_OF_KEYS`."""

        def find(rows: Rows) -> tuple[int, ...]:
            staged = sorted(of_table(rows, STAGED), reverse=self.broken == "by priority within a key")
            return tuple(staged[:room])

        return Select("drain.tables.keyed.FIRST_OF_KEYS", find)

    def lock(self, jobs: Collection[int]) -> Execute:
        """Lock staged rows; return those that no other session has locked."""
        name = "drain.tables.keyed.LOCK"
        return Execute(Statement(name, STAGED, ids(jobs), lambda w, at, row: at, skips_locked=True))

    def _holds(self, rows: Rows) -> bool:
        return bool(self._dead(rows)) and self.broken != "a dead job holds nothing"

    def _dead(self, rows: Rows) -> Collection[int]:
        return () if self.skips_dead else of_table(rows, DEAD)

    def _waiting(self, rows: Rows) -> tuple[int, ...]:
        return (*of_table(rows, STAGED), *retries(rows), *self._dead(rows))

    def _require_order(self, writer: Writer, job: int, waiting: Collection[int]) -> None:
        """Require that no earlier job waited when the transaction looked, and still does."""
        still = set(self._waiting(writer.database.see(writer.process)))
        if any(other < job for other in still.intersection(waiting)):
            raise Violation("a job is delivered before an earlier one of its key")

    def move(self, jobs: Collection[int], memory: Memory, waiting: Collection[int]) -> Execute:
        """Move these rows, numbered from `last + 1`."""
        numbers = {job: memory.last + place for place, job in enumerate(jobs, 1)}

        def move(writer: Writer, row_id: int, row: Any) -> None:
            if memory.is_ordered:
                self._require_order(writer, row_id, waiting)
            writer.delete(STAGED, row_id)
            token = row if isinstance(row, int) else 0
            writer.insert(INFLIGHT, row_id, Job(numbers[row_id], token))

        sequences = {LAST_DELIVERY: memory.last + len(numbers)}
        return Execute(Statement("drain.tables.staged.MOVE", STAGED, ids(jobs), move, sequences=sequences))

    def read_held(self) -> Select:
        """Ask what holds the key, by `drain.tables.keyed.HELD_KEYS`."""

        def read(rows: Rows) -> Held:
            return Held(self._holds(rows), min(retries(rows), default=0), self._waiting(rows))

        return Select("HELD_KEYS", read)

    def find_retries(self, room: int) -> Select:
        """Find due retries, by `drain.tables.running.DUE_RETRIES`, in order by `FIRST_RETRIES`."""

        def find(rows: Rows) -> tuple[int, ...]:
            waiting = retries(rows)
            if self.broken == "retries in the order of their times":
                waiting = tuple(reversed(waiting))
            return waiting if self.broken == "redeliver retries without a place" else waiting[:room]

        return Select("drain.tables.running.FIRST_RETRIES", find)

    def find_staged_before(self, job: int) -> Select:
        """Ask for earlier staged jobs of the key, by `drain.tables.keyed.FIRST_OF_KEYS`."""
        return Select("FIRST_OF_KEYS", lambda rows: any(at < job for at in of_table(rows, STAGED)))

    def redeliver(self, jobs: Collection[int], memory: Memory, waiting: Collection[int]) -> Execute:
        """Renumber these retries if they still wait."""
        numbers = {job: memory.last + place for place, job in enumerate(sorted(jobs), 1)}

        def renumber(writer: Writer, row_id: int, row: Job) -> tuple[int, int]:
            if memory.is_ordered:
                self._require_order(writer, row_id, waiting)
            writer.update(INFLIGHT, row_id, row._replace(delivery=numbers[row_id], waits=False))
            return row_id, numbers[row_id]

        return Execute(
            Statement(
                "drain.tables.redeliveries.REDELIVER_CHOSEN",
                *(INFLIGHT, lambda at, row, lapsed: at in numbers and row.waits, renumber),
                skips_locked=True,
            )
        )

    def call_back_leases(self) -> Execute:
        """Let jobs with expired leases wait for a place."""

        def is_over(at: int, row: Job, lapsed: Collection[int]) -> bool:
            return row.is_claimed and (at in lapsed or self.broken == "call back a valid lease")

        name = "drain.tables.redeliveries.CALL_BACK_LEASES"
        return Execute(Statement(name, INFLIGHT, is_over, _wait, skips_locked=True))

    def claim(self, job: int, delivery: int) -> Execute:
        """Claim one job through its current delivery; not while it waits, even if it is due."""

        def is_free(at: int, row: Job, lapsed: Collection[int]) -> bool:
            is_waiting = row.waits and self.broken != "claim a waiting job"
            is_current = row.delivery == delivery
            return at == job and (not row.is_claimed or at in lapsed) and not is_waiting and is_current

        def claim(writer: Writer, row_id: int, row: Job) -> Started:
            writer.database.lapsed -= {row_id}
            new = row._replace(token=row.token + 1, worker=writer.process, is_claimed=True, waits=False)
            writer.update(INFLIGHT, row_id, new)
            return Started(row_id, delivery, new.token)

        return Execute(Statement("drain.tables.claims.CLAIM", INFLIGHT, is_free, claim, is_durable=True))

    def release(self, claim: Claimed, process: str) -> Execute:
        """Undo a claim that has not begun: delivered again, under the same number."""

        def is_held(at: int, row: Job, lapsed: Collection[int]) -> bool:
            return at == claim.job and (row.token, row.worker) == (claim.token, process) and row.is_claimed

        def release(writer: Writer, row_id: int, row: Job) -> bool:
            writer.update(INFLIGHT, row_id, row._replace(is_claimed=False))
            return True

        return Execute(Statement("drain.tables.leases.RELEASE", INFLIGHT, is_held, release))

    def bury(self, claim: Claimed, process: str) -> Execute:
        """Give up a claimed job."""

        def is_held(at: int, row: Job, lapsed: Collection[int]) -> bool:
            return at == claim.job and (row.token, row.worker) == (claim.token, process)

        def bury(writer: Writer, row_id: int, row: Job) -> bool:
            writer.delete(INFLIGHT, row_id)
            writer.insert(DEAD, row_id, row.token)
            return True

        return Execute(Statement("drain.tables.outcomes.BURY_CLAIMED", INFLIGHT, is_held, bury))

    def cancel(self, job: int) -> Execute:
        """Cancel a job in flight; a claim keeps its place."""

        def cancel(writer: Writer, row_id: int, row: Job) -> bool:
            writer.delete(INFLIGHT, row_id)
            writer.insert(DEAD, row_id, row.token + 1)
            is_running = row.is_claimed and row_id not in writer.database.lapsed
            if is_running and self.broken != "cancel keeps no place":
                writer.insert(CANCELLED, row_id, (row.token, row.worker))
            return True

        return Execute(Statement("drain.tables.cancellations._CANCEL_INFLIGHT", INFLIGHT, ids([job]), cancel))

    def cancel_staged(self, job: int) -> Execute:
        """Cancel a staged job, for good."""

        def cancel(writer: Writer, row_id: int, row: Any) -> None:
            writer.delete(STAGED, row_id)
            writer.insert(FINISHED, row_id, "cancelled")

        return Execute(Statement("drain.tables.cancellations._CANCEL_STAGED", STAGED, ids([job]), cancel))

    def confirm_end(self, claim: Claimed, process: str) -> Execute:
        """Give up the place of a cancelled claim."""

        def is_held(at: int, row: Any, lapsed: Collection[int]) -> bool:
            return at == claim.job and row == (claim.token, process)

        def forget(writer: Writer, row_id: int, row: Any) -> None:
            writer.delete(CANCELLED, row_id)

        return Execute(Statement("drain.tables.cancellations.CONFIRM_ENDS", CANCELLED, is_held, forget))

    def revive(self, job: int) -> Execute:
        """Stage a dead job again, with its token."""

        def revive(writer: Writer, row_id: int, row: Any) -> bool:
            writer.delete(DEAD, row_id)
            writer.insert(STAGED, row_id, row)
            return True

        return Execute(Statement("drain.tables.dead.REVIVE", DEAD, ids([job]), revive))


def _wait(writer: Writer, row_id: int, row: Job) -> int:
    if row.is_claimed and row_id not in writer.database.lapsed:
        raise Violation("a valid lease is called back")
    writer.update(INFLIGHT, row_id, row._replace(is_claimed=False, waits=True))
    return row_id


class CallBackAll(Execute):
    """Call back unclaimed deliveries up to a number, without locked ones; from now on, `limit` applies."""

    def __init__(self, limit: int, up_to: int, broken: str) -> None:
        self.rules = Rules(limit, up_to)

        def is_delivered(at: int, row: Job, lapsed: Collection[int]) -> bool:
            is_free = not row.is_claimed or broken == "call back claimed jobs"
            return (
                is_free and not row.waits and row.delivery <= up_to and "without calling back" not in broken
            )

        name = "drain.tables.redeliveries.CALL_BACK_ALL"
        super().__init__(Statement(name, INFLIGHT, is_delivered, _wait, skips_locked=True))

    def step(self, world: World, process: str) -> list[Any] | Blocked:
        """Call back."""
        answers = super().step(world, process)
        world.notes = {"rules": self.rules}
        return answers


class StillDelivered(NamedTuple):
    """Look for rows that were locked; if there are none, note the started jobs.

    In the product, `drain.tables.redeliveries.STILL_DELIVERED`.
    """

    limit: int
    up_to: int
    broken: str

    def __str__(self) -> str:
        return "STILL_DELIVERED"

    def step(self, world: World, process: str) -> list[Any]:
        """Look."""
        rows = world.database.read(process)
        jobs = of_table(rows, INFLIGHT).values()
        left = any(row.delivery <= self.up_to and not row.is_claimed and not row.waits for row in jobs)
        if "without calling back" in self.broken or self.broken == "forget locked jobs":
            left = False
        if not left:
            started = frozenset((job, delivery) for job, delivery, _ in world.started)
            world.notes = {"rules": Rules(self.limit, self.up_to, started)}
        return [left]


class Extend(Execute):
    """Extend a lease: a job whose lease had expired runs again."""

    def __init__(self, claim: Claimed, delivery: int, process: str, broken: str) -> None:
        self.delivery = (claim.job, delivery)

        def is_held(at: int, row: Job, lapsed: Collection[int]) -> bool:
            is_waiting = row.waits and broken != "extend the lease of a waiting job"
            return at == claim.job and (row.token, row.worker) == (claim.token, process) and not is_waiting

        def extend(writer: Writer, row_id: int, row: Job) -> bool:
            writer.database.lapsed -= {row_id}
            writer.update(INFLIGHT, row_id, row._replace(is_claimed=True, waits=False))
            return True

        super().__init__(Statement("drain.tables.leases.EXTEND_MANY", INFLIGHT, is_held, extend))

    def step(self, world: World, process: str) -> list[Any] | Blocked:
        """Extend."""
        answers = super().step(world, process)
        if answers == [(True,)]:
            world.held = {**world.held, process: self.delivery}
        return answers
