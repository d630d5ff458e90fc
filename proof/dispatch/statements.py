"""The statements, each with the name of the constant that it models."""

from __future__ import annotations

from collections.abc import Collection, Generator
from typing import Any, NamedTuple

from proof.atoms import Execute, ids
from proof.checker import Atom
from proof.postgres import (
    Statement,
    Writer,
)

Commands = Generator[Atom, Any, Any]
STAGED, INFLIGHT, FINISHED, ACCOUNTS = "staged_jobs", "inflight_jobs", "finished_jobs", "accounts"
LAST_DELIVERY = "drain_last_delivery"
CAPACITY = 1


class Row(NamedTuple):
    """Row of `inflight_jobs`; `waits`: for its redelivery."""

    delivery: int
    token: int
    worker: str = ""
    waits: bool = False


class Entry(NamedTuple):
    """Element of a process' own list: a lease."""

    job: int
    token: int


def lease_of(job: int, token: int) -> int:
    """Name a lease; the clock's expired leases are those in `lapsed`."""
    return job * 10 + token


class Statements:
    """The statements, at most one of them broken."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken

    def read_due(self) -> Execute:
        """Read a staged job and its token."""
        return Execute(
            Statement("", STAGED, lambda *_: True, lambda w, at, row: (at, row), reads=True, limit=1)
        )

    def move(self, job: int, last: int, to: str) -> Execute:
        """Move the row, leased to `to` under the next token, or unclaimed, by `drain.tables.staged.MOVE`.

        INSERT INTO inflight_jobs (..., delivery, fencing_token, claimed_at, claimed_by, batched, lease_expires_at)
        SELECT ..., fencing_token + 1, clock_timestamp(), %(process)s, true, clock_timestamp() + ...
        """

        def move(writer: Writer, row_id: int, token: int) -> None:
            writer.delete(STAGED, row_id)
            if to and self.broken != "a lease keeps the token":
                token += 1
            writer.insert(INFLIGHT, row_id, Row(last + 1, token, to))

        return Execute(Statement("", STAGED, ids([job]), move, sequences={LAST_DELIVERY: last + 1}))

    def leased_to(self, me: str) -> Execute:
        """Read the leases of a process, without a lock or an update."""

        def is_mine(at: int, row: Row, lapsed: Collection[int]) -> bool:
            return row.worker == me and lease_of(at, row.token) not in lapsed

        return Execute(Statement("", INFLIGHT, is_mine, lambda w, at, row: Entry(at, row.token), reads=True))

    def read(self, entry: Entry, me: str) -> Execute:
        """Read a job by id, token and process.

        SELECT ..., lease_expires_at - clock_timestamp() FROM inflight_jobs
        WHERE id = ... AND fencing_token = ... AND claimed_by = ... AND lease_expires_at > clock_timestamp()
        """

        def is_mine(at: int, row: Row, lapsed: Collection[int]) -> bool:
            if self.broken == "read by id alone":
                return at == entry.job
            return (at, row.token, row.worker) == (*entry, me) and lease_of(*entry) not in lapsed

        return Execute(Statement("", INFLIGHT, is_mine, lambda w, at, row: Entry(at, row.token), reads=True))

    def claim(self, job: int, delivery: int, me: str) -> Execute:
        """Claim through the current delivery, durably, by `drain.tables.claims.CLAIM`, and begin."""

        def is_free(at: int, row: Row, lapsed: Collection[int]) -> bool:
            is_unclaimed = not row.worker or lease_of(at, row.token) in lapsed
            is_unclaimed |= self.broken == "claim despite a lease"
            return (at, row.delivery) == (job, delivery) and is_unclaimed and not row.waits

        def claim(writer: Writer, row_id: int, row: Row) -> Entry:
            writer.update(INFLIGHT, row_id, row._replace(token=row.token + 1, worker=me))
            return Entry(row_id, row.token + 1)

        return Execute(Statement("drain.tables.claims.CLAIM", INFLIGHT, is_free, claim, is_durable=True))

    def change(self, job: int) -> Execute:
        """Write in the job's transaction: the effect that must happen once."""
        return Execute(
            Statement("", ACCOUNTS, ids([job]), lambda w, at, row: w.update(ACCOUNTS, at, row + 1))
        )

    def finish(self, entry: Entry, me: str) -> Execute:
        """Finish under the fence of job, token and process, by `schema.sql: drain_finish`."""

        def finish(writer: Writer, row_id: int, row: Row) -> bool:
            writer.delete(INFLIGHT, row_id)
            writer.insert(FINISHED, row_id, row.token)
            return True

        where = lambda at, row, lapsed: (at, row.token, row.worker) == (*entry, me)  # noqa: E731
        return Execute(Statement("", INFLIGHT, where, finish))

    def revoke(self, entry: Entry, me: str) -> Execute:
        """Take back the lease of a process that its supervisor knows to be dead.

        One that is only missing from Redis may have read the job already.
        """
        where = lambda at, row, lapsed: (at, row.token, row.worker) == (*entry, me)  # noqa: E731
        wait = lambda w, at, row: w.update(INFLIGHT, at, row._replace(worker="", waits=True))  # noqa: E731
        return Execute(Statement("", INFLIGHT, where, wait))

    def redeliver(self, last: int, jobs: Collection[int]) -> Execute:
        """Renumber waiting, lost and expired jobs, by `drain.tables.redeliveries.REDELIVER_LEASES`."""

        def is_due(at: int, row: Row, lapsed: Collection[int]) -> bool:
            is_over = lease_of(at, row.token) in lapsed or self.broken == "redeliver a valid lease"
            return at in jobs and (not row.worker or is_over)

        def renumber(writer: Writer, row_id: int, row: Row) -> tuple[int, int]:
            writer.update(INFLIGHT, row_id, Row(last + 1, row.token))
            return row_id, last + 1

        return Execute(Statement("", INFLIGHT, is_due, renumber, sequences={LAST_DELIVERY: last + 1}))
