"""Into `stale_finishes`: what was refused, because somebody else had claimed the job."""

from __future__ import annotations

from drain.database.postgres import Connection

RECORD = "INSERT INTO stale_finishes (id, fencing_token, claimed_by, outcome) VALUES (%s, %s, %s, %s)"


def record(connection: Connection, job_id: int, token: int, *, worker: str, outcome: str) -> None:
    """Leave a row about an outcome that came under a stale token."""
    connection.execute(RECORD, (job_id, token, worker, outcome))
