"""Ended jobs, from `dead_jobs` or the archive."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Literal

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from drain.database.postgres import Connection
from drain.errors import ConfigError
from drain.pipeline.lake import files as archived
from drain.tables.columns import CLAIMED
from drain.tables.dead import Selection

_SELECTED = """
(%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[]))
    AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
    AND (%(job_name)s::text IS NULL OR job_name = %(job_name)s::text)
    AND (%(tag)s::text IS NULL OR tag = %(tag)s::text)
"""
# The user's condition may end in a comment, so the bracket is on its own line.
_DEAD = """
SELECT id, {claimed}, attempts, max_attempts, timeout_seconds, fencing_token, salt, reason, explanation,
    regexp_replace(last_error ->> 'type', '^workers[.]errors[.]', 'drain.workers.errors.') AS error_type,
    last_error ->> 'message' AS message
FROM dead_jobs WHERE {selected} AND ({where}
) ORDER BY died_at DESC, id DESC LIMIT %(limit)s
"""
_CHOSEN = """
SELECT id FROM (
    SELECT *, (finished_at AT TIME ZONE 'UTC')::date AS finished_date
    FROM jsonb_populate_recordset(NULL::finished_jobs, %(rows)s::jsonb)) AS job
WHERE {selected} AND ({where}
)
"""

_COLUMNS = (
    *("id", "job_name", "job_args", "job_kwargs", "queue", "priority", "scheduled_at", "tag", "context"),
    *("staged_at", "moved_at", "claimed_at", "finished_at", "finished_by", "attempts", "fencing_token"),
    *("last_error", "history", "key", "superseded_by", "result"),
)
_JSON = ("job_args", "job_kwargs", "context", "last_error", "history", "result")
# Archive rows tested per query.
_TOGETHER = 500

# After leaving its transaction a job's end is unknown.
Kind = Literal["returned", "raised", "deferred", "never ran", "left its transaction"]


@dataclass(frozen=True)
class End:
    """End of an attempt; `message` is the exception's, or why the job never ran."""

    kind: Kind
    error: str | None = None
    message: str | None = None
    seconds: float | None = None
    result: str | None = None


@dataclass(frozen=True)
class PastJob:
    """Job that has ended.

    Attributes:
        max_attempts, timeout_seconds: None for the registered ones.
        salt: Random part of the external key; None for archived jobs, which do not keep it.
    """

    id: int
    job_name: str
    job_args: str
    job_kwargs: str
    queue: str
    tag: str | None
    context: str | None
    attempts: int
    fencing_token: int
    end: End
    max_attempts: int | None = None
    timeout_seconds: int | None = None
    salt: int | None = None


def dead_jobs(connection: Connection, selection: Selection, where: str, limit: int) -> list[PastJob]:
    """Read selected dead jobs, latest first."""
    return [_dead(row) for row in dead(connection, selection, where, limit)]


def archived_jobs(
    connection: Connection, path: str, selection: Selection, where: str, limit: int
) -> list[PastJob]:
    """Read selected archived jobs that satisfy a condition on `finished_jobs`, latest days first."""
    return list(islice(_chosen(connection, path, selection, where), limit))


def _chosen(connection: Connection, path: str, selection: Selection, where: str) -> Iterator[PastJob]:
    rows = archived.rows(path, _COLUMNS, queue=selection.queue, job_name=selection.job_name)
    while some := list(islice(rows, _TOGETHER)):
        wanted = chosen(connection, [_as_json(row) for row in some], selection, where)
        yield from (_archived(row) for row in some if row["id"] in wanted)


def _as_json(row: Mapping[str, Any]) -> dict[str, Any]:
    def value(name: str, given: Any) -> Any:
        if isinstance(given, datetime):
            return given.isoformat()
        return json.loads(given) if name in _JSON and given is not None else given

    return {name: value(name, given) for name, given in row.items()}


def _archived(row: Mapping[str, Any]) -> PastJob:
    seconds = (row["finished_at"] - row["claimed_at"]).total_seconds()
    return _job(row, End("returned", seconds=seconds, result=row["result"]))


def _dead(row: Mapping[str, Any]) -> PastJob:
    limits = {name: row[name] for name in ("max_attempts", "timeout_seconds", "salt")}
    if row["error_type"] is None:
        return _job(row, End("never ran", message=row["explanation"] or row["reason"]), **limits)
    return _job(row, End("raised", row["error_type"], row["message"] or ""), **limits)


def _job(row: Mapping[str, Any], end: End, **limits: Any) -> PastJob:
    names = (
        "id",
        "job_name",
        "job_args",
        "job_kwargs",
        "queue",
        "tag",
        "context",
        "attempts",
        "fencing_token",
    )
    return PastJob(**{name: row[name] for name in names}, end=end, **limits)


def dead(connection: Connection, selection: Selection, where: str, limit: int) -> list[dict[str, Any]]:
    """Read rows of selected dead jobs, latest first; ConfigError for an invalid condition."""
    return _rows(connection, _DEAD, where, selection.parameters() | {"limit": limit})


def chosen(
    connection: Connection, rows: Sequence[Mapping[str, Any]], selection: Selection, where: str
) -> set[int]:
    """Return the ids of finished rows, as JSON types, that match selection and SQL condition."""
    found = _rows(connection, _CHOSEN, where, selection.parameters() | {"rows": Jsonb(list(rows))})
    return {row["id"] for row in found}


def _rows(
    connection: Connection, statement: str, where: str, parameters: Mapping[str, Any]
) -> list[dict[str, Any]]:
    text = statement.format(claimed=CLAIMED, selected=_SELECTED, where=where.replace("%", "%%"))
    try:
        with connection.transaction():
            # Parameters force a single statement, which is read-only.
            connection.execute("SET TRANSACTION READ ONLY")
            with connection.cursor(row_factory=dict_row) as cursor:
                return cursor.execute(text.encode(), parameters).fetchall()
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.InternalError) as error:
        raise ConfigError(f"--where cannot be used: {error.diag.message_primary}") from None
