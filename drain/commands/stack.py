"""`drain stack`: where is a running job now?"""

from __future__ import annotations

import json

import click

from drain.commands.database import database
from drain.config import Settings
from drain.explain.stack import PATIENCE_SECONDS, read_stack, running_claim
from drain.terminal.commandline import DURATION, JOB_ID, as_json_option, settings_options
from drain.terminal.stack import show_stack
from drain.terminal.values import json_default


@click.command("stack", short_help="Show where a running job is now: file, line, function.")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@settings_options("database_url", "redis_url", "namespace")
@click.option(
    "--wait",
    "seconds",
    metavar="TIME",
    type=DURATION,
    default=f"{PATIENCE_SECONDS:g}s",
    show_default=True,
    help="Patience with the answer of the worker process.",
)
@click.option("--all", "whole", is_flag=True, help="Show the worker's calls that lead to the job too.")
@as_json_option
def stack(settings: Settings, *, job_id: int, seconds: float, whole: bool, as_json: bool) -> None:
    """Ask the worker process that runs a job for the job's stack: its calls, the innermost last.

    The job goes on undisturbed. No value of an argument and no source text is shown. A process of `drain work` answers
    for jobs in its main thread, in threads, in the event loop, and for isolated ones; a stock `rq worker` does not, nor
    does a job that holds the interpreter in C code. Exit code 1, and one line that says why, if there is no stack.

    \b
    drain stack 42
    drain stack 42 --all
    drain stack 42 --json | jq -r '.calls[-1].file'
    """  # noqa: D301
    redis_url = settings.required_redis_url
    with database(settings) as connection:
        claim = running_claim(connection, job_id)
    found = read_stack(redis_url, settings.namespace, claim, seconds=min(seconds, 60.0))
    if as_json:
        click.echo(json.dumps(found.as_json(), default=json_default))
    else:
        show_stack(found, whole=whole)
