"""`drain events`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC
from time import sleep

import click
from rich.console import Console
from rich.text import Text

from drain.config import Settings
from drain.contrib.events.follower import Follower, JobFollower
from drain.contrib.events.life import Event
from drain.database import postgres, schema
from drain.database.postgres import Connection
from drain.errors import UnavailableError, UnknownJobError
from drain.formatting import clock, duration, visible
from drain.terminal.commandline import JOB_ID, FiniteRange, as_json_option, settings_options

_STYLES = {"failed": "yellow", "interrupted": "yellow", "dead": "red", "expired": "red", "finished": "green"}
_EVENT_WIDTH = max(map(len, ("delivered again", "interrupted", "superseded")))

_STATEMENT_SECONDS = 30
_LOOK_SECONDS = 60.0
_LOCK_SECONDS = 5

Show = Callable[[Sequence[Event]], None]


@click.command("events", short_help="Stream job events.")
@settings_options("database_url")
@click.option("--follow", is_flag=True, help="Stream new events until Ctrl-C.")
@click.option("--id", "job_id", type=JOB_ID, help="Only this job, from its first event.")
@click.option("--job", help="Only this job name.")
@click.option("--queue", help="Only this queue.")
@click.option(
    "--every",
    "seconds",
    type=FiniteRange(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Polling interval.",
)
@as_json_option
def events(
    settings: Settings,
    *,
    follow: bool,
    job_id: int | None,
    job: str | None,
    queue: str | None,
    seconds: float,
    as_json: bool,
) -> None:
    """Stream job events: staged, moved, claimed, failed, deferred, finished, superseded, dead and others.

    --follow prints new events in order of time; those of a late commit are printed late. --id prints the events of
    one job so far. States shorter than a poll may be missing. The inspection role suffices.

    \b
    drain events --follow
    drain events --follow --queue mail --json | jq 'select(.event == "dead")'
    drain events --id 42
    """  # noqa: D301
    if job_id is None and not follow:
        raise click.UsageError("name a job with --id, or stream new events with --follow")

    def is_wanted(event: Event) -> bool:
        return job in (None, event.job_name) and queue in (None, event.queue)

    show = _printer(is_wanted, as_json=as_json, with_day=job_id is not None)
    follower = Follower() if job_id is None else JobFollower(job_id)
    if not follow:
        with _connected(settings) as connection:
            _look(follower, connection, show)
        return
    try:
        _follow(settings, follower, show, seconds)
    except KeyboardInterrupt:
        return


def _follow(settings: Settings, follower: Follower | JobFollower, show: Show, seconds: float) -> None:
    is_away = False
    while True:
        try:
            with _connected(settings) as connection:
                while True:
                    is_behind = _look(follower, connection, show)
                    if is_away:
                        click.echo("PostgreSQL is reachable again", err=True)
                        is_away = False
                    if not is_behind:
                        sleep(seconds)
        except UnavailableError as error:
            if not is_away:
                click.echo(f"{visible(str(error))}; trying again", err=True)
            is_away = True
            sleep(seconds)


def _look(follower: Follower | JobFollower, connection: Connection, show: Show) -> bool:
    """Print new events; return True if the next look may follow at once."""
    with postgres.time_limit(connection, _LOOK_SECONDS):
        show(follower.look(connection))
    if isinstance(follower, JobFollower):
        if not follower.is_known:
            raise UnknownJobError("no job has this id: `drain show ID` says why that may be")
        return False
    return follower.is_behind


@contextmanager
def _connected(settings: Settings) -> Iterator[Connection]:
    connection = postgres.connect(settings.database_url, "drain events")
    with closing(connection), postgres.reachable(settings.database_url):
        with postgres.time_limit(connection, _LOOK_SECONDS):
            postgres.limit_session(
                connection, statement_seconds=_STATEMENT_SECONDS, lock_seconds=_LOCK_SECONDS
            )
            schema.check(connection)
        yield connection


def _printer(is_wanted: Callable[[Event], bool], *, as_json: bool, with_day: bool) -> Show:
    console = Console(highlight=False, markup=False, soft_wrap=True)

    def show(found: Sequence[Event]) -> None:
        for event in filter(is_wanted, found):
            if as_json:
                click.echo(json.dumps(event.as_json()))
            elif console.is_terminal:
                line = event_line(event, with_day=with_day)
                line.truncate(console.width, overflow="ellipsis")
                console.print(line)
            else:
                console.print(event_line(event, with_day=True))

    return show


def event_line(event: Event, *, with_day: bool) -> Text:
    """Format an event."""
    at = event.at.astimezone(UTC)
    time = f"{at:%Y-%m-%d %H:%M:%S}" if with_day else f"{at:%H:%M:%S}"
    # A look's time is shown without its fraction.
    fraction = f".{at.microsecond // 1000:03}" if event.is_exact else "    "
    line = Text(f"{time}{fraction}  ")
    line.append(event.event.replace("_", " ").ljust(_EVENT_WIDTH), _STYLES.get(event.event))
    rest = "; ".join(_details(event))
    line.append(visible(f"  {event.id}  {event.job_name} [{event.queue}]{': ' if rest else ''}{rest}"))
    return line


def _details(event: Event) -> Iterator[str]:
    if event.attempt is not None and event.event not in ("finished",):
        yield f"attempt {event.attempt}"
    if event.attempt is not None and event.event == "finished" and event.attempt > 1:
        yield f"on attempt {event.attempt}"
    if event.error:
        yield event.error
    if event.until is not None:
        yield f"{'due' if event.event == 'staged' else 'waits until'} {clock(event.until)}"
    if event.superseded_by is not None:
        yield f"by job {event.superseded_by}"
    if event.seconds is not None:
        yield f"after {duration(event.seconds)}"
    if event.worker and event.event in ("claimed", "failed", "interrupted"):
        yield f"by {event.worker}"
