"""State and result of one job.

Waiting polls the table once a second, and whenever Redis announces an end: messages may be lost.
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

_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class JobState:
    """State of a job.

    Attributes:
        id: Its id.
        job_name: Name it was staged under.
        queue: Queue name.
        state: `blocked` (waits for other jobs), `waiting`, `scheduled` (also after `Defer`), `running`, `retrying`,
            `parked` (waits for an event, or sleeps), `finished`, `superseded` (by a job of its unique key), `dead`,
            `cancelled` or `expired`.
        attempts: Attempts so far.
        staged_at: Start of the transaction that staged it.
        started_at: Claim of the latest attempt; None before, or if dead.
        finished_at: Time it finished, died or was superseded; None before.
        error: Last error, or why it is dead or superseded; one line, or None.
        has_result: True if a result was kept.
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
    """Look up a job's state, inside or outside a transaction.

    Args:
        connection: As for `stage`.
        job_id: Id returned by `stage`.

    Returns:
        The state; None if no table has the job (uncommitted, forwarded, discarded, archived or dropped), or for jobs
        of a role that this one is not a member of. Under repeatable read also, perhaps, for jobs moved since the
        snapshot.

    Raises:
        SelectionError: Invalid id.
    """
    given = _given(job_id)
    # Twice: a TRUNCATE may hide moved rows from the first snapshot.
    for _ in range(2):
        for row in executors.execute(connection, _STATE, given):
            return JobState(*row)
    return None


async def astate(connection: AsyncConnectable, job_id: int) -> JobState | None:
    """Look up a job's state on an asynchronous connection; see `state`.

    Raises:
        SelectionError: Invalid id.
    """
    given = _given(job_id)
    for _ in range(2):
        for row in await async_executors.execute(connection, _STATE, given):
            return JobState(*row)
    return None


def result(connection: Connectable, job_id: int) -> Any:
    """Look up the result of a finished `@job(result="keep")`.

    Args:
        connection: As for `stage`.
        job_id: Id returned by `stage`.

    Returns:
        The job's return value, decoded from JSON.

    Raises:
        NotFinishedError: The job has not finished yet.
        DeadJobError: It is dead, cancelled or expired; the message has its last error.
        NoResultError: No result was kept.
        UnknownJobError: No table has it, or another role staged it.
        SelectionError: Invalid id.
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
    """Wait for the result of a `@job(result="keep")`.

    Commit the transaction that staged the job first. The connection is polled until the job ends, which under
    repeatable read it never sees.

    Args:
        connection: As for `astage`; in a transaction or not.
        job_id: Id returned by `astage`.
        timeout: Seconds until `NotFinishedError`.
        redis_url: The workers' Redis; DRAIN_REDIS_URL by default. Without Redis, up to one poll a second.

    Returns:
        As `result`.

    Raises:
        NotFinishedError: The job did not finish within `timeout`.
        DeadJobError, NoResultError, UnknownJobError, SelectionError: As `result`.
        ConfigError: Invalid `redis_url`.
    """
    until = monotonic() + timeout
    given = _given(job_id)
    rows = await _look(connection, given)
    found = _ended(job_id, rows)
    if found is None:
        # Most applications never wait.
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
    return NotFinishedError(f"job {job_id} has not finished{after}: {found.state}{error}")


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
