"""`drain explain`."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext

import click
from rich.console import Console

from drain import wire
from drain.commands.database import database
from drain.config import Settings
from drain.formatting import clock, duration, relative, visible
from drain.read.explain import Explanation, explain
from drain.terminal.commandline import JOB_ID, as_json_option, settings_options
from drain.terminal.values import json_default

_TITLE = 8
_WAITS_FOR_NOTHING = ("running", "finished", "dead", "unknown")


@click.command("explain", short_help="Explain why a job waits and when it will start.")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@settings_options("database_url", "redis_url", "namespace")
@as_json_option
def explain_job(settings: Settings, *, job_id: int, as_json: bool) -> None:
    """Explain why a job waits, since when, and when it will probably start.

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


def show_explanation(found: Explanation) -> None:
    """Print what a job waits for."""
    show_lines(_lines(found))


def show_lines(lines: Iterable[tuple[str, str]]) -> None:
    """Print titles and texts, folded."""
    console = Console(highlight=False, markup=False)
    for title, text in lines:
        folded = textwrap.wrap(visible(text), max(console.width - _TITLE, 20), break_on_hyphens=False)
        for number, line in enumerate(folded):
            console.print(f"{title if number == 0 else '':{_TITLE}}{line}", soft_wrap=True)


def _lines(found: Explanation) -> Iterator[tuple[str, str]]:
    finding = found.finding
    yield "job", f"{found.id}{_name(found)}"
    yield "state", found.state if finding.cause == found.state else f"{found.state}: {finding.cause}"
    yield "why", finding.why
    if finding.since is not None:
        yield "since", f"{clock(finding.since)}, {relative(finding.since, found.now)}"
    if found.state not in _WAITS_FOR_NOTHING:
        yield "starts", _start(found)
    for remark in found.also:
        yield "note", remark


def _name(found: Explanation) -> str:
    if found.job_name is None:
        return ""
    key = f", key {found.key}" if found.key is not None else ""
    return f", {found.job_name}, queue {found.queue}{key}"


def _start(found: Explanation) -> str:
    seconds, reason = found.finding.estimate
    return f"no estimate: {reason}" if seconds is None else f"in about {duration(seconds)}: {reason}"
