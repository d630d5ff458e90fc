"""Our SQL statements as atoms, each with the name of the constant that it models.

`broken` names a mutant: one statement or program, weakened as a developer might by mistake.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from proof.atoms import Claimed, Execute, Started, ids, nothing
from proof.checker import Violation, World
from proof.postgres import Statement, Writer

STAGED, INFLIGHT, FINISHED, DEAD = "staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs"
# The application's tables: requests that stage a job, and accounts that the job changes.
REQUESTS, ACCOUNTS = "requests", "accounts"
LAST_DELIVERY, PUSHED_UP_TO = "drain_last_delivery", "drain_pushed_up_to"


class Job(NamedTuple):
    """Row of `inflight_jobs`; `is_claimed`: it has a lease; `waits`: for its next attempt."""

    delivery: int
    token: int = 0
    worker: str = ""
    is_claimed: bool = False
    waits: bool = False


class Lead(NamedTuple):
    """Wait for the advisory lock of the leader, for the session; return the recorded numbers."""

    locks: bool = True

    def step(self, world: World, process: str) -> list[Any]:
        """Take the lock."""
        database = world.database
        database.require_connection(process)
        if self.locks and database.leader is not None:
            return []
        database.leader = process
        return [(database.sequences[LAST_DELIVERY], database.sequences[PUSHED_UP_TO])]


class Statements:
    """The statements, at most one of them broken."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def stage(self, job: int) -> Execute:
        """Insert a job, in the application's transaction."""

        def insert(writer: Writer, row_id: int, row: Any) -> None:
            writer.insert(STAGED, row_id, "staged")
            writer.update(REQUESTS, row_id, "staged")

        def is_new(at: int, row: Any, lapsed: Collection[int]) -> bool:
            return at == job and row == "new"

        return Execute(Statement("", REQUESTS, is_new, insert))

    def read_due(self, limit: int) -> Execute:
        """Read staged jobs, highest id first, as if it had the highest priority."""
        return Execute(
            Statement(
                *("drain.tables.lanes.READ_DUE", STAGED, lambda at, row, lapsed: True, lambda w, at, row: at),
                reads=True,
                limit=limit,
            )
        )

    def move(self, jobs: Collection[int], last: int, pushed: int) -> Execute:
        """Move exactly these rows, numbered from `last + 1`."""
        numbers = {job: last + place for place, job in enumerate(jobs, 1)}

        def move(writer: Writer, row_id: int, row: Any) -> None:
            if writer.database.leader != writer.process:
                raise Violation("a session without the lock moves a job")
            if self.broken != "move without a delete":
                writer.delete(STAGED, row_id)
            if row_id in numbers:
                writer.insert(INFLIGHT, row_id, Job(numbers[row_id]))

        where = ids(jobs)
        if self.broken == "delete by range":
            where = lambda at, row, lapsed: at <= max(jobs)  # noqa: E731
        new = last + len(numbers)
        sequences = {
            LAST_DELIVERY: new,
            PUSHED_UP_TO: new if self.broken == "record the watermark before the push" else pushed,
        }
        if self.broken == "numbers are not recorded":
            sequences = {}
        return Execute(Statement("drain.tables.staged.MOVE", STAGED, where, move, sequences=sequences))

    def record_progress(self, last: int, pushed: int) -> Execute:
        """Record number and watermark."""
        return Execute(
            Statement(
                "drain.tables.leader_progress.RECORD_PROGRESS",
                *("", ids([]), nothing),
                sequences={LAST_DELIVERY: last, PUSHED_UP_TO: pushed},
            )
        )

    def claim(self, job: int, delivery: int) -> Execute:
        """Claim one job through its current delivery, durably."""

        def is_free(at: int, row: Job, lapsed: Collection[int]) -> bool:
            return (
                at == job
                and (not row.is_claimed or at in lapsed or self.broken == "claim despite a lease")
                and (not row.waits or self.broken == "claim a waiting job")
                and (row.delivery == delivery or self.broken == "claim through any delivery")
            )

        def claim(writer: Writer, row_id: int, row: Job) -> Started:
            database = writer.database
            if row.is_claimed and row_id not in database.lapsed:
                raise Violation("a valid lease is taken")
            if row.waits or row.delivery != delivery:
                raise Violation("a job is claimed past the leader")
            token = row.token if self.broken == "claim keeps the token" else row.token + 1
            new = row._replace(token=token, worker=writer.process, is_claimed=True)
            database.lapsed -= {row_id}
            writer.update(INFLIGHT, row_id, new)
            return Started(row_id, delivery, token)

        return Execute(
            Statement(
                *("drain.tables.claims.CLAIM", INFLIGHT, is_free, claim),
                is_durable=self.broken != "claim without a flush",
            )
        )

    def change(self, job: int) -> Execute:
        """Write in the job's own transaction: the effect that must happen once."""

        def add(writer: Writer, row_id: int, row: int) -> None:
            writer.update(ACCOUNTS, row_id, row + 1)

        return Execute(Statement("", ACCOUNTS, ids([job]), add))

    def finish(self, claim: Claimed, process: str) -> Execute:
        """Finish under the current token, by `schema.sql: drain_finish`; a stale claim gets no answer."""

        def finish(writer: Writer, row_id: int, row: Job) -> bool:
            _require_current(row, claim, process)
            writer.delete(INFLIGHT, row_id)
            writer.insert(FINISHED, row_id, row.token)
            return True

        return Execute(
            Statement(
                "drain.tables.finishes.FINISH_OR_FAIL", INFLIGHT, self._is_fenced(claim, process), finish
            )
        )

    def retry_later(self, claim: Claimed, process: str) -> Execute:
        """Let a failed job wait for its next attempt."""

        def wait(writer: Writer, row_id: int, row: Job) -> bool:
            _require_current(row, claim, process)
            waits = self.broken != "a retry does not wait"
            writer.update(INFLIGHT, row_id, row._replace(is_claimed=False, waits=waits))
            return True

        where = self._is_fenced(claim, process)
        if self.broken == "retry under any token":
            where = ids([claim.job])
        return Execute(Statement("drain.tables.outcomes.RETRY_LATER", INFLIGHT, where, wait))

    def extend(self, claim: Claimed, process: str) -> Execute:
        """Extend the lease."""

        def extend(writer: Writer, row_id: int, row: Job) -> bool:
            _require_current(row, claim, process)
            writer.database.lapsed -= {row_id}
            # Also after a redelivery that no worker has claimed.
            writer.update(INFLIGHT, row_id, row._replace(is_claimed=True))
            return True

        fenced = self._is_fenced(claim, process)
        where = lambda at, row, lapsed: fenced(at, row, lapsed) and not row.waits  # noqa: E731
        return Execute(Statement("drain.tables.leases.EXTEND_MANY", INFLIGHT, where, extend))

    def redeliver_unclaimed(self, last: int, above: int, up_to: int) -> Execute:
        """Renumber delivered, unclaimed jobs with numbers in (above, up_to]."""

        def is_lost(at: int, row: Job, lapsed: Collection[int]) -> bool:
            return not row.is_claimed and not row.waits and above < row.delivery <= up_to

        return self._redeliver("drain.tables.redeliveries.REDELIVER_UNCLAIMED", is_lost, last)

    def redeliver_leases(self, last: int) -> Execute:
        """Renumber jobs whose lease expired."""

        def is_over(at: int, row: Job, lapsed: Collection[int]) -> bool:
            return row.is_claimed and (at in lapsed or self.broken == "redeliver a valid lease")

        return self._redeliver("drain.tables.redeliveries.REDELIVER_LEASES", is_over, last)

    def redeliver_retries(self, last: int) -> Execute:
        """Renumber jobs whose next attempt is due."""
        return self._redeliver(
            "drain.tables.redeliveries.REDELIVER_RETRIES", lambda at, row, lapsed: row.waits, last
        )

    def _redeliver(self, name: str, where: Any, last: int) -> Execute:
        def renumber(writer: Writer, row_id: int, row: Job) -> tuple[int, int]:
            if row.is_claimed and row_id not in writer.database.lapsed:
                raise Violation("a valid lease is taken")
            number = row.delivery if self.broken == "redeliver under the same number" else last + 1
            writer.update(INFLIGHT, row_id, row._replace(delivery=number, is_claimed=False, waits=False))
            return row_id, number

        return Execute(Statement(name, INFLIGHT, where, renumber, skips_locked=True, limit=1))

    def _is_fenced(self, claim: Claimed, process: str) -> Any:
        def is_fenced(at: int, row: Job, lapsed: Collection[int]) -> bool:
            has_token = row.token == claim.token or self.broken == "compare no token"
            has_worker = row.worker == process or self.broken in ("compare no token", "compare no worker")
            return at == claim.job and has_token and has_worker

        return is_fenced


class Push(NamedTuple):
    """Push job and delivery number to the Redis list."""

    deliveries: tuple[tuple[int, int], ...]

    def step(self, world: World, process: str) -> list[Any]:
        """Append."""
        committed = world.database.committed
        for job, _ in self.deliveries:
            tables = (STAGED, INFLIGHT, FINISHED, DEAD)
            is_known = any((table, job) in committed for table in tables)
            # A failover may have lost the job since.
            if not is_known and not world.database.lag:
                raise Violation("a job is pushed that has not been committed")
        world.queue = (*world.queue, *self.deliveries)
        return [None]


def _require_current(row: Job, claim: Claimed, process: str) -> None:
    if (row.token, row.worker) != (claim.token, process):
        raise Violation("an outdated claim changes a job")
