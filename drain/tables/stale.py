"""Outcomes that were refused, since their token was stale: rows of `stale_finishes`."""

from __future__ import annotations

from drain.database.postgres import Connection

RECORD = "INSERT INTO stale_finishes (id, fencing_token, claimed_by, outcome) VALUES (%s, %s, %s, %s)"


def record(connection: Connection, job_id: int, token: int, *, worker: str, outcome: str) -> None:
    """Insert a row about an outcome that was reported under a stale token."""
    connection.execute(RECORD, (job_id, token, worker, outcome))
