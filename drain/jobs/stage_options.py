"""Typed options of staging, documented in `drain.stage`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

from drain.errors import StageError
from drain.jobs.dependencies import AfterOption, Identified, OnFailure
from drain.jobs.keys import KeyOption


class ManyOptions(TypedDict, total=False):
    """Options of `drain.stage_many`."""

    queue: str | None
    priority: int | None
    run_at: datetime | None
    run_in: timedelta | float | None
    expires_at: datetime | None
    tag: str | None
    max_attempts: int | None
    timeout_seconds: int | None
    context: Mapping[str, Any] | None
    key: KeyOption | None
    unique_key: KeyOption | None
    keep: Literal["first", "last"] | None
    quiet: timedelta | None
    after: AfterOption | None
    on_failure: OnFailure | None
    flow: int | Identified | None


class StageOptions(ManyOptions, total=False):
    """Options of `drain.stage`."""

    node: str | None
    idempotency_key: str | None
    idempotency_period: timedelta | None


def check_names(function: str, given: Mapping[str, Any]) -> None:
    """Raise TypeError for an unknown option."""
    for name in given:
        if name not in StageOptions.__annotations__:
            raise TypeError(f"{function} got an unexpected option {name!r}; options: {', '.join(names())}")


def names() -> list[str]:
    """Option names."""
    return list(StageOptions.__annotations__)


def refuse_for_many(given: Mapping[str, Any]) -> None:
    """Raise StageError for options of a single job."""
    for name in ("node", "idempotency_key", "idempotency_period"):
        if given.get(name) is not None:
            raise StageError(f"{name} is an option for one job, not for many")
