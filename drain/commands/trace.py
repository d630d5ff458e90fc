"""`drain trace`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from drain import wire
from drain.commands.database import database
from drain.config import Settings
from drain.formatting import duration, visible
from drain.read import queries
from drain.read.explain.timeline import hops_of
from drain.terminal.commandline import JOB_ID, as_json_option, settings_options

# Shorter steps get no mark.
_MARKED_SECONDS = 0.001
_HINT = (
    "only the tables' times are known: `drain run --trace` and `drain work --trace` record those of the processes "
    "for an hour"
)


@click.command("trace", short_help="Show a job's timeline and where the time went.")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@settings_options("database_url", "redis_url", "namespace")
@as_json_option
def trace(settings: Settings, *, job_id: int, as_json: bool) -> None:
    """Show a job's timeline and how long each step took.

    `drain run --trace` and `drain work --trace` (DRAIN_TRACE=1) record the steps outside PostgreSQL (pushed,
    popped, begun, ended) for an hour. Their times come from the processes' clocks, the others from the database's.

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


def show_trace(job: dict[str, Any], hops: Sequence[dict[str, Any]], *, has_noted: bool) -> None:
    """Print a job's hops, or a hint without any."""
    console = Console(highlight=False, markup=False)
    console.print(f"job {job['id']}, {visible(job['job_name'])}, {job['state']}", soft_wrap=True)
    longest = max((hop["step_seconds"] for hop in hops), default=0.0)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("hop", no_wrap=True)
    table.add_column("at", no_wrap=True)
    table.add_column("after", justify="right", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    for hop in hops:
        is_marked = hop["step_seconds"] == longest >= _MARKED_SECONDS
        at = hop["at"].isoformat(sep=" ", timespec="milliseconds")
        step = Text(_length(hop["step_seconds"]), style="bold yellow" if is_marked else "")
        name = f"{hop['hop']} (attempt {hop['attempt']})" if "attempt" in hop else hop["hop"]
        name = f"step {visible(hop['step'])}" if "step" in hop else name
        table.add_row(name, at, _length(hop["seconds"]), step)
    console.print(table)
    if not has_noted:
        click.echo(_HINT, err=True)


def _length(seconds: float) -> str:
    return duration(seconds) if seconds >= 1 else f"{1000 * seconds:.1f} ms"
