"""Cancelling: jobs that wait or run are given up, in the transaction that the application has open.

Under read committed no job slips through that the leader or a worker moves meanwhile: staged rows come first, then rows
in flight, which each statement sees as they are at its own time.
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
from drain.tables import cancellations
from drain.tables.columns import id_array
from drain.tables.selections import Selection

LARGEST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Answer of `cancel`: ids of jobs, in ascending order.

    Attributes:
        waiting: Jobs that were cancelled before an attempt began, or between two attempts.
        running: Jobs that were cancelled while a worker had them.
        finished: Jobs among the given ids that are finished already.
        dead: Jobs among the given ids that were dead already.
        unknown: Given ids that no table has: never staged, not committed yet, forwarded, discarded or archived.
    """

    waiting: tuple[int, ...] = ()
    running: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    dead: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        """Number of jobs that were cancelled."""
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
    """Cancel jobs in the transaction that is open on `connection`: those to which everything that is given applies.

    What waits is gone: it is kept in `dead_jobs` as cancelled, and `drain dead retry` revives it. What runs is fenced
    off: it can finish nothing any more, its `transaction()` is rolled back, and from its next heartbeat on
    `current_job().cancelled` is true and it gets a `JobCancelledError`. Until the caller commits, none of this is seen,
    and a worker that claims or finishes one of these jobs waits: commit soon.

    Args:
        connection: As for `stage`. Under repeatable read or serializable a job that was moved since the transaction's
            snapshot makes the call raise the driver's serialization error, or is among the unknown.
        ids: Id or ids of jobs.
        queue: Queue of the jobs.
        job: Name of the jobs, or the function itself.
        tag: Tag of the jobs.
        key: Key of the jobs.

    Returns:
        What was cancelled, and which of the ids could not be.

    Raises:
        SelectionError: Nothing is named, or something that cannot be an id or a text. Nothing was sent.
    """
    selection = Selection(
        None if ids is None else checked_ids(ids),
        _text("queue", queue),
        None if job is None else _text("job", name_and_options(job)[0]),
        _text("tag", tag),
        _text("key", str(key) if type(key) is int else key),
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
    """Return ids as whole numbers that PostgreSQL can read, each once.

    Raises:
        SelectionError: One is not.
    """
    given = ids if isinstance(ids, Iterable) and not isinstance(ids, str | bytes) else [ids]
    return tuple(dict.fromkeys(checked_id(each) for each in given))


def checked_id(given: object) -> int:
    """Return the id of one job as a whole number that PostgreSQL can read.

    Raises:
        SelectionError: It is none.
    """
    # True is an int to Python, but a mistake as an id.
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise SelectionError(f"the id of a job is a whole number, not {given!a:.100}")
    number = operator.index(given)
    if not 0 < number <= LARGEST_ID:
        raise SelectionError(f"no job has the id {number}")
    return number


def _text(name: str, text: object) -> str | None:
    if text is None:
        return None
    if isinstance(text, str) and text and not re.search("[\0\ud800-\udfff]", text):
        return text
    raise SelectionError(f"{name} must be a text that is not empty, not {text!r:.100}")
