"""`drain run`."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import click

from drain import log
from drain.commands.health_options import health_options, queue_grace_option
from drain.config import Settings
from drain.errors import ConfigError, PortTakenError
from drain.formatting import count
from drain.service.hysteresis import HealthOptions
from drain.terminal.commandline import Port, queue_file_option, settings_options, trace_option, verbose_option

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

    from drain.enqueuer.daemon import Daemon

_log = logging.getLogger(__name__)


@click.command(short_help="Drain committed jobs into Redis.")
@settings_options(
    "database_url",
    "redis_url",
    "namespace",
    "forward_queues",
    "thin_queues",
    "whole_queues",
    "batch_size",
    "poll_seconds",
    "depth",
)
@click.option("--once", is_flag=True, help="Drain the jobs due now, then exit.")
@click.option(
    "--take-over",
    type=click.UUID,
    metavar="INSTALLATION",
    help="Take over the Redis queues of a database that no longer exists.",
)
@click.option(
    "--keep-days",
    type=click.IntRange(0, 36_500),
    default=30,
    show_default=True,
    envvar="DRAIN_KEEP_DAYS",
    show_envvar=True,
    help="Full days (UTC) of completed jobs to keep, not counting today; 0 keeps all.",
)
@click.option(
    "--metrics-port",
    type=Port("DRAIN_METRICS_PORT"),
    default=9186,
    show_default=True,
    envvar="DRAIN_METRICS_PORT",
    show_envvar=True,
    help="Port of /metrics, /healthz and /readyz; 0 for none.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    envvar="DRAIN_METRICS_HOST",
    show_envvar=True,
    help="Address to listen on.",
)
@click.option(
    "--hooks",
    default="",
    envvar="DRAIN_HOOKS",
    show_envvar=True,
    metavar="MODULES",
    help="Modules with @drain.on_unhealthy and @drain.on_recovery hooks, comma-separated.",
)
@queue_file_option
@trace_option
@health_options
@queue_grace_option
@verbose_option
def run(
    settings: Settings,
    *,
    once: bool,
    take_over: UUID | None,
    keep_days: int,
    metrics_port: int,
    metrics_host: str,
    hooks: str,
    trace: bool,
    health: HealthOptions,
    verbose: bool,
    queue_file: Path | None,
) -> None:
    """Drain committed jobs into Redis. Start two or more: one leads, the others stand by.

    On SIGTERM or SIGINT, it finishes the current batch and exits with code 0.

    \b
    drain run --metrics-port 9186
    drain run --keep-days 0               keep completed jobs forever
    drain run --once                      from cron, without a daemon
    """  # noqa: D301
    # Speeds up the other commands.
    from drain.enqueuer.daemon import Daemon

    log.configure("DEBUG" if verbose else "INFO")
    _load_hooks(hooks)
    daemon = Daemon(
        settings,
        take_over=str(take_over) if take_over else None,
        keep_days=keep_days,
        trace=trace,
        health_options=health,
        queue_file=queue_file,
    )
    if once:
        click.echo(f"{count(daemon.run_once(), 'job')} went to Redis")
        if daemon.refused:
            click.echo(f"{count(daemon.refused, 'job')} refused by Redis; see the line above", err=True)
        return
    server = _serve(metrics_host, metrics_port, daemon) if metrics_port else None
    with daemon.signals():
        daemon.run()
    if server is not None:
        server.shutdown()


def _serve(host: str, port: int, daemon: Daemon) -> ThreadingHTTPServer | None:
    from drain.service import http

    try:
        return http.serve(host, port, daemon.answers())
    except PortTakenError as error:
        _log.warning("draining without the HTTP port: %s", error, extra={"event": "port_taken"})
        return None


def _load_hooks(modules: str) -> None:
    names = [name.strip() for name in modules.split(",") if name.strip()]
    if names:
        # Modules may be in the current directory.
        sys.path.insert(0, str(Path.cwd()))
    for name in names:
        try:
            importlib.import_module(name)
        # Importing a module may raise anything, even SystemExit.
        except (Exception, SystemExit) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"cannot import the module {name!r} of DRAIN_HOOKS: {type(error).__name__}: {reason}; "
                "check DRAIN_HOOKS and PYTHONPATH"
            ) from error
