"""Retries of dead jobs with other arguments."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from drain.database.postgres import Connection
from drain.errors import DrainError, StageError
from drain.jobs import rows
from drain.tables import dead
from drain.tables.dead import Selection


@dataclass(frozen=True, slots=True)
class Edit:
    """Arguments that replace those of a dead job, as JSON; an empty text keeps the job's own."""

    args: str
    kwargs: str

    @property
    def is_empty(self) -> bool:
        """True if it keeps both."""
        return not self.args and not self.kwargs


def check(connection: Connection, job_id: int, edit: Edit) -> bool:
    """Check the arguments that a dead job would have; return False if it is not dead.

    Raises:
        StageError: `stage` would refuse them.
    """
    found = dead.arguments(connection, job_id)
    if found is None:
        return False
    name, args, kwargs = found
    rows.check_arguments(
        name, _read("arguments", edit.args or args), _read("keyword arguments", edit.kwargs or kwargs)
    )
    return True


def revive_edited(
    connection: Connection, selection: Selection, job_id: int, edit: Edit, edited_by: str | None = None
) -> int:
    """Retry dead jobs, one of them with other arguments, in the open transaction; return how many.

    The job keeps its unique key and idempotency key.

    Args:
        edited_by: Recorded in the job's history; by default the session's role.

    Raises:
        StageError: `stage` would refuse the arguments.
        DrainError: Others are retried, but this job cannot be.
    """
    if not check(connection, job_id, edit):
        return 0
    revived = dead.revive(connection, selection)
    # The texts as they are: floats would round numbers.
    if revived and not dead.edit(connection, job_id, edit.args or None, edit.kwargs or None, edited_by):
        raise DrainError(f"job {job_id} cannot be retried yet; nothing was done")
    return revived


def _read(part: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StageError(f"the {part} cannot be read as JSON ({error}): {text!r:.100}") from None
