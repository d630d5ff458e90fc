"""A worker in this process, the jobs that are delivered to it, and the hand that meddles with them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from drain import stage
from drain.tables import claims, finishes, staged
from drain.tables.claims import Claim
from drain.workers import job
from drain.workers.entry import Worker
from tests.blocks import InLoop, OfDjango
from tests.helpers import connected, query, redeliver, wait_until

NAME = "tests.act"
# Far beyond the patience of any test: only what interrupts a job ends its sleep earlier.
FOREVER_SECONDS = 600
# As short as can be while a busy machine still gets a heartbeat through.
SHORT_LEASE_SECONDS = 1.0
HEARTBEAT_SECONDS = 0.05
TABLES = ("staged_jobs", "inflight_jobs", "finished_jobs", "dead_jobs")


@dataclass(frozen=True)
class Workshop:
    database_url: str
    worker: Worker

    def delivered(
        self,
        function: Callable[..., Any],
        *,
        name: str = NAME,
        row: dict[str, Any] | None = None,
        **options: Any,
    ) -> int:
        """Register the function with these options; deliver one job for it, with those of the row."""
        registered = job(name=name, **options)(function)
        return self.deliver(registered, **(row or {}))

    def deliver(self, registered: Any, *args: Any, **options: Any) -> int:
        job_id = stage(connected(self.database_url), registered, args, **options)
        return self.move(job_id)

    def move(self, job_id: int) -> int:
        """Deliver a job that is staged."""
        staged.move(connected(self.database_url), [job_id], last_delivery=job_id)
        return job_id

    def work(self, job_id: int) -> str:
        """Let the worker try the job, whose next attempt is due by now, and which the leader has redelivered."""
        self.redeliver(job_id)
        return self.worker.execute(job_id)

    def redeliver(self, job_id: int) -> None:
        redeliver(connected(self.database_url), job_id)

    def work_to_the_end(self, job_id: int, attempts: int = 10) -> list[str]:
        """Let the worker try the job until it is finished or dead; returns what each attempt came to."""
        words: list[str] = []
        while self.whereabouts(job_id) == "inflight_jobs":
            assert len(words) < attempts, words
            words.append(self.work(job_id))
        return words

    def end_lease(self, job_id: int) -> None:
        self.set(job_id, "lease_expires_at = clock_timestamp() - interval '1 ms' WHERE")

    def set(self, job_id: int, assignment: str) -> None:
        query(self.database_url, f"UPDATE inflight_jobs SET {assignment} id = %s", job_id)

    def claim(self, job_id: int) -> Claim | None:
        """What another worker gets that asks for the job now."""
        return claims.claim(connected(self.database_url), job_id, worker="the other", limits={})

    def take_over(self, job_id: int) -> Claim:
        """Let the lease run out, and another worker claim the job."""

        def taken() -> Claim | None:
            # A heartbeat may come in between.
            self.end_lease(job_id)
            return self.claim(job_id)

        claim = wait_until(taken)
        assert claim is not None
        return claim

    def finish(self, claim: Claim) -> bool:
        return finishes.finish(connected(self.database_url), claim)

    def whereabouts(self, job_id: int) -> str:
        """Name of the one table that has the job."""
        places = " UNION ALL ".join(f"SELECT '{table}' FROM {table} WHERE id = %s" for table in TABLES)
        ((place,),) = query(self.database_url, places, *[job_id] * len(TABLES))
        return str(place)

    def row(self, job_id: int) -> dict[str, Any]:
        """All that its table says about the job."""
        table = self.whereabouts(job_id)
        cursor = connected(self.database_url).cursor(row_factory=dict_row)
        found = cursor.execute(f"SELECT * FROM {table} WHERE id = %s".encode(), [job_id]).fetchone()
        assert found is not None
        return found

    def lease_expires_at(self, job_id: int) -> datetime:
        ((expires_at,),) = query(
            self.database_url, "SELECT lease_expires_at FROM inflight_jobs WHERE id = %s", job_id
        )
        assert isinstance(expires_at, datetime)
        return expires_at

    def stale_finishes(self) -> list[tuple[Any, ...]]:
        """Job, token and outcome of each that was refused, in their order."""
        return query(
            self.database_url, "SELECT id, fencing_token, outcome FROM stale_finishes ORDER BY number"
        )

    def backends(self, application_name: str, *, state: str | None = None) -> list[int]:
        """Process ids of the server's sessions of this name."""
        rows = query(
            self.database_url,
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s "
            "AND coalesce(state = %s, true)",
            application_name,
            state,
        )
        return [pid for (pid,) in rows]

    def terminate(self, application_name: str) -> int:
        """End the server's sessions of this name; returns how many there were."""
        pids = self.backends(application_name)
        for pid in pids:
            query(self.database_url, "SELECT pg_terminate_backend(%s, 10000)", pid)
        return len(pids)

    def effects(self) -> list[str]:
        return [label for (label,) in query(self.database_url, "SELECT label FROM effects ORDER BY id")]


def leave(session: Session | psycopg.Connection[Any] | InLoop | OfDjango, label: str) -> None:
    """Leave an effect in the session's transaction."""
    if isinstance(session, Session):
        session.execute(sqlalchemy.text("INSERT INTO effects (label) VALUES (:label)"), {"label": label})
    else:
        session.execute("INSERT INTO effects (label) VALUES (%s)", (label,))


def note_how_finishes_commit(database_url: str) -> None:
    """Let each finish leave an effect that tells whether its commit waits for the disk."""
    query(
        database_url,
        """
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO effects (label, worker)
            VALUES ('synchronous_commit ' || current_setting('synchronous_commit'), 0);
            RETURN NULL;
        END $$;
        CREATE TRIGGER notes AFTER DELETE ON inflight_jobs FOR EACH ROW EXECUTE FUNCTION note()
        """,
    )
