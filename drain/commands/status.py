"""`drain status`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping

import click

from drain import wire
from drain.commands.database import database
from drain.commands.watching import watch_status
from drain.config import Settings
from drain.database.postgres import Connection
from drain.errors import UnavailableError
from drain.read import capacity, queries, system
from drain.read.system import Section, System
from drain.terminal import status_report
from drain.terminal.commandline import FiniteRange, as_json_option, settings_options

# As for `drain audit`.
_WITHOUT_REDIS = 3
# Key in click's `meta` for readers of `drain.options` entry points.
SECTIONS = "drain.status.sections"
Readers = Mapping[str, Callable[[Connection], Section]]
_NO_READERS: Readers = {}


@click.command(short_help="Show jobs by state, the leader and workers.")
@settings_options("database_url", "redis_url")
@click.option(
    "--watch",
    "watch_seconds",
    is_flag=False,
    flag_value=2.0,
    type=FiniteRange(0.1, 3600),
    metavar="[SECONDS]",
    help="Repeat every SECONDS, 2 by default, until Ctrl-C.",
)
@as_json_option
def status(
    settings: Settings,
    *,
    watch_seconds: float | None,
    as_json: bool,
) -> None:
    """Show jobs by state, the leader, and the workers of each queue.

    Staged jobs wait in PostgreSQL. In flight, a job is queued (waits for a worker), running, retrying (waits for its
    next attempt), or parked (waits for an event, or sleeps). It ends up completed or dead. Workers are shown as
    free/all, or "none" if jobs wait but no worker is alive. A queue is stalled if its jobs have waited for a minute
    while none finished. Due jobs held by a pause, a limit, a rate limit or a full list are counted below the table.
    Exit code 3: Redis is unavailable.

    \b
    drain status
    drain status --watch
    drain status --json | jq '.queues | map_values(select(.workers == 0))'
    """  # noqa: D301
    readers: Readers = click.get_current_context().meta.get(SECTIONS, {})

    def look() -> tuple[System, str | None]:
        return status_of_both_stores(settings, readers)

    if watch_seconds is not None:
        watch_status(look, watch_seconds, as_json=as_json)
        return
    result, problem = look()
    if problem:
        click.echo(problem, err=True)
    if as_json:
        click.echo(json.dumps(result.as_json()))
    else:
        status_report.show_status(result)
    if problem:
        sys.exit(_WITHOUT_REDIS)


def status_of_both_stores(settings: Settings, readers: Readers = _NO_READERS) -> tuple[System, str | None]:
    """Read the status, and why Redis is unknown."""
    with database(settings) as connection:
        result = system.read(queries.with_lenient_values(connection), with_finished=True)
        result.queues = system.with_others(result.queues)
        result.sections = {name: read(connection) for name, read in readers.items()}
    if not settings.redis_url:
        return result, None
    redis = wire.Producer(settings.redis_url, settings.namespace)
    try:
        names = [queue for queue in result.queues if queue != system.OTHERS]
        capacity.add_workers(result.queues, redis.crews(names))
        depths = redis.lengths(names)
    except UnavailableError as error:
        return result, f"{error}; workers and ids in Redis are unknown"
    finally:
        redis.close()
    for queue, (depth, _) in depths.items():
        result.queues[queue].redis_depth = depth
    return result, None
