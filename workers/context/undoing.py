"""The job `drain.undo`, which undoes the recorded steps of a job that died, or of the members of a flow that failed."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from drain.formatting import visible
from drain.jobs import registry
from drain.tables import steps
from drain.tables.steps import UNDO, Undoable
from drain.workers.context import async_steps, django_connections, steps as plain_steps
from drain.workers.context.connection_cache import bare
from drain.workers.context.current import Attempt, current_attempt
from drain.workers.context.recorded_steps import Steps, fitting
from drain.workers.context.step_options import imported
from drain.workers.errors import INTERRUPTIONS, NotRegisteredError

log = logging.getLogger(__name__)


@registry.own(UNDO)
def undo(undone: int) -> None:
    """Undo recorded steps of a job, or of all members of a flow, in reverse order, each as a step of this job.

    Recording an undo deletes the step that it reverses, so a later attempt doesn't undo it again.
    """
    attempt = current_attempt()
    with bare(attempt.database_url) as connection:
        undoable = steps.read_undoable(connection, attempt.claim, undone)
        connection.rollback()
    for step in undoable:
        name = _own_name(step, undone)
        # An undo may call steps, too.
        attempt.undoes = {name: step}
        try:
            _undo(attempt, name, step)
        except INTERRUPTIONS:
            raise
        except Exception as error:
            _report(attempt, step, error)
            raise
    # Undos of earlier attempts must not be logged as unused.
    attempt.steps = Steps({})


def _own_name(step: Undoable, undone: int) -> str:
    """Return a name that no step of another member has."""
    return step.name if step.job_id == undone else fitting(f"{step.job_id} {step.name}")


def _undo(attempt: Attempt, name: str, step: Undoable) -> None:
    with bare(attempt.database_url) as connection:
        result, undo = steps.read_undo(connection, step)
        connection.rollback()
    how = json.loads(undo)
    in_loop = how["as"].startswith("async_")
    function = (_without_result_in_loop if in_loop else _without_result)(_function(how["call"]))
    run = partial(_kind(how), name, function, json.loads(result))
    if not in_loop:
        run()
        return
    attempt.interruption.coroutine = coroutine = run()
    django_connections.renew_beside_the_loop()
    asyncio.run(coroutine)


def _without_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function without its result, which may not be JSON; a step refuses a coroutine."""

    def call(*args: Any) -> Any:
        value = function(*args)
        return value if inspect.iscoroutine(value) else None

    return call


def _without_result_in_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any) -> None:
        value = function(*args)
        if inspect.isawaitable(value):
            await value

    return call


def _kind(how: dict[str, str]) -> Callable[..., Any]:
    """Return the step function that ran the step."""
    if "using" in how:
        # An extension, which the core does not import.
        step = importlib.import_module("drain.contrib.django.job_transaction").step_transaction
        return partial(step, using=how["using"])
    module = async_steps if how["as"].startswith("async_") else plain_steps
    return getattr(module, how["as"])  # type: ignore[no-any-return]


def _function(path: str) -> Callable[..., Any]:
    try:
        function = imported(path)
    except ImportError as error:
        raise NotRegisteredError(f"{path} cannot be imported: {error}; deploy it again") from error
    if not callable(function):
        raise NotRegisteredError(f"function {path} no longer exists: deploy it again")
    return function  # type: ignore[no-any-return]


def _report(attempt: Attempt, step: Undoable, error: Exception) -> None:
    reason = str(error).partition("\n")[0]
    log.warning(
        "job %d could not undo step %r of job %d: %s",
        *(
            attempt.claim.id,
            visible(step.name),
            step.job_id,
            visible(f"{type(error).__qualname__}: {reason}"),
        ),
        extra={"event": "undo_failed", "job_id": attempt.claim.id, "undone_job_id": step.job_id},
    )
