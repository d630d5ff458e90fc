"""Jobs that have ended, as a rehearsal reads them: dead ones, and rows of the archive that fulfil a condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from drain.database.postgres import Connection
from drain.errors import ConfigError
from drain.tables.columns import CLAIMED
from drain.tables.dead import Selection

_SELECTED = """
(%(ids)s::bigint[] IS NULL OR id = ANY (%(ids)s::bigint[]))
    AND (%(queue)s::text IS NULL OR queue = %(queue)s::text)
    AND (%(job_name)s::text IS NULL OR job_name = %(job_name)s::text)
    AND (%(tag)s::text IS NULL OR tag = %(tag)s::text)
"""
# The condition is a person's own; a comment at its end must not hide the bracket.
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


def dead(connection: Connection, selection: Selection, where: str, limit: int) -> list[dict[str, Any]]:
    """Read dead jobs of a selection that fulfil a condition in SQL, the latest first.

    Raises:
        ConfigError: The condition cannot be used.
    """
    return _rows(connection, _DEAD, where, selection.parameters() | {"limit": limit})


def chosen(
    connection: Connection, rows: Sequence[Mapping[str, Any]], selection: Selection, where: str
) -> set[int]:
    """Find the ids of the rows of finished jobs, given as JSON types, that fulfil a selection and a condition in SQL.

    Raises:
        ConfigError: The condition cannot be used.
    """
    found = _rows(connection, _CHOSEN, where, selection.parameters() | {"rows": Jsonb(list(rows))})
    return {row["id"] for row in found}


def _rows(
    connection: Connection, statement: str, where: str, parameters: Mapping[str, Any]
) -> list[dict[str, Any]]:
    text = statement.format(claimed=CLAIMED, selected=_SELECTED, where=where.replace("%", "%%"))
    try:
        with connection.transaction():
            # With parameters it is one statement, whatever the condition is; and that writes nothing.
            connection.execute("SET TRANSACTION READ ONLY")
            with connection.cursor(row_factory=dict_row) as cursor:
                return cursor.execute(text.encode(), parameters).fetchall()
    except (psycopg.ProgrammingError, psycopg.DataError, psycopg.InternalError) as error:
        raise ConfigError(f"--where cannot be used: {error.diag.message_primary}") from None
