"""`drain status`: how many jobs are where, and who works on them."""

from __future__ import annotations

import json

import click

from drain import wire
from drain.commands.database import database
from drain.commands.watching import watch_status
from drain.config import Settings
from drain.errors import UnavailableError
from drain.tables import counts
from drain.tables.counts import Status
from drain.terminal import status_report
from drain.terminal.commandline import FiniteRange, as_json_option, settings_options


@click.command(short_help="Show how many jobs are where, and who works on them.")
@settings_options("database_url", "redis_url")
@click.option(
    "--watch",
    "watch_seconds",
    is_flag=False,
    flag_value=2.0,
    type=FiniteRange(0.1, 3600),
    metavar="[SECONDS]",
    help="Show it again and again, every 2 s by default, until Ctrl-C (exit code 0).",
)
@as_json_option
def status(settings: Settings, *, watch_seconds: float | None, as_json: bool) -> None:
    """Show how many jobs are where, who drains, and who works on each queue.

    queued: waits for a worker; running: a worker has claimed it; retrying: waits for the time of its next attempt.
    A queue with jobs and no worker is marked "none". Without Redis, workers are unknown ("?"; null in JSON).

    \b
    drain status
    drain status --watch
    drain status --json | jq '.queues | map_values(select(.workers == 0))'
    """  # noqa: D301

    def look() -> tuple[Status, str | None]:
        return look_at_both(settings)

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


def look_at_both(settings: Settings) -> tuple[Status, str | None]:
    """Status of the tables and of Redis, and the line that says why the latter is unknown; None if it is known."""
    with database(settings) as connection:
        result = counts.status(connection)
    if not settings.redis_url:
        return result, None
    redis = wire.Producer(settings.redis_url, settings.namespace)
    try:
        workers = redis.workers(list(result.queues))
        depths = {queue: redis.depth(queue) for queue in result.queues}
    except UnavailableError as error:
        return result, f"{error}; workers and ids in Redis are unknown"
    finally:
        redis.close()
    for queue, of_queue in result.queues.items():
        of_queue.workers, of_queue.redis_depth = workers[queue], depths[queue]
    return result, None
