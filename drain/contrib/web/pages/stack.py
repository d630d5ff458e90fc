"""Stack of a hanging job."""

from __future__ import annotations

from collections.abc import Mapping
from threading import BoundedSemaphore
from typing import Any

from drain.contrib.web.routing import page
from drain.contrib.web.views import View
from drain.contrib.web.writes import Done, Write, action
from drain.errors import DrainError, UnavailableError
from drain.read.explain.stack import JobStack, NoStackError, read_stack, running_claim

# Concurrent requests: each occupies a thread for some seconds.
_MOST_QUESTIONS = 4
_questions = BoundedSemaphore(_MOST_QUESTIONS)


def _show(view: View) -> Mapping[str, Any]:
    job_id = view.job_id()
    try:
        return _values(job_id, claim=_claim(view, job_id))
    except NoStackError as error:
        return _values(job_id, problem=str(error))


def _read(write: Write) -> Done:
    view, job_id = write.view, write.view.job_id()
    claim: dict[str, Any] | None = None
    stack: JobStack | None = None
    problem = ""
    try:
        # Release the session before waiting for the process.
        claim = _claim(view, job_id)
        stack = _ask(view, claim)
    except (NoStackError, UnavailableError) as error:
        problem = str(error)
    return Done(
        f"stack of job {job_id}: {'read' if stack else 'not read'}",
        view.url("stack", job_id=job_id),
        {"jobs": 1, "job_id": job_id},
        template="stack.html",
        values=_values(job_id, claim=claim, stack=stack, problem=problem),
    )


def _ask(view: View, claim: dict[str, Any]) -> JobStack:
    settings = view.site.settings
    if not _questions.acquire(blocking=False):
        raise DrainError("others are waiting for stacks; try again in some seconds")
    try:
        return read_stack(settings.required_redis_url, settings.namespace, claim)
    finally:
        _questions.release()


def _claim(view: View, job_id: int) -> dict[str, Any]:
    with view.snapshot() as connection:
        return running_claim(connection, job_id)


def _values(
    job_id: int, *, claim: dict[str, Any] | None = None, stack: JobStack | None = None, problem: str = ""
) -> dict[str, Any]:
    seconds = (claim["now"] - claim["claimed_at"]).total_seconds() if claim else 0.0
    return {"job_id": job_id, "claim": claim, "seconds": seconds, "stack": stack, "problem": problem}


ROUTES = [
    page("/workers/stack/{job_id}", _show, name="stack", template="stack.html"),
    action("/workers/stack/{job_id}/read", _read, name="stack_read"),
]
