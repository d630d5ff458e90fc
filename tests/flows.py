"""Jobs that wait for others, ended by SQL, and the leader that unblocks them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

import psycopg

from drain.enqueuer.enqueuer import Enqueuer
from drain.tables import cancellations, dead
from drain.tables.columns import DEAD, FINISHED, FINISHED_VALUES, JOB
from drain.tables.selections import Selection
from tests.helpers import connected, new_enqueuer

_STAGE = "SELECT drain_stage('m.f', '[]', %s::text::jsonb)"
_MOVE = f"""
WITH moved AS (DELETE FROM staged_jobs WHERE id = %s AND scheduled_at <= now() RETURNING {JOB})
INSERT INTO inflight_jobs ({JOB}, delivery, claimed_at) SELECT {JOB}, 1, now() FROM moved
"""
_CLAIMED = FINISHED_VALUES.replace(" claimed_at", " coalesce(claimed_at, now())")
_FINISH = f"""
WITH done AS (DELETE FROM inflight_jobs WHERE id = %s RETURNING *)
INSERT INTO finished_jobs ({FINISHED}) SELECT {_CLAIMED} FROM done
"""
_DIE = f"""
WITH done AS (DELETE FROM inflight_jobs WHERE id = %s RETURNING *)
INSERT INTO dead_jobs ({DEAD})
SELECT {JOB}, attempts, last_error, 'failed', 'failed' FROM done
"""
_STATE = """
SELECT CASE WHEN scheduled_at = '9999-12-29Z' THEN 'blocked' WHEN matured_at IS NULL AND scheduled_at > now()
    THEN 'scheduled' ELSE 'waiting' END FROM staged_jobs WHERE id = %(id)s
UNION ALL SELECT 'in flight' FROM inflight_jobs WHERE id = %(id)s
UNION ALL SELECT 'finished' FROM finished_jobs WHERE id = %(id)s
UNION ALL SELECT reason FROM dead_jobs WHERE id = %(id)s
"""


class Flows:
    """Jobs of one database; each call is one transaction, or part of that of `on`."""

    def __init__(self, database_url: str, enqueuer: Enqueuer) -> None:
        self.url = database_url
        self.enqueuer = enqueuer
        self.connection = connected(database_url)

    def stage(
        self, *after: int | tuple[int, str], on: psycopg.Connection[Any] | None = None, **options: Any
    ) -> int:
        """Stage a job that waits for these."""
        given = {"after": after, **options} if after else options
        ((job_id,),) = (on or self.connection).execute(_STAGE, (json.dumps(given),)).fetchall()
        return int(job_id)

    def move(self, *ids: int) -> None:
        """Move due jobs in flight."""
        for id_ in ids:
            assert self.connection.execute(_MOVE, (id_,)).rowcount == 1, f"job {id_} is not due"

    def finish(self, *ids: int, on: psycopg.Connection[Any] | None = None) -> None:
        """Run jobs to their end."""
        self._end(_FINISH, ids, on)

    def die(self, *ids: int, on: psycopg.Connection[Any] | None = None) -> None:
        """Run jobs until they are dead."""
        self._end(_DIE, ids, on)

    def _end(self, statement: str, ids: Sequence[int], on: psycopg.Connection[Any] | None) -> None:
        for id_ in ids:
            if self.state(id_) != "in flight":
                self.move(id_)
            assert (on or self.connection).execute(statement.encode(), (id_,)).rowcount == 1

    def cancel(self, *ids: int, on: psycopg.Connection[Any] | None = None) -> None:
        """Cancel staged jobs."""
        assert len(cancellations.cancel_staged(on or self.connection, Selection(ids=ids))) == len(ids)

    def retry(self, *ids: int, on: psycopg.Connection[Any] | None = None) -> None:
        """Revive dead jobs."""
        assert dead.revive(on or self.connection, dead.Selection(ids=ids)) == len(ids)

    def discard(self, *ids: int) -> None:
        """Delete dead jobs."""
        assert dead.discard(self.connection, dead.Selection(ids=ids)) == len(ids)

    def look(self, *, walk: bool = False) -> None:
        """Let the leader look until nothing is left to compare; `walk` as it does every five minutes."""
        unblocker = self.enqueuer._unblocker
        if walk:
            unblocker._walk_at = 0.0
        goes_on = True
        while goes_on:
            unblocker._looked_at = unblocker._retry_at = unblocker._left_until = -inf
            goes_on = unblocker.run_once()
            while unblocker.has_more:
                unblocker.run_once()

    def state(self, job_id: int) -> str:
        """Return where a job is."""
        found = self.connection.execute(_STATE, {"id": job_id}).fetchall()
        assert len(found) <= 1, f"job {job_id} is in several tables"
        return found[0][0] if found else "absent"

    def states(self, *ids: int) -> list[str]:
        """Return where jobs are."""
        return [self.state(id_) for id_ in ids]

    def explanation(self, job_id: int) -> str:
        """Return why a job is dead."""
        ((text,),) = self.connection.execute("SELECT explanation FROM dead_jobs WHERE id = %s", (job_id,))
        return str(text)

    def edges(self, child: int) -> list[str]:
        """Return the states of a job's edges."""
        rows = self.connection.execute(
            "SELECT state FROM job_edges WHERE child_id = %s ORDER BY parent_id", (child,)
        )
        return [state for (state,) in rows]

    @contextmanager
    def open(self) -> Iterator[psycopg.Connection[Any]]:
        """A transaction of another session; rolled back unless the block commits."""
        with psycopg.connect(self.url) as other:
            yield other
            other.rollback()


@contextmanager
def flows(database_url: str, redis_url: str) -> Iterator[Flows]:
    """A leader that has just begun."""
    with new_enqueuer(database_url, redis_url) as enqueuer:
        yield Flows(database_url, enqueuer)
