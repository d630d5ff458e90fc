"""`drain emit`."""

from __future__ import annotations

import json

import click

from drain.commands.database import database
from drain.config import Settings
from drain.jobs import events
from drain.terminal.commandline import settings_options


@click.command(short_help="Emit an event for waiting jobs.")
@settings_options("database_url")
@click.argument("event")
@click.argument("payload", default="null")
def emit(settings: Settings, event: str, payload: str) -> None:
    """Emit an event with a JSON payload, for jobs that wait for it now or later.

    It reaches jobs staged by this role or by roles that it is a member of. The tables' owner reaches all jobs.

    \b
    drain emit approval:42 '{"by": "ada"}'
    """  # noqa: D301
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(f"the payload is not JSON: {error}") from None
    with database(settings) as connection:
        number = events.emit(connection, event, value)
    click.echo(f"emitted event {number}")
