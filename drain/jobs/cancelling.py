"""Cancellation, in the application's open transaction.

Staged rows come before rows in flight: under read committed, no job being moved escapes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable
from dataclasses import dataclass

from drain.errors import SelectionError
from drain.failpoints import FailurePoint, failpoint
from drain.jobs import executors
from drain.jobs.executors import Connectable
from drain.jobs.options import name_and_options
from drain.jobs.rows import Job
from drain.jobs.values import LARGEST_ID
from drain.tables import cancellations
from drain.tables.columns import id_array
from drain.tables.selections import Selection


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Ids of jobs after `cancel`, ascending.

    Attributes:
        waiting: Cancelled before or between attempts.
        running: Cancelled while claimed.
        finished: Given ids that had finished.
        dead: Given ids that were dead.
        unknown: Given ids in no table: never staged, uncommitted, forwarded, discarded or archived.
    """

    waiting: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Number of cancelled jobs."""
        return len(self.waiting) + len(self.running)


def cancel(
    connection: Connectable,
    ids: int | Iterable[int] | None = None,
    *,
    queue: str | None = None,
    job: Job | None = None,
    tag: str | None = None,
    key: str | int | None = None,
) -> Cancelled:
    """Cancel the jobs that match all arguments, in the open transaction.

    Waiting jobs move to `dead_jobs`; `drain dead retry` revives them. Running jobs are fenced off: they cannot finish,
    their `transaction()` is rolled back, and from the next heartbeat `current_job().cancelled` is true and they get a
    `JobCancelledError`. Commit soon: workers that claim or finish these jobs wait. Only `ids` and `job` cancel a
    blocked `drain.undo`.

    Args:
        connection: As for `stage`. Under repeatable read or serializable, jobs moved since the snapshot raise a
            serialization error or are unknown.
        ids: One id or several.
        queue: Queue name.
        job: Job name or function.
        tag: Tag.
        key: Key.

    Returns:
        Cancelled jobs, and ids that could not be cancelled.

    Raises:
        SelectionError: No argument, or an invalid one. Nothing was sent.
    """
    selection = Selection(
        None if ids is None else checked_ids(ids),
        _text("queue", queue),
        None if job is None else _text("job", name_and_options(job)[0]),
        _text("tag", tag),
        _text("key", str(key) if type(key) is int else key),
        leaves_undos=True,
    )
    if not selection.parameters():
        raise SelectionError("name the jobs to cancel: ids, queue, job, tag or key")
    return executors.together(connection, lambda: _cancel(connection, selection))


def _cancel(connection: Connectable, selection: Selection) -> Cancelled:
    parameters = selection.parameters()
    rows = executors.execute(connection, cancellations.staged_statement(selection), parameters)
    failpoint(FailurePoint.CANCELLED)
    rows += executors.execute(connection, cancellations.inflight_statement(selection), parameters)
    cancelled = {job_id for job_id, _ in rows}
    left = sorted(set(selection.ids or ()) - cancelled)
    asked = {"ids": id_array(left)}
    ended = dict(executors.execute(connection, cancellations.WHEREABOUTS, asked)) if left else {}
    return Cancelled(
        waiting=tuple(sorted(job_id for job_id, was_claimed in rows if not was_claimed)),
        running=tuple(sorted(job_id for job_id, was_claimed in rows if was_claimed)),
        finished=tuple(job_id for job_id in left if ended.get(job_id) == "finished"),
        dead=tuple(job_id for job_id in left if ended.get(job_id) == "dead"),
        unknown=tuple(job_id for job_id in left if job_id not in ended),
    )


def checked_ids(ids: int | Iterable[int]) -> tuple[int, ...]:
    """Return distinct ids, or raise SelectionError."""
    given = ids if isinstance(ids, Iterable) and not isinstance(ids, str | bytes) else [ids]
    return tuple(dict.fromkeys(checked_id(each) for each in given))


def checked_id(given: object) -> int:
    """Return an id as `int`, or raise SelectionError."""
    # True is an int, but a mistake here.
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise SelectionError(f"a job id must be a whole number, not {given!a:.100}")
    number = operator.index(given)
    if not 0 < number <= LARGEST_ID:
        raise SelectionError(f"no job has the id {number}")
    return number


def _text(name: str, text: object) -> str | None:
    if text is None:
        return None
    if isinstance(text, str) and text and not re.search("[\0\ud800-\udfff]", text):
        return text
    raise SelectionError(f"{name} must be a non-empty string, not {text!r:.100}")
