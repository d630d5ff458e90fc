"""Bulk runs: each has an id, runs in one session at a time, and stages its jobs once.

Each transaction records the progress in `bulk_runs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from psycopg import Copy, errors
from psycopg.sql import SQL, Identifier

from drain.database import locks
from drain.database.postgres import Connection
from drain.errors import StageError
from drain.tables import bulk_flows, staged
from drain.tables.bulk_flows import NewFlow

_SHOWN_CHARACTERS = 200
_CANCEL_SECONDS = 5.0
_FIND = "SELECT rows, plan, position, committed_at IS NOT NULL, flow FROM bulk_runs WHERE run_id = %s"
# Ids of runs that staged nothing may be reused.
_BEGIN = """
INSERT INTO bulk_runs (run_id, rows, plan, committed_at) VALUES (%s, 0, %s, NULL) ON CONFLICT (run_id) DO UPDATE
SET plan = excluded.plan, begun_at = excluded.begun_at, committed_at = NULL WHERE bulk_runs.rows = 0
"""
_FORGET = "DELETE FROM bulk_runs WHERE run_id = %s AND rows = 0 AND committed_at IS NULL"
_NOTE = """
UPDATE bulk_runs SET rows = rows + %(rows)s, position = %(position)s, flow = %(flow)s,
    committed_at = CASE WHEN %(position)s::text IS NULL THEN clock_timestamp() END
WHERE run_id = %(run)s AND rows = %(before)s AND committed_at IS NULL
"""
_COPY = SQL("COPY {table} ({columns}) FROM STDIN (FORMAT csv, ENCODING 'UTF8')")


class Noted(NamedTuple):
    """Note on a run, with the `position` to continue from and the id of its flow, if any."""

    rows: int
    plan: str | None
    position: str | None
    is_complete: bool
    flow: int | None = None


def find(connection: Connection, run_id: str) -> Noted | None:
    """Read the note on a run."""
    found = connection.execute(_FIND, (run_id,)).fetchone()
    return None if found is None else Noted._make(found)


def try_to_run(connection: Connection, run_id: str) -> bool:
    """Take the run's session lock; False if held elsewhere."""
    return locks.lock_for_command(connection, locks.BULK_RUN, run_id)


def begin(connection: Connection, run_id: str, plan: str | None) -> None:
    """Note a run's beginning; raise a StageError for an invalid id."""
    try:
        connection.execute(_BEGIN, (run_id, plan))
    except errors.IntegrityError as error:
        raise StageError(f"the run id {run_id!r} breaks the rule {broken_rule(error)!r}") from None


def forget(connection: Connection, run_id: str) -> None:
    """Delete the note of a run that staged nothing."""
    connection.execute(_FORGET, (run_id,))


class Copying:
    """COPY in progress; `position` is where to continue after the commit, `flow` the id of the new flow, if any."""

    def __init__(self, connection: Connection, copy: Copy) -> None:
        self._connection = connection
        self.rows = 0
        self.position: str | None = None
        self.flow: int | None = None
        self._copy = copy

    def write(self, chunk: bytes, rows: int) -> None:
        """Copy rows of CSV; Ctrl-C ends it at once."""
        try:
            self._copy.write(chunk)
        except (KeyboardInterrupt, SystemExit):
            # Otherwise the server first reads all unsent data.
            self._connection.cancel_safe(timeout=_CANCEL_SECONDS)
            raise
        self.rows += rows


@contextmanager
def staging(
    connection: Connection,
    run_id: str,
    names: Sequence[str],
    *,
    before: int = 0,
    rows_per_second: float | None = None,
    flow: NewFlow | None = None,
) -> Iterator[Copying]:
    """Stage and note the block's copied rows, in one transaction.

    Args:
        connection: In autocommit mode, holding the lock of a begun run.
        names: CSV columns; those with defaults must not be null.
        before: Jobs staged earlier by the run.
        rows_per_second: Rate of coming due after the commit; None for at once.
        flow: Makes the rows, if any, members of a new flow; see `bulk_flows.stage`.

    Raises:
        StageError: A row breaks a rule, or the run was staged elsewhere; nothing is staged.
    """
    with _explained(before, rows_per_second), connection.transaction():
        staged.announce_bulk(connection)
        # Due times count from the commit, unknown before the last row.
        waits = rows_per_second is not None or not {"scheduled_at", "quiet_seconds"}.isdisjoint(names)
        is_aside = waits or flow is not None
        table = (
            staged.put_aside(connection, [name for name in names if name not in bulk_flows.GRAPH])
            if is_aside
            else "staged_jobs"
        )
        if bulk_flows.NODE in names:
            bulk_flows.name_rows(connection)
        columns = SQL(", ").join(map(Identifier, names))
        into = SQL(".").join(map(Identifier, table.split(".")))
        with (
            connection.cursor() as cursor,
            cursor.copy(_COPY.format(table=into, columns=columns)) as copy,
        ):
            copying = Copying(connection, copy)
            yield copying
        if flow is not None:
            # Without rows, the run counts as not staged, and can be repeated.
            if copying.rows:
                copying.flow = bulk_flows.stage(connection, names, flow, rows_per_second=rows_per_second)
        elif waits:
            staged.insert_put_aside(connection, names, rows_per_second=rows_per_second)
        noted = {"run": run_id, "before": before, "rows": copying.rows}
        noted |= {"position": copying.position, "flow": copying.flow}
        if not connection.execute(_NOTE, noted).rowcount:
            raise StageError(f"another program has just staged run {run_id!r}; nothing was staged here")


@contextmanager
def _explained(before: int, rows_per_second: float | None) -> Iterator[None]:
    done = f"no more than {before:,} jobs were staged" if before else "nothing was staged"
    try:
        yield
    except errors.IntegrityError as error:
        row = (error.diag.message_detail or "").strip()[:_SHOWN_CHARACTERS]
        raise StageError(f"{done}, because a row breaks the rule {broken_rule(error)!r}: {row}") from None
    except errors.DataError as error:
        if rows_per_second and isinstance(
            error, (errors.DatetimeFieldOverflow, errors.IntervalFieldOverflow)
        ):
            raise StageError(
                f"{done}: at {rows_per_second} rows a second the last of them would come due after the latest time "
                "that PostgreSQL has; name a higher rate"
            ) from None
        place = (error.diag.context or "").rpartition("COPY ")[2].partition("\n")[0]
        raise StageError(
            f"{done}, because a row cannot be read: {error.diag.message_primary} ({place[:_SHOWN_CHARACTERS]})"
        ) from None


def broken_rule(error: errors.IntegrityError) -> str:
    """Name the violated constraint or NOT NULL column."""
    if error.diag.constraint_name:
        return error.diag.constraint_name.replace("_", " ")
    return f"{(error.diag.column_name or 'a column').replace('_', ' ')} must not be null"
