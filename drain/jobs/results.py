"""State and result of one job, by its id, on the connection of an application.

The table is the truth. Who waits for a result looks at it first, and again whenever a worker has told through Redis
that the job has ended, and once a second in any case: a message may be lost, or Redis be away.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from time import monotonic
from typing import Any, NamedTuple

from drain.errors import DeadJobError, NoResultError, NotFinishedError, UnknownJobError
from drain.jobs import async_executors, executors
from drain.jobs.async_executors import AsyncConnectable
from drain.jobs.cancelling import checked_id
from drain.jobs.executors import Connectable

_COLUMNS = "id, job_name, queue, state, attempts, staged_at, started_at, finished_at, error, has_result"
_FROM = "FROM drain_job_state(CAST(%(job_id)s AS bigint))"
_STATE = f"SELECT {_COLUMNS} {_FROM}"
_RESULT = f"SELECT state, error, has_result, CAST(result AS text) {_FROM}"

# Upper bound of the time between two looks at the table.
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class JobState:
    """State of a job.

    Attributes:
        id: Its id.
        job_name: Name that it was staged under.
        queue: Its queue.
        state: `waiting`, `scheduled` (also a job that has deferred itself), `running`, `retrying`, `finished`,
            `superseded` (it gave way to another one), `dead`, `cancelled` or `expired`.
        attempts: Number of its attempts so far.
        staged_at: Time at which the transaction began that has staged it.
        started_at: Time at which its latest attempt was claimed; None for a dead job, or before the first.
        finished_at: Time at which it finished, died or gave way; None before.
        error: Last error, on one line; or why it is dead, or gave way; None if there is none.
        has_result: True if it is finished, and a result of it was kept.
    """

    id: int
    job_name: str
    queue: str
    state: str
    attempts: int
    staged_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    has_result: bool


class _Found(NamedTuple):
    state: str
    error: str | None
    has_result: bool
    result: str | None


def state(connection: Connectable, job_id: int) -> JobState | None:
    """Look up the state of a job, in the transaction that is open on `connection`, or outside of one.

    Args:
        connection: As for `stage`.
        job_id: Id of the job, as `stage` has returned it.

    Returns:
        The state; None if no table has the job: it was never committed, or left in forward mode, or was discarded,
        archived or dropped. None too if another role has staged it, and this one is not a member of that role.

    Raises:
        SelectionError: `job_id` is no id.
    """
    given = _given(job_id)
    # Again, since rows may be moved by a TRUNCATE that the snapshot of the first look does not know of.
    for _ in range(2):
        for row in executors.execute(connection, _STATE, given):
            return JobState(*row)
    return None


async def astate(connection: AsyncConnectable, job_id: int) -> JobState | None:
    """Do as `state`, on an asynchronous connection.

    Raises:
        SelectionError: `job_id` is no id.
    """
    given = _given(job_id)
    for _ in range(2):
        for row in await async_executors.execute(connection, _STATE, given):
            return JobState(*row)
    return None


def result(connection: Connectable, job_id: int) -> Any:
    """Look up the result of a finished job that is registered with `@job(result="keep")`.

    Args:
        connection: As for `stage`.
        job_id: Id of the job, as `stage` has returned it.

    Returns:
        What the job has returned, as JSON gives it back.

    Raises:
        NotFinishedError: The job is not finished yet.
        DeadJobError: It is dead, cancelled or expired; the text has its last error.
        NoResultError: It is finished, and no result was kept.
        UnknownJobError: No table has it, or another role has staged it.
        SelectionError: `job_id` is no id.
    """
    given = _given(job_id)
    rows = executors.execute(connection, _RESULT, given) or executors.execute(connection, _RESULT, given)
    found = _ended(job_id, rows)
    if found is None:
        raise _not_finished(job_id, rows)
    return _value(job_id, found)


async def aresult(
    connection: AsyncConnectable, job_id: int, *, timeout: float = 5.0, redis_url: str | None = None
) -> Any:
    """Wait for the result of a job that is registered with `@job(result="keep")`.

    Commit the transaction that has staged the job first. The connection is used now and then until the job has ended;
    under repeatable read it would never see that.

    Args:
        connection: As for `astage`; in a transaction or not.
        job_id: Id of the job, as `astage` has returned it.
        timeout: Time in seconds after which `NotFinishedError` is raised.
        redis_url: URL of the Redis of the workers; DRAIN_REDIS_URL by default. Without either, or while Redis is away,
            the table alone is looked at, up to once a second.

    Returns:
        As `result`.

    Raises:
        NotFinishedError: The job is not finished within `timeout`.
        DeadJobError, NoResultError, UnknownJobError, SelectionError: As `result`.
        ConfigError: `redis_url` cannot be read.
    """
    until = monotonic() + timeout
    given = _given(job_id)
    rows = await _look(connection, given)
    found = _ended(job_id, rows)
    if found is None:
        # Imported here: most applications never wait.
        from drain.wire.ends import Ends

        async with Ends(job_id, redis_url) as ends:
            while True:
                rows = await _look(connection, given)
                found = _ended(job_id, rows)
                left = until - monotonic()
                if found is not None or left <= 0:
                    break
                await ends.wait(min(left, _LOOK_SECONDS))
    if found is None:
        raise _not_finished(job_id, rows, timeout)
    return _value(job_id, found)


async def _look(connection: AsyncConnectable, given: dict[str, int]) -> list[tuple[Any, ...]]:
    rows = await async_executors.execute(connection, _RESULT, given)
    return rows or await async_executors.execute(connection, _RESULT, given)


def _given(job_id: int) -> dict[str, int]:
    return {"job_id": checked_id(job_id)}


def _ended(job_id: int, rows: list[tuple[Any, ...]]) -> _Found | None:
    """Return the row of a job that has ended; None if it has not.

    Raises:
        UnknownJobError: There is no row.
    """
    if not rows:
        raise UnknownJobError(
            f"no job has the id {job_id}: its transaction has not committed, another role staged it, it left in "
            "forward mode, or it was discarded, archived or dropped"
        )
    found = _Found(*rows[0])
    return found if found.state in ("finished", "superseded", "dead", "cancelled", "expired") else None


def _not_finished(job_id: int, rows: list[tuple[Any, ...]], timeout: float | None = None) -> NotFinishedError:
    found = _Found(*rows[0])
    after = "" if timeout is None else f" after {timeout:g} s"
    error = f"; its last error: {found.error}" if found.error else ""
    return NotFinishedError(f"job {job_id} is not finished{after}: {found.state}{error}")


def _value(job_id: int, found: _Found) -> Any:
    if found.result is not None:
        return json.loads(found.result)
    if found.state == "finished":
        raise NoResultError(
            f'job {job_id} is finished, and no result was kept: register it with @job(result="keep")'
        )
    if found.state == "superseded":
        raise NoResultError(f"job {job_id} has not run: {found.error}; ask for the result of that one")
    raise DeadJobError(f"job {job_id} is {found.state}: {found.error}")
