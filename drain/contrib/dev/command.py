"""`drain dev`."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import click

from drain.config import Settings
from drain.terminal.commandline import setting_option


@click.command(short_help="Run development servers, and all programs with --jobs.")
@setting_option("jobs")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory to keep the data in; removed at exit by default.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    help="PostgreSQL port on 127.0.0.1, without a password.",
)
@click.option(
    "--redis-port", type=click.IntRange(1, 65535), help="Redis port on 127.0.0.1, without a password."
)
@click.option(
    "--database-url", metavar="TEXT", help="Existing PostgreSQL, already initialized, to use instead."
)
@click.option("--redis-url", metavar="TEXT", help="Existing Redis to use instead.")
def dev(
    jobs: str | None,
    directory: Path | None,
    port: int | None,
    redis_port: int | None,
    database_url: str | None,
    redis_url: str | None,
) -> None:
    """Run PostgreSQL and Redis in the foreground for development, until Ctrl-C.

    With --jobs, also runs an enqueuer and a worker, which restarts when a Python file below the current directory
    changes.

    Prints the URLs of both servers as export lines for another shell. They name Unix sockets; choose ports for
    containers and GUI clients. Needs both servers: the extra [servers], or on PATH.

    \b
    drain dev --jobs shop
    drain dev --jobs shop --directory .drain --port 5433 --redis-port 6380
    drain dev --jobs shop --database-url postgresql://localhost/shop
    """  # noqa: D301
    from drain.contrib.dev.development import Development, Plan

    modules = [name.strip() for name in (jobs or "").split(",") if name.strip()]
    _check_given(modules, (database_url, port, "--port"), (redis_url, redis_port, "--redis-port"))
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    plan = Plan(
        jobs=modules,
        directory=directory,
        port=port,
        redis_port=redis_port,
        database_url=database_url,
        redis_url=redis_url,
    )
    servers = [name for name, given in (("PostgreSQL", database_url), ("Redis", redis_url)) if not given]
    programs = [*servers, *(["an enqueuer", "a worker"] if modules else [])]
    click.echo(
        f"starting {' and '.join(filter(None, [', '.join(programs[:-1]), programs[-1]]))} ...", err=True
    )
    development = Development(plan, stop)
    with development.servers() as started:
        if started.postgres:
            click.echo(f"export DRAIN_DATABASE_URL='{started.database_url}'")
        if started.redis:
            click.echo(f"export DRAIN_REDIS_URL='{started.redis_url}'")
        sys.stdout.flush()
        everything = "everything" if plan.jobs else "both servers" if len(servers) == 2 else "the server"
        paste = "paste these into another shell; " if servers else ""
        click.echo(f"{paste}Ctrl-C here ends {everything}", err=True)
        development.run(started)
        click.echo("stopping ...", err=True)
    click.echo("stopped", err=True)


def _check_given(modules: list[str], *servers: tuple[str | None, int | None, str]) -> None:
    (database_url, *_), (redis_url, *_) = servers
    if database_url or redis_url:
        Settings(database_url=database_url or "postgresql:///drain", redis_url=redis_url or "")
    for url, port, option in servers:
        if url and port:
            raise click.UsageError(f"{option} needs its own server, but a URL is given too")
    if database_url and redis_url and not modules:
        raise click.UsageError("nothing to run: name modules of jobs with --jobs")
