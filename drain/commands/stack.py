"""`drain stack`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click
from rich.console import Console
from rich.text import Text

from drain.commands.database import database
from drain.config import Settings
from drain.formatting import count, duration, relative, visible
from drain.read.explain.stack import PATIENCE_SECONDS, Call, JobStack, read_stack, running_claim
from drain.terminal.commandline import DURATION, JOB_ID, as_json_option, settings_options
from drain.terminal.values import json_default

# Least width of paths; share of function names.
_LEAST, _SHARE = 20, 0.45


@click.command("stack", short_help="Show the current stack of a running job.")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@settings_options("database_url", "redis_url", "namespace")
@click.option(
    "--wait",
    "seconds",
    metavar="TIME",
    type=DURATION,
    default=f"{PATIENCE_SECONDS:g}s",
    show_default=True,
    help="Maximum wait for the worker's answer.",
)
@click.option("--all", "whole", is_flag=True, help="Include the worker's own frames.")
@as_json_option
def stack(settings: Settings, *, job_id: int, seconds: float, whole: bool, as_json: bool) -> None:
    """Show the current stack of a running job, innermost call last, without disturbing it.

    Shows no argument values and no source. Exit code 1: no answer, as from a stock `rq worker` or C code that holds the
    interpreter lock.

    \b
    drain stack 42
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


def show_stack(stack: JobStack, *, whole: bool = False) -> None:
    """Print calls, innermost last; the worker's only if `whole`."""
    console = Console(highlight=False, markup=False)
    claim = stack.claim
    seconds = (claim["now"] - claim["claimed_at"]).total_seconds()
    ends = relative(claim["lease_expires_at"], claim["now"])
    lines = [
        f"job {claim['id']}, {visible(claim['job_name'])}, queue {visible(claim['queue'])}",
        f"attempt {claim['attempt']}, claimed {duration(seconds)} ago; lease ends {ends}",
        f"in {visible(stack.place)} of {visible(stack.process)}",
    ]
    for line in lines:
        console.print(Text(line), overflow="fold")
    outer = 0 if whole else stack.outer
    if outer:
        console.print(f"  ({count(outer, 'worker call')} before these: --all)", style="dim")
    _show_calls(console, stack.calls[outer:])
    if stack.beside:
        console.print("\nthe event loop's thread is busy with:", style="yellow")
        _show_calls(console, stack.beside)


def _show_calls(console: Console, calls: Sequence[Call]) -> None:
    names = [visible(call.function) for call in calls]
    widest = min(max(map(len, names), default=0), int(console.width * _SHARE))
    for call, name in zip(calls, names, strict=True):
        place = f"{visible(call.file)}:{call.line}" if call.file else ""
        shown = _end(place, max(_LEAST, console.width - widest - 4))
        console.print(Text(f"  {_end(name, widest):{widest}}  {shown}"), soft_wrap=True)


def _end(text: str, room: int) -> str:
    return text if len(text) <= room else f"…{text[1 - room :]}"
