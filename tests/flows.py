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
_STATES = """
SELECT id, found.state FROM unnest(%s::bigint[]) AS given (id), LATERAL (
    SELECT CASE WHEN scheduled_at = '9999-12-29Z' THEN 'blocked' WHEN matured_at IS NULL AND scheduled_at > now()
        THEN 'scheduled' ELSE 'waiting' END AS state FROM staged_jobs AS job WHERE job.id = given.id
    UNION ALL SELECT 'in flight' FROM inflight_jobs AS job WHERE job.id = given.id
    UNION ALL SELECT 'finished' FROM finished_jobs AS job WHERE job.id = given.id
    UNION ALL SELECT reason FROM dead_jobs AS job WHERE job.id = given.id) AS found
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
        """Stage a job that waits for these; `event` is the option "on"."""
        given = {"on" if name == "event" else name: value for name, value in options.items()}
        given |= {"after": after} if after else {}
        ((job_id,),) = (on or self.connection).execute(_STAGE, (json.dumps(given),)).fetchall()
        return int(job_id)

    def flow(
        self, *events: str, on: psycopg.Connection[Any] | None = None, **options: Any
    ) -> tuple[int, ...]:
        """Make a flow in one transaction; return its id, and those of its callbacks."""
        if on is None:
            with self.connection.transaction():
                return self.flow(*events, on=self.connection, **options)
        ((flow,),) = on.execute(
            "SELECT id FROM drain_flow(%s::text::jsonb)", (json.dumps(options),)
        ).fetchall()
        return flow, *(self.stage(on=on, flow=flow, event=event) for event in events)

    def progress(self, flow: int) -> tuple[Any, ...]:
        """Return the counts of a flow's members, and its state."""
        (row,) = self.connection.execute("SELECT * FROM drain_flow_progress(%s)", (flow,)).fetchall()
        return row

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
        (state,) = self.states(job_id)
        return state

    def states(self, *ids: int) -> list[str]:
        """Return where jobs are."""
        rows = self.connection.execute(_STATES, (sorted({*ids}),)).fetchall()
        found: dict[int, str] = dict(rows)
        assert len(found) == len(rows), f"a job is in several tables: {rows}"
        return [found.get(id_, "absent") for id_ in ids]

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
