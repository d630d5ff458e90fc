"""Texts of one job, whole: arguments, context, result and error, as PostgreSQL writes them."""

from __future__ import annotations

from drain.database.postgres import Connection
from drain.tables.queries import TABLES

# Parts of a job that may be large, and their columns.
PARTS = {
    "arguments": "job_args",
    "keyword-arguments": "job_kwargs",
    "context": "context",
    "result": "result",
    "error": "last_error",
    "former-lives": "history",
}
# Parts that only some tables have.
_OF_FINISHED = {"result"}
_NOT_OF_STAGED = {"error"}


def read(connection: Connection, job_id: int, part: str) -> str | None:
    """Read a part of a job as JSON; None if no table has the job, or it has no such part.

    Args:
        connection: In a transaction with one snapshot, or any.
        job_id: Id of the job.
        part: One of `PARTS`.
    """
    for state, table in TABLES.items():
        if (part in _OF_FINISHED and state != "finished") or (part in _NOT_OF_STAGED and state == "staged"):
            continue
        statement = f"SELECT {PARTS[part]}::text FROM {table} WHERE id = %s"
        for (text,) in connection.execute(statement.encode(), (job_id,)):
            return None if text is None else str(text)
    return None
