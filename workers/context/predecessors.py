"""Results of a running job's predecessors, and its flow, read once per attempt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from drain.errors import StageError
from drain.jobs.dependencies import FlowOfJob
from drain.tables import predecessors
from drain.workers.context import async_connection_cache, connection_cache

if TYPE_CHECKING:
    from drain.workers.context.current import Attempt


def results(attempt: Attempt) -> dict[int | str, Any]:
    """Return new results by id or node."""
    if attempt.results is None:
        with connection_cache.bare(attempt.database_url) as connection:
            attempt.results = predecessors.read_results(connection, attempt.claim.id)
            connection.rollback()
    return _parsed(attempt.results)


async def aresults(attempt: Attempt) -> dict[int | str, Any]:
    """See `results`."""
    if attempt.results is None:
        async with async_connection_cache.bare(attempt.database_url) as connection:
            attempt.results = await predecessors.read_results_async(connection, attempt.claim.id)
            await connection.rollback()
    return _parsed(attempt.results)


def flow(attempt: Attempt) -> FlowOfJob:
    """Return the job's flow, or raise StageError."""
    if attempt.flow is None:
        with connection_cache.bare(attempt.database_url) as connection:
            attempt.flow = _flow(attempt, predecessors.read_flow(connection, attempt.claim.id))
            connection.rollback()
    return attempt.flow


async def aflow(attempt: Attempt) -> FlowOfJob:
    """See `flow`."""
    if attempt.flow is None:
        async with async_connection_cache.bare(attempt.database_url) as connection:
            attempt.flow = _flow(attempt, await predecessors.read_flow_async(connection, attempt.claim.id))
            await connection.rollback()
    return attempt.flow


def _flow(attempt: Attempt, found: tuple[int, str | None] | None) -> FlowOfJob:
    if found is None:
        claim = attempt.claim
        raise StageError(f"job {claim.id} ({claim.job_name}) is not in a batch or flow: stage without flow=")
    return FlowOfJob(*found)


def _parsed(texts: dict[int | str, str]) -> dict[int | str, Any]:
    return {name: json.loads(text) for name, text in texts.items()}
