"""A leader that does nothing but admit the jobs of one queue, and workers that do nothing but end them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import monotonic, sleep

from psycopg import IsolationLevel

from drain.admission.keyed_queue import RuledQueue
from drain.admission.rules import Rules
from drain.database import postgres
from drain.database.postgres import Connection
from drain.enqueuer.enqueuer import SESSION
from drain.tables import staged
from drain.tables.staged import DueJob
from tests.helpers import PATIENCE_SECONDS, query

QUEUE = "calls"
# On a busy machine one look may take as long as a test gives to all.
_QUIET_LOOKS = 20


class Leader:
    """Admits on one connection, in the steps of a batch.

    Attributes:
        queue: What is tested.
        last_delivery: Highest delivery number so far.
    """

    def __init__(self, connection: Connection, rules: Rules) -> None:
        connection.execute("; ".join(SESSION).encode())
        self.connection = connection
        self.queue = RuledQueue(connection, rules)
        (self.last_delivery,) = connection.execute(
            "SELECT coalesce(max(delivery), 0) FROM inflight_jobs"
        ).fetchall()[0]

    def admit(self, room: int = 1000) -> list[DueJob]:
        """Look, and admit one batch; returns its rows, without those that have expired."""
        self.queue.look()
        with postgres.transaction(self.connection, IsolationLevel.REPEATABLE_READ):
            rows = self.queue.select(room)
            moved = [row for row in rows if not row.expired]
            expired = [row.id for row in rows if row.expired]
            staged.bury(self.connection, expired, "expired", "too late")
            staged.move(self.connection, [row.id for row in moved], self.last_delivery)
        self.last_delivery += len(moved)
        self.queue.admitted(moved)
        return moved

    def admit_all(self, count: int, room: int = 1000) -> list[DueJob]:
        """Admit batches until there are so many rows."""
        rows: list[DueJob] = []
        deadline = monotonic() + PATIENCE_SECONDS
        while len(rows) < count:
            assert monotonic() < deadline, f"only {len(rows)} of {count} were admitted"
            rows += self.admit(room) or self.nap()
        return rows

    def settle(self, seconds: float = 0.3, *, least: int = 0) -> list[DueJob]:
        """Admit at least so many rows, and whatever else, until none has been for some time and for some looks."""
        rows: list[DueJob] = self.admit_all(least)
        looks, quiet_since = 0, monotonic()
        while looks < _QUIET_LOOKS or monotonic() - quiet_since < seconds:
            looks += 1
            if found := self.admit():
                rows += found
                looks, quiet_since = 0, monotonic()
            else:
                self.nap()
        return rows

    def redeliver(self, limit: int = 100) -> list[int]:
        """Deliver due retries again."""
        ids = self.queue.redeliverable(limit)
        delivered = self.connection.execute(
            "UPDATE inflight_jobs SET next_run_at = NULL, lease_expires_at = NULL WHERE id = ANY (%s) "
            "RETURNING id, fencing_token",
            [ids],
        )
        self.queue.redelivered(dict(delivered.fetchall()))
        return ids

    def nap(self) -> list[DueJob]:
        """Wait until looking again could help, or for a moment."""
        sleep(min(0.01, max(0.0, self.queue.next_look_at - monotonic())))
        return []


@contextmanager
def admitting(database_url: str, rules: Rules) -> Iterator[Leader]:
    """Lead for as long as the block runs."""
    with postgres.connect(database_url, "test") as connection:
        yield Leader(connection, rules)


# Claims of a job that a worker has claimed by now, whether or not `claim` has.
_CLAIMS = "fencing_token + (lease_expires_at IS NULL)::integer"


def claim(database_url: str, rows: Sequence[DueJob] | Sequence[int]) -> None:
    """Let a worker claim these jobs."""
    query(
        database_url,
        "UPDATE inflight_jobs SET claimed_at = clock_timestamp(), claimed_by = 'w', attempts = attempts + 1, "
        "fencing_token = fencing_token + 1, lease_expires_at = clock_timestamp() + interval '1 h' WHERE id = ANY (%s)",
        ids_of(rows),
    )


def finish(database_url: str, rows: Sequence[DueJob] | Sequence[int]) -> None:
    """End these jobs."""
    query(
        database_url,
        "WITH done AS (DELETE FROM inflight_jobs WHERE id = ANY (%s) RETURNING *) INSERT INTO finished_jobs "
        "(id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, moved_at, claimed_at, "
        "finished_at, attempts, fencing_token, key) SELECT id, job_name, job_args, job_kwargs, queue, priority, "
        f"scheduled_at, staged_at, moved_at, clock_timestamp(), clock_timestamp(), 1, {_CLAIMS}, key FROM done",
        ids_of(rows),
    )


def retry_later(database_url: str, rows: Sequence[DueJob] | Sequence[int], seconds: float = 0.0) -> None:
    """Let these jobs wait for their next attempt."""
    query(
        database_url,
        "UPDATE inflight_jobs SET next_run_at = clock_timestamp() + make_interval(secs => %s), attempts = 1, "
        f"claimed_at = clock_timestamp(), fencing_token = {_CLAIMS} WHERE id = ANY (%s)",
        seconds,
        ids_of(rows),
    )


def bury(database_url: str, rows: Sequence[DueJob] | Sequence[int], reason: str = "failed") -> None:
    """Give these jobs up."""
    query(
        database_url,
        "WITH gone AS (DELETE FROM inflight_jobs WHERE id = ANY (%s) RETURNING *) INSERT INTO dead_jobs "
        "(id, job_name, job_args, job_kwargs, queue, priority, scheduled_at, staged_at, attempts, "
        "fencing_token, reason, explanation, key) SELECT id, job_name, job_args, job_kwargs, queue, priority, "
        f"scheduled_at, staged_at, 1, {_CLAIMS}, %s, 'why', key FROM gone",
        ids_of(rows),
        reason,
    )


def stage(database_url: str, count: int = 1, **columns: object) -> list[int]:
    """Stage so many jobs in one transaction; returns their ids."""
    columns = {"job_name": "m.f", "queue": QUEUE} | columns
    statement = (
        f"INSERT INTO staged_jobs ({', '.join(columns)}) SELECT {', '.join(['%s'] * len(columns))} "
        "FROM generate_series(1, %s) RETURNING id"
    )
    return [id_ for (id_,) in query(database_url, statement, *columns.values(), count)]


def ids_of(rows: Sequence[DueJob] | Sequence[int]) -> list[int]:
    return [row if isinstance(row, int) else row.id for row in rows]
