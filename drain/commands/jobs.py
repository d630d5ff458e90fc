"""`drain list` and `drain show`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from typing import Any

import click

from drain.commands.database import database, hint_at_unknown
from drain.config import Settings
from drain.errors import UnavailableError
from drain.jobs.progress import fields_of
from drain.read import dependencies, membership, queries
from drain.terminal.commandline import JOB_ID, as_json_option, limit_option, settings_options
from drain.terminal.job_details import show_job
from drain.terminal.job_table import show_jobs
from drain.terminal.values import WORDS_OF_STATES, json_default
from drain.wire import ProgressBoard


@click.command("list", short_help="List jobs by state.")
@click.argument("state", metavar="STATE", type=click.Choice(queries.STATES))
@settings_options("database_url")
@click.option("--queue", help="Only this queue.")
@limit_option
@as_json_option
def list_jobs(settings: Settings, *, state: str, queue: str | None, limit: int, as_json: bool) -> None:
    """List jobs by STATE, latest first: staged, blocked, inflight, finished or dead.

    A blocked job is a staged one that waits for others to finish. A job in flight is queued (in Redis), running,
    retrying (after a failure), deferred (by the job), parked (waits for an event, or sleeps) or stalled (its worker is
    gone; it will be delivered again).
    Terminals of 120 columns also show tags and arguments.

    \b
    drain list inflight --queue mail
    drain list finished --limit 1000 --json | jq '.[].job_name'
    """  # noqa: D301
    with database(settings) as connection:
        jobs = queries.jobs(connection, state, queue=queue, limit=limit)
        if queue and not jobs:
            hint_at_unknown([queue], queries.queues(connection))
        now = queries.now(connection)
    print_jobs(state, jobs, now, as_json=as_json)


@click.command(short_help="Show one job.")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@settings_options("database_url", "redis_url", "namespace")
@as_json_option
def show(settings: Settings, *, job_id: int, as_json: bool) -> None:
    """Show one job, in any state. The progress of a running job needs Redis.

    \b
    drain show 42
    drain show 42 --json | jq .last_error
    drain show 42 --json | jq '.waits_for.jobs[].id'
    """  # noqa: D301
    with database(settings) as connection:
        job = queries.job(connection, job_id)
        job |= dependencies.read(connection, job_id).as_json()
        if place := membership.find(connection, job_id):
            job["flow"] = place._asdict() | {"words": place.words}
        now = queries.now(connection)
    job |= {"state": "blocked"} if queries.is_blocked(job) else {}
    print_job(job | _progress(settings, job), now, as_json=as_json)


def _progress(settings: Settings, job: dict[str, Any]) -> dict[str, Any]:
    if job.get("lease_expires_at") is None or not settings.redis_url:
        return {}
    try:
        with closing(ProgressBoard.at(settings.redis_url, settings.namespace)) as board:
            found = board.read(job["id"])
    except UnavailableError as error:
        click.echo(f"its progress is unknown: {error}", err=True)
        return {}
    fields = fields_of(found, job["fencing_token"]) if found else None
    return {"progress": fields} if fields else {}


def print_jobs(state: str, jobs: Sequence[dict[str, Any]], now: datetime, *, as_json: bool) -> None:
    """Print jobs of one state, or that none match."""
    if as_json:
        click.echo(json.dumps(jobs, default=json_default))
    elif jobs:
        show_jobs(state, jobs, now)
    else:
        word = WORDS_OF_STATES.get(state, state).replace(" ", "-")
        click.echo(f"no {word} job matches", err=True)


def print_job(job: dict[str, Any], now: datetime, *, as_json: bool) -> None:
    """Print one whole job."""
    if as_json:
        click.echo(json.dumps(job, default=json_default))
    else:
        show_job(job, now)
