"""Health options of `drain run` and `drain work`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from drain.service.hysteresis import HealthOptions
from drain.terminal.commandline import FiniteRange, wrapped

_DEFAULTS = HealthOptions()
_LONGEST_SECONDS = 86_400
_OPTIONS = (
    click.option(
        "--health-grace",
        type=FiniteRange(0, _LONGEST_SECONDS),
        default=_DEFAULTS.grace_seconds,
        show_default=True,
        envvar="DRAIN_HEALTH_GRACE",
        show_envvar=True,
        metavar="SECONDS",
        help="Time until a failing store is reported.",
    ),
    click.option(
        "--health-recovery",
        type=FiniteRange(0, _LONGEST_SECONDS),
        default=_DEFAULTS.recovery_seconds,
        show_default=True,
        envvar="DRAIN_HEALTH_RECOVERY",
        show_envvar=True,
        metavar="SECONDS",
        help="Time without failures until recovery is reported.",
    ),
    click.option(
        "--on-unhealthy",
        default="",
        envvar="DRAIN_ON_UNHEALTHY",
        show_envvar=True,
        metavar="COMMAND",
        help="Shell command to run when a failure is reported.",
    ),
    click.option(
        "--on-recovery",
        default="",
        envvar="DRAIN_ON_RECOVERY",
        show_envvar=True,
        metavar="COMMAND",
        help="Shell command to run when a recovery is reported.",
    ),
)
# Only the enqueuer judges queues.
queue_grace_option = click.option(
    "--health-queue-grace",
    type=FiniteRange(0, 30 * _LONGEST_SECONDS),
    default=_DEFAULTS.queue_grace_seconds,
    show_default=True,
    envvar="DRAIN_HEALTH_QUEUE_GRACE",
    show_envvar=True,
    metavar="SECONDS",
    help="Time until a failing queue is reported.",
)
_FIELDS = {
    "health_grace": "grace_seconds",
    "health_recovery": "recovery_seconds",
    "health_queue_grace": "queue_grace_seconds",
    "on_unhealthy": "on_unhealthy",
    "on_recovery": "on_recovery",
}


def health_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options, as one `HealthOptions`."""

    def with_options(**given: Any) -> Any:
        found = {field: given.pop(name) for name, field in _FIELDS.items() if name in given}
        return command(health=HealthOptions(**found), **given)

    return wrapped(command, with_options, reversed(_OPTIONS))
