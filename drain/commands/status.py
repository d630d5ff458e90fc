"""`drain status`: how many jobs are where."""

from __future__ import annotations

import json

import click

from drain import display, inspection, wire
from drain.commandline import as_json_option, settings_options
from drain.commands.database import database
from drain.config import Settings
from drain.errors import UnavailableError


@click.command(short_help="Show how many jobs are where, and who works on them.")
@settings_options("database_url", "redis_url")
@as_json_option
def status(settings: Settings, *, as_json: bool) -> None:
    """Show how many jobs are where, who drains, and how long the oldest one has waited."""
    with database(settings) as connection:
        result = inspection.status(connection)
    _add_depths(settings, result)
    if as_json:
        click.echo(json.dumps(result.as_json()))
        return
    display.show_status(result)


def _add_depths(settings: Settings, result: inspection.Status) -> None:
    """Ask Redis how long its lists are; a Redis that does not answer is no reason to show nothing."""
    if not settings.redis_url:
        return
    redis = wire.Wire(settings.redis_url, settings.namespace)
    try:
        for queue, counts in result.queues.items():
            counts.redis_depth = redis.depth(queue)
    except UnavailableError as error:
        click.echo(f"{error}; redis_depth is unknown", err=True)
    finally:
        redis.close()
