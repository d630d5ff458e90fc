"""`drain explain`: why does a job wait?"""

from __future__ import annotations

import json
from contextlib import closing, nullcontext

import click

from drain import wire
from drain.commands.database import database
from drain.config import Settings
from drain.explain import explain
from drain.terminal.commandline import JOB_ID, as_json_option, settings_options
from drain.terminal.explanation import show_explanation
from drain.terminal.values import json_default


@click.command("explain", short_help="Say why one job waits, since when, and how long still.")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@settings_options("database_url", "redis_url", "namespace")
@as_json_option
def explain_job(settings: Settings, *, job_id: int, as_json: bool) -> None:
    """Say what one job waits for now, since when, and when it will probably start.

    The first of the causes that holds the job is named: its time, no leader, a pause, an earlier job of its key, a
    limit or a rate that is used up, a full list, no worker, and so on. The estimate comes from the jobs that have
    finished in the last minutes. Also for ids that no table has, for jobs that run, and for those that have ended.

    \b
    drain explain 42
    drain explain 42 --json | jq -r .cause
    """  # noqa: D301
    redis = wire.Producer(settings.redis_url, settings.namespace) if settings.redis_url else None
    with closing(redis) if redis else nullcontext(), database(settings) as connection:
        found = explain(connection, redis, job_id)
    if as_json:
        click.echo(json.dumps(found.as_json(), default=json_default))
    else:
        show_explanation(found)
