"""`drain queue pause` and `drain queue resume`."""

from __future__ import annotations

from typing import Any

import click

from drain import queues
from drain.commands.database import database, hint_at_unknown
from drain.config import Settings
from drain.errors import DrainError
from drain.formatting import count, visible
from drain.read import queries
from drain.terminal.commandline import DURATION, F, settings_options, wrapped


def named_options(command: F) -> F:
    """Add options that name jobs."""

    def with_names(*, name: str | None, **given: Any) -> Any:
        if name is None and given["job"] is None and given["key"] is None:
            raise click.UsageError("name a queue, --job or --key")
        return command(name=name, **given)

    options = (
        click.option("--key", metavar="KEY", help="Only this key."),
        click.option("--job", metavar="NAME", help="Only this job name."),
        click.argument("name", metavar="[QUEUE]", required=False),
    )
    return wrapped(command, with_names, options)


@click.command("pause", short_help="Pause a queue, a job name or a key.")
@settings_options("database_url")
@click.option("--for", "lasts", type=DURATION, metavar="TIME", help="Duration of the pause: 10m, 2h, 1d.")
@click.option("--reason", help="Reason, shown with the pause.")
@named_options
def pause(
    settings: Settings,
    *,
    name: str | None,
    job: str | None,
    key: str | None,
    lasts: float | None,
    reason: str | None,
) -> None:
    """Pause a queue, a job name or a key, within a second.

    Running jobs continue, and staging still works. Combined options narrow the pause: a queue and a key pause that key
    in that queue.

    \b
    drain queue pause calls
    drain queue pause calls --key acme --for 10m --reason "their server is down"
    drain queue pause --job shop.jobs.send_receipt
    """  # noqa: D301
    with database(settings) as connection:
        queues.pause(connection, name, job=job, key=key, until=lasts, reason=reason)
        known = queries.queues(connection)
        if name is not None:
            hint_at_unknown([name], known)
        if key is not None and not queries.is_known_key(connection, key, known):
            click.echo(f"key {key!r} is unknown: no job with it is staged, in flight or dead", err=True)
    click.echo(f"paused: {_words(name, job, key)}")


@click.command("resume", short_help="Resume a paused queue, job name or key.")
@settings_options("database_url")
@named_options
def resume(settings: Settings, *, name: str | None, job: str | None, key: str | None) -> None:
    """End the pause of this queue, job name and key, within a second.

    \b
    drain queue resume calls
    drain queue resume calls --key acme
    """  # noqa: D301
    words = _words(name, job, key)
    with database(settings) as connection:
        if not queues.resume(connection, name, job=job, key=key):
            raise DrainError(f"not paused: {words}; see `drain queue list`")
        others = [each for each in queues.pauses(connection) if name is not None and each.queue == name]
    click.echo(f"resumed: {words}")
    if others:
        click.echo(f"queue {name} has {count(len(others), 'other pause')}; see `drain queue show {name}`")


def _words(name: str | None, job: str | None, key: str | None) -> str:
    parts = (("queue", name), ("job", job), ("key", key))
    return visible(" ".join(f"{kind} {text}" for kind, text in parts if text is not None))
