"""`drain dev`: all programs, for development."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import click

from drain.terminal.commandline import setting_option


@click.command(short_help="Run servers for development, and with --jobs all programs.")
@setting_option("jobs")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to keep the data in; by default they are removed at the end.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="Port of PostgreSQL on 127.0.0.1, without a password.",
)
@click.option(
    "--redis-port", type=click.IntRange(1, 65535), help="Port of Redis on 127.0.0.1, without a password."
)
def dev(jobs: str | None, directory: Path | None, port: int | None, redis_port: int | None) -> None:
    """Run PostgreSQL and Redis in the foreground, for development, until Ctrl-C.

    With --jobs an enqueuer and a worker run too. The worker works on all queues of
    the jobs, and starts again whenever a Python file below the current directory
    has changed. Each line begins with the name of the program that wrote it.

    Prints the two URLs as export lines for another shell, with the tables in
    place. They lead to Unix sockets; for programs in containers and GUI clients,
    choose ports. Needs both servers: the extra [servers], or on PATH.

    \b
    drain dev --jobs shop
    drain dev --jobs shop --directory .drain --port 5433 --redis-port 6380
    """  # noqa: D301
    from drain.dev import Development, Plan

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    modules = [name.strip() for name in (jobs or "").split(",") if name.strip()]
    plan = Plan(jobs=modules, directory=directory, port=port, redis_port=redis_port)
    programs = "PostgreSQL, Redis, an enqueuer and a worker" if modules else "PostgreSQL and Redis"
    click.echo(f"starting {programs} ...", err=True)
    development = Development(plan, stop)
    with development.servers() as started:
        click.echo(f"export DRAIN_DATABASE_URL='{started.database_url}'")
        click.echo(f"export DRAIN_REDIS_URL='{started.redis_url}'")
        sys.stdout.flush()
        everything = "everything" if plan.jobs else "both servers"
        click.echo(f"paste these into another shell; Ctrl-C here ends {everything}", err=True)
        development.run(started)
        click.echo("stopping ...", err=True)
    click.echo("stopped", err=True)
