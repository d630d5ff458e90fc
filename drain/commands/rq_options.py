"""Options that `drain work` shares with RQ's worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_OPTIONS = (
    click.option(
        "--plain",
        "mode",
        type=click.Choice(["fork", "inline", "refuse"]),
        show_default="fork",
        help="Run plain RQ jobs in a forked process each, inline (faster), or not at all.",
    ),
    click.option("--only-tracked", is_flag=True, help="Same as --plain refuse: never unpickle."),
    click.option("--serializer", metavar="PATH", help="RQ serializer: json, pickle or a dotted path."),
    click.option("--job-class", metavar="PATH", help="RQ job class."),
    click.option(
        "--exception-handler",
        "exception_handlers",
        metavar="PATH",
        multiple=True,
        help="RQ exception handler for plain jobs; repeatable.",
    ),
    click.option(
        "--disable-default-exception-handler",
        is_flag=True,
        help="Disable RQ's default exception handler.",
    ),
    click.option("--name", help="RQ worker name; numbered NAME.1, NAME.2 for several processes."),
    click.option("--with-scheduler", is_flag=True, help="Enqueue plain RQ jobs scheduled with RQ when due."),
    click.option(
        "--worker-ttl",
        type=click.IntRange(16),
        help="Seconds without a heartbeat until RQ considers a worker dead.",
    ),
    click.option("--results-ttl", type=int, help="Seconds RQ keeps results."),
    click.option("--maintenance-interval", type=click.IntRange(1), help="Seconds between RQ's cleanups."),
    click.option(
        "--job-monitoring-interval",
        type=click.IntRange(1),
        help="Seconds between heartbeats of a plain job.",
    ),
)
_NAMES = (
    *("mode", "only_tracked", "serializer", "job_class", "exception_handlers"),
    *("disable_default_exception_handler", "name", "with_scheduler"),
    *("worker_ttl", "results_ttl", "maintenance_interval", "job_monitoring_interval"),
)


def rq_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options, as one dict `rq`."""

    def with_options(**given: Any) -> Any:
        rq = {name: given.pop(name) for name in _NAMES}
        only_tracked = rq.pop("only_tracked")
        if only_tracked and rq["mode"] not in {None, "refuse"}:
            raise click.UsageError(f"either --only-tracked or --plain {rq['mode']}, not both")
        rq["mode"] = "refuse" if only_tracked else rq["mode"] or "fork"
        return command(rq=rq, **given)

    with_options.__name__, with_options.__doc__ = command.__name__, command.__doc__
    with_options.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(_OPTIONS):
        with_options = option(with_options)
    return with_options
