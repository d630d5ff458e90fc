"""Refused outcomes of stale claims: rows of `stale_finishes`."""

from __future__ import annotations

from drain.database.postgres import Connection
from drain.tables.fences import Fenced

RECORD = "INSERT INTO stale_finishes (id, fencing_token, claimed_by, outcome) VALUES (%s, %s, %s, %s)"


def record(connection: Connection, claim: Fenced, outcome: str) -> None:
    """Record an outcome that a stale claim reported."""
    connection.execute(RECORD, (claim.id, claim.fencing_token, claim.worker, outcome))
