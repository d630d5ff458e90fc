"""Waits: the attempt ends, and another starts once the leader has ended the wait.

The leader records the outcome as a step, where each later attempt finds it.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from drain.errors import StageError
from drain.jobs.values import as_event
from drain.tables.steps import Step
from drain.workers.context import async_steps, steps
from drain.workers.context.current import Attempt, current_attempt
from drain.workers.errors import EventTimeoutError, Parked, StepError, checked as checked_time


def sleep(
    when: float | timedelta | datetime | None = None, /, *, name: str | None = None, **units: float
) -> None:
    """End the attempt, and run the job again after a time: `sleep(days=3)`.

    In later attempts, it returns at once. A sleeping job holds no worker, connection or lease. The time counts from the
    first attempt that reaches this call, by the database's clock. Sleeps are steps.

    Args:
        when: Seconds or a timedelta, or a time with time zone; up to a year.
        name: Name of the step; by default "sleep 1", "sleep 2" and so on, in the order of the calls.
        units: Arguments of a timedelta instead of `when`: days, hours, minutes, seconds.

    Raises:
        ValueError: Invalid time.
        StepError, NoCurrentJobError, TransactionError: As `drain.step`; StepError also within a step.
    """
    attempt = current_attempt()
    wait = _sleep(attempt, when, name, units)
    if steps.find(attempt, wait.name) is None:
        raise _begun(attempt, wait)


async def async_sleep(
    when: float | timedelta | datetime | None = None, /, *, name: str | None = None, **units: float
) -> None:
    """Sleep in an `async def` job; see `sleep`."""
    attempt = current_attempt()
    wait = _sleep(attempt, when, name, units)
    if await async_steps.find(attempt, wait.name) is None:
        raise _begun(attempt, wait)


def wait_for(
    event: str, timeout: float | timedelta | datetime | None = None, *, name: str | None = None
) -> Any:
    """End the attempt, and run the job again once `drain.emit` has committed an event; return its payload.

    The first event wins, even if it was emitted up to 30 days before the wait. Later attempts get the same payload at
    once. A waiting job holds no worker, connection or lease. Waits are steps.

    Args:
        event: Up to 255 characters, without control characters, such as "approval:42".
        timeout: Seconds or a timedelta from the first attempt that reaches this call, or a time with time zone; up to a
            year. None waits forever.
        name: Name of the step; by default, the event.

    Raises:
        EventTimeoutError: No event came in time. Kills the job unless caught.
        ValueError: Invalid timeout.
        StepError, NoCurrentJobError, TransactionError: As `drain.step`; StepError also within a step, or for an invalid
            event name.
    """
    attempt = current_attempt()
    wait = _wait(attempt, event, timeout, name)
    return _outcome(attempt, wait, steps.find(attempt, wait.name))


async def async_wait_for(
    event: str, timeout: float | timedelta | datetime | None = None, *, name: str | None = None
) -> Any:
    """Wait in an `async def` job; see `wait_for`."""
    attempt = current_attempt()
    wait = _wait(attempt, event, timeout, name)
    return _outcome(attempt, wait, await async_steps.find(attempt, wait.name))


def _sleep(
    attempt: Attempt, when: float | timedelta | datetime | None, name: str | None, units: dict[str, float]
) -> Parked:
    if (when is None) is not bool(units):
        raise ValueError("sleep: give a time, such as sleep(days=3) or sleep(60)")
    try:
        until = checked_time(timedelta(**units) if when is None else when, "sleep")
    except (TypeError, OverflowError) as error:
        raise ValueError(f"sleep: {error}") from None
    if name is None:
        begun = steps.steps_of(attempt, "sleep")
        begun.sleeps += 1
        name = f"sleep {begun.sleeps}"
    return Parked(_checked(attempt, name), None, until)


def _wait(
    attempt: Attempt, event: str, timeout: float | timedelta | datetime | None, name: str | None
) -> Parked:
    try:
        event = as_event(event)
    except StageError as error:
        raise StepError(str(error)) from None
    until = None if timeout is None else checked_time(timeout, "wait_for")
    return Parked(_checked(attempt, event if name is None else name), event, until)


def _checked(attempt: Attempt, name: str) -> str:
    name = steps.checked(name)
    if running := steps.steps_of(attempt, name).running:
        raise StepError(f"wait {name!r} is within step {min(running)!r}: wait before or after the step")
    return name


def _begun(attempt: Attempt, wait: Parked) -> Parked:
    begun = steps.steps_of(attempt, wait.name)
    begun.wait = begun.wait or wait
    return wait


def _outcome(attempt: Attempt, wait: Parked, kept: Step | None) -> Any:
    if kept is None:
        raise _begun(attempt, wait)
    outcome = json.loads(kept.result)
    if isinstance(outcome, dict) and "event" in outcome:
        return outcome["event"]
    if outcome == {"timeout": True}:
        raise EventTimeoutError(f"event {wait.event!r} did not come in time")
    raise StepError(f"step {wait.name!r} wasn't a wait in an earlier attempt: give the wait another name")
