"""`drain trace`: when did one job pass which process?"""

from __future__ import annotations

import json
from contextlib import closing
from datetime import datetime

import click

from drain import wire
from drain.commands.database import database
from drain.config import Settings
from drain.explain.hops import hops_of
from drain.tables import queries
from drain.terminal.commandline import JOB_ID, as_json_option, settings_options
from drain.terminal.trace_table import show_trace


@click.command("trace", short_help="Show when one job passed which process, and what took long.")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@settings_options("database_url", "redis_url", "namespace")
@as_json_option
def trace(settings: Settings, *, job_id: int, as_json: bool) -> None:
    """Show the times at which one job passed its tables and processes, and how long each step took.

    The tables know some of the times. `drain run --trace` and `drain work --trace` (DRAIN_TRACE=1) note the others in
    Redis, for an hour: pushed, popped, begun, ended. The times of the tables are those of the database's clock, the
    others are those of the processes' machines.

    \b
    drain trace 42
    drain trace 42 --json | jq '.hops[-1].at'
    """  # noqa: D301
    with database(settings) as connection:
        job = queries.job(connection, job_id)
    noted: dict[str, datetime] = {}
    if settings.redis_url:
        with closing(wire.Traces(settings.redis_url, settings.namespace)) as traces:
            noted = traces.read(job_id)
    hops = hops_of(job, noted)
    if as_json:
        found = {"id": job_id, "state": job["state"], "noted": bool(noted), "hops": hops}
        click.echo(json.dumps(found, default=lambda at: at.isoformat()))
    else:
        show_trace(job, hops, has_noted=bool(noted))
