"""`drain work`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import click
import psycopg

from drain import log
from drain.commands.database import database, hint_at_unknown
from drain.commands.health_options import health_options
from drain.commands.rq_options import rq_options
from drain.config import Settings
from drain.errors import ConfigError, UnavailableError
from drain.formatting import visible
from drain.jobs.options import DEFAULT_QUEUE
from drain.read import queries
from drain.service.hysteresis import HealthOptions
from drain.tables import crons
from drain.terminal.commandline import FiniteRange, settings_options, trace_option, verbose_option
from drain.wire import Producer

_log = logging.getLogger(__name__)


@click.command(short_help="Run jobs.")
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@settings_options("database_url", "redis_url", "jobs", "namespace", "only_tracked_queues")
@click.option(
    "--rotate",
    "rotates",
    is_flag=True,
    help="Serve the named QUEUEs in turn instead of in order.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Number of worker processes.",
)
@click.option(
    "--prefetch",
    type=click.IntRange(1, 1000),
    help="Jobs a process claims at a time; by default, those that should start within 0.1 s.",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    help="Synchronous jobs a process runs at once. In threads, a timeout cannot interrupt a blocking call.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Async jobs a process runs at once.",
)
@click.option(
    "--grace-seconds",
    type=FiniteRange(0, 86_400),
    default=30.0,
    show_default=True,
    help="Time for running jobs to finish after SIGTERM.",
)
@click.option("--max-jobs", type=click.IntRange(1), help="Replace a process after this many jobs.")
@click.option(
    "--max-memory",
    type=click.IntRange(1),
    metavar="MB",
    help="Replace a process that uses more memory than this.",
)
@click.option("--burst", is_flag=True, help="Exit when the queues are empty.")
@click.option("--max-idle-time", type=FiniteRange(0), help="Exit after this many seconds without a job.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    default=0,
    envvar="DRAIN_WORK_METRICS_PORT",
    show_envvar=True,
    help="Port of /metrics, /healthz and /readyz; none by default.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    envvar="DRAIN_METRICS_HOST",
    show_envvar=True,
    help="Address to listen on.",
)
@trace_option
@health_options
@rq_options
@verbose_option
def work(
    settings: Settings,
    queues: Sequence[str],
    *,
    rotates: bool,
    processes: int,
    prefetch: int | None,
    threads: int,
    concurrency: int,
    grace_seconds: float,
    max_jobs: int | None,
    max_memory: int | None,
    burst: bool,
    max_idle_time: float | None,
    metrics_port: int,
    metrics_host: str,
    trace: bool,
    health: HealthOptions,
    rq: dict[str, Any],
    verbose: bool,
) -> None:
    """Run jobs of these QUEUEs, or of all queues of the registered jobs.

    Named QUEUEs are served in strict order: each only while those before it are empty. With --rotate, or without names,
    they take turns.

    On SIGTERM or SIGINT, running jobs have --grace-seconds to finish; all others return to their queues. A second
    signal interrupts them at once. A stock `rq worker` with DRAIN_DATABASE_URL and DRAIN_JOBS runs the same jobs, one
    at a time.

    \b
    drain work mail default --processes 4
    drain work reports --prefetch 1 --max-memory 500
    """  # noqa: D301
    # Importing RQ takes a quarter of a second.
    from drain.jobs import registry, schedules
    from drain.workers.command import work as work_on
    from drain.workers.options import Plain, PlainOptions, WorkOptions

    for queue in queues:
        # Not QUEUE_NAME: RQ allows any queue name for plain jobs.
        if not queue or not queue.isprintable():
            raise click.UsageError(f"{queue!r} is not a queue name: it is empty or unprintable")
    # Like RQ's command.
    sys.path.insert(0, str(Path.cwd()))
    log.configure("INFO")
    logging.getLogger("rq.worker").setLevel("INFO" if verbose else "WARNING")
    logging.getLogger("drain.workers").setLevel("DEBUG" if verbose else "INFO")
    registry.load(settings.jobs)
    chosen = queues or _queues_of(registry.queues())

    def hint() -> None:
        with database(settings) as connection:
            known = registry.queues() | queries.queues(connection) | {DEFAULT_QUEUE}
        if unknown := [queue for queue in chosen if queue not in known]:
            hint_at_unknown(unknown, known | _known_to_rq(settings))
        if not queues:
            names = ", ".join(chosen)
            _log.info("working on the queues of the registered jobs: %s", names, extra={"event": "queues"})
        _declare(settings, schedules.declared())

    work_on(
        settings,
        WorkOptions(
            queues=chosen,
            rotates=rotates or not queues,
            processes=processes,
            prefetch=prefetch,
            threads=threads,
            concurrency=concurrency,
            grace_seconds=grace_seconds,
            max_jobs=max_jobs,
            max_memory_mb=max_memory,
            burst=burst,
            metrics_host=metrics_host,
            metrics_port=metrics_port,
            max_idle_seconds=max_idle_time,
            trace=trace,
            health=health,
            plain=PlainOptions(**rq | {"mode": Plain(rq["mode"])}),
        ),
        hint,
    )


def _queues_of(registered: set[str]) -> list[str]:
    if not registered:
        raise ConfigError(
            "no queues given, and the modules in DRAIN_JOBS register no jobs: name a queue, such as "
            "`drain work default`, or a module with @job functions"
        )
    return sorted(registered)


def _declare(settings: Settings, schedules: Sequence[Mapping[str, Any]]) -> None:
    """Write the declared schedules; without the right, only warn."""
    if not schedules:
        return
    try:
        with database(settings) as connection:
            changed = crons.declare(connection, schedules)
    except (psycopg.Error, UnavailableError) as error:
        reason = visible(str(error).partition("\n")[0])
        _log.warning(
            "cannot write the schedules of the registered jobs: %s",
            reason,
            extra={"event": "schedules_not_written"},
        )
        return
    if changed:
        names = visible(", ".join(sorted(changed)))
        _log.info("schedules written: %s", names, extra={"event": "schedules_written"})


def _known_to_rq(settings: Settings) -> set[str]:
    with (
        closing(Producer(settings.required_redis_url, settings.namespace)) as redis,
        suppress(UnavailableError),
    ):
        return redis.queues()
    return set()
