"""Results of a running job's predecessors, read once per attempt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from drain.tables import predecessors
from drain.workers.context import async_connection_cache, connection_cache

if TYPE_CHECKING:
    from drain.workers.context.current import Attempt


def results(attempt: Attempt) -> dict[int, Any]:
    """Return new results by id."""
    if attempt.results is None:
        with connection_cache.bare(attempt.database_url) as connection:
            attempt.results = predecessors.read_results(connection, attempt.claim.id)
            connection.rollback()
    return _parsed(attempt.results)


async def aresults(attempt: Attempt) -> dict[int, Any]:
    """See `results`."""
    if attempt.results is None:
        async with async_connection_cache.bare(attempt.database_url) as connection:
            attempt.results = await predecessors.read_results_async(connection, attempt.claim.id)
            await connection.rollback()
    return _parsed(attempt.results)


def _parsed(texts: dict[int, str]) -> dict[int, Any]:
    return {job_id: json.loads(text) for job_id, text in texts.items()}
