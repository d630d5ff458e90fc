"""`drain work`: the workers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from drain import inspection, log
from drain.commandline import FiniteRange, settings_options, verbose_option
from drain.commands.database import database, hint_at_unknown
from drain.commands.rq_options import rq_options
from drain.config import Settings


@click.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@settings_options("database_url", "redis_url", "jobs", "namespace", "only_tracked_queues")
@click.option(
    "--processes", type=click.IntRange(1, 1000), default=1, show_default=True, help="Work with so many."
)
@click.option(
    "--prefetch",
    type=click.IntRange(1, 1000),
    help="How many jobs a process takes at a time; by default as many as it is about to run.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="How many async jobs a process runs at once.",
)
@click.option(
    "--grace-seconds",
    type=FiniteRange(0, 86_400),
    default=30.0,
    show_default=True,
    help="How long what runs may take to end when the worker is told to stop.",
)
@click.option("--max-jobs", type=click.IntRange(1), help="Replace a process after so many jobs.")
@click.option("--max-memory", type=click.IntRange(1), metavar="MB", help="Replace a process that takes more.")
@click.option("--burst", is_flag=True, help="End when the queues are empty.")
@click.option("--max-idle-time", type=FiniteRange(0), help="End after so many seconds without a job.")
@rq_options
@verbose_option
def work(
    settings: Settings,
    queues: Sequence[str],
    *,
    processes: int,
    prefetch: int | None,
    concurrency: int,
    grace_seconds: float,
    max_jobs: int | None,
    max_memory: int | None,
    burst: bool,
    max_idle_time: float | None,
    rq: dict[str, Any],
    verbose: bool,
) -> None:
    """Run jobs of these queues, the first named first; of "default" if none is named.

    SIGTERM and SIGINT let what runs end within --grace-seconds, and give the rest back; a second one ends it.
    An unmodified `rq worker` with DRAIN_DATABASE_URL and DRAIN_JOBS set does the same work, one job at a time.

    \b
    drain work mail default --processes 4
    drain work reports --prefetch 1 --max-memory 500
    """  # noqa: D301
    # Imported here: RQ takes a quarter of a second to import.
    from workers import registry
    from workers.options import Plain, PlainOptions, WorkOptions
    from workers.work import work as work_on

    for queue in queues:
        # RQ takes any text; a tracked job's queue has a stricter name.
        if not queue or not _is_text(queue):
            raise click.UsageError(f"{queue!r} is no name of a queue: it is empty, or no UTF-8")
    # As RQ's own command does: modules beside the one who calls are found.
    sys.path.insert(0, str(Path.cwd()))
    log.configure("INFO")
    logging.getLogger("rq.worker").setLevel("INFO" if verbose else "WARNING")
    logging.getLogger("workers").setLevel("DEBUG" if verbose else "INFO")
    registry.load(settings.jobs)
    with database(settings) as connection:
        hint_at_unknown(queues, registry.queues() | inspection.queues(connection) | {"default"})
    work_on(
        settings,
        WorkOptions(
            queues=queues or ["default"],
            processes=processes,
            prefetch=prefetch,
            concurrency=concurrency,
            grace_seconds=grace_seconds,
            max_jobs=max_jobs,
            max_memory_mb=max_memory,
            burst=burst,
            max_idle_seconds=max_idle_time,
            plain=PlainOptions(**rq | {"mode": Plain(rq["mode"])}),
        ),
    )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
