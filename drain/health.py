"""Hooks about the health of a process: called once when something has failed for too long, and once when it is back.

    @drain.on_unhealthy
    def page(change: drain.HealthChange) -> None:
        pager.open(f"{change.process}: {change.what}", change.reason)

They apply to the process that imports the module: `drain work` imports the modules of DRAIN_JOBS, and `drain run` those
of DRAIN_HOOKS.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, TypeVar

Hook = Callable[["HealthChange"], Any]
F = TypeVar("F", bound=Hook)

# Hooks of each kind, the first registered first. Each change makes a new tuple: any thread may read them.
unhealthy_hooks: tuple[Hook, ...] = ()
recovery_hooks: tuple[Hook, ...] = ()


@dataclass(frozen=True, slots=True)
class HealthChange:
    """One change of the health of a process, as hooks and commands get it.

    Attributes:
        what: The part that fails: "postgres", "redis", "stores" (no worker process reaches both), "loop", "workers",
            or "queue:" and the name of a failing queue.
        reason: One line for people.
        since: Time at which the failure began, in UTC.
        process: "enqueuer" or "workers".
        recovered_at: Time since which all is well again, in UTC; None while the failure lasts.
    """

    what: str
    reason: str
    since: datetime
    process: str
    recovered_at: datetime | None = None

    @property
    def is_recovery(self) -> bool:
        """True if all is well again."""
        return self.recovered_at is not None

    def as_texts(self) -> dict[str, str]:
        """Return the fields as texts; times in ISO 8601, and an empty text for none."""
        texts = {}
        for name, value in asdict(self).items():
            texts[name] = value.isoformat() if isinstance(value, datetime) else str(value or "")
        texts["event"] = "recovery" if self.is_recovery else "unhealthy"
        return texts


def on_unhealthy(hook: F) -> F:
    """Register a function that is called once something has failed for longer than the grace: `hook(change)`.

    It is called in a thread of `drain run`, and in a process of its own beside `drain work`; what it raises is logged,
    and nobody waits for it for longer than 30 s.

    Args:
        hook: A function of a `HealthChange`.

    Raises:
        TypeError: It is not such a function.
    """
    global unhealthy_hooks  # noqa: PLW0603
    _check("on_unhealthy", hook)
    if hook not in unhealthy_hooks:
        unhealthy_hooks = (*unhealthy_hooks, hook)
    return hook


def on_recovery(hook: F) -> F:
    """Register a function that is called once what `on_unhealthy` has told of is well again: `hook(change)`.

    Args:
        hook: A function of a `HealthChange`, called as those of `on_unhealthy`.

    Raises:
        TypeError: It is not such a function.
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
