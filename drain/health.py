"""Hooks for failures and recoveries of a process, each called once.

    @drain.on_unhealthy
    def page(change: drain.HealthChange) -> None:
        pager.open(f"{change.process}: {change.what}", change.reason)

`drain work` imports hooks with the modules of DRAIN_JOBS, `drain run` with those of DRAIN_HOOKS.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

Hook = Callable[["HealthChange"], Any]
F = TypeVar("F", bound=Hook)

# New tuples on each change: any thread may read them.
unhealthy_hooks: tuple[Hook, ...] = ()
recovery_hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthChange:
    """Change of a process's health, as passed to hooks and commands.

    Attributes:
        what: "postgres", "redis", "stores" (no worker process reaches both), "loop", "workers", or "queue:NAME".
        reason: One line for operators.
        since: Start of the failure, in UTC.
        process: "enqueuer" or "workers".
        recovered_at: Time of recovery, in UTC; None while the failure lasts.
    """

    what: str
    reason: str
    since: datetime
    process: str
    recovered_at: datetime | None = None

    @property
    def is_recovery(self) -> bool:
        """True for a recovery."""
        return self.recovered_at is not None

    def as_texts(self) -> dict[str, str]:
        """Return the fields as texts; None becomes ""."""
        texts = {}
        for name, value in asdict(self).items():
            texts[name] = value.isoformat() if isinstance(value, datetime) else str(value or "")
        texts["event"] = "recovery" if self.is_recovery else "unhealthy"
        return texts


def on_unhealthy(hook: F) -> F:
    """Register a function called when a failure outlasts the grace period: `hook(change)`.

    It runs in a thread of `drain run`, or in a process next to `drain work`, for at most 30 s. Exceptions are logged.

    Args:
        hook: A function that takes a `HealthChange`.

    Raises:
        TypeError: Not a plain function.
    """
    global unhealthy_hooks  # noqa: PLW0603
    _check("on_unhealthy", hook)
    if hook not in unhealthy_hooks:
        unhealthy_hooks = (*unhealthy_hooks, hook)
    return hook


def on_recovery(hook: F) -> F:
    """Register a function called on recovery from a reported failure: `hook(change)`.

    Raises:
        TypeError: Not a plain function.
    """
    global recovery_hooks  # noqa: PLW0603
    _check("on_recovery", hook)
    if hook not in recovery_hooks:
        recovery_hooks = (*recovery_hooks, hook)
    return hook


def _check(decorator: str, hook: object) -> None:
    is_async = inspect.iscoroutinefunction(hook) or inspect.isasyncgenfunction(hook)
    if not callable(hook) or is_async or inspect.isgeneratorfunction(hook):
        raise TypeError(
            f"@drain.{decorator} is for a plain function of a HealthChange, not for {hook!r:.100}"
        )
