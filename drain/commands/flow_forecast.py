"""`drain flow forecast`."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import timedelta

import click

from drain import wire
from drain.commands.database import database
from drain.commands.explain import show_lines
from drain.config import Settings
from drain.formatting import clock, count, duration
from drain.read import flow_forecast, flows
from drain.read.snapshots import snapshot
from drain.terminal.commandline import as_json_option, settings_options

_SHOWN_PATH = 10


@click.command("forecast", short_help="Estimate when a flow ends.")
@click.argument("name", metavar="ID|NAME")
@settings_options("database_url", "redis_url", "namespace")
@click.option(
    "--workers", type=click.IntRange(1, 100_000), help="Worker processes per queue; live ones by default."
)
@as_json_option
def forecast(settings: Settings, *, name: str, workers: int | None, as_json: bool) -> None:
    """Estimate when a flow ends, from its longest path and the last week's jobs with the same names.

    Assumes that its queues' workers run no other jobs; ignores pauses, rates, rules per key, and members added later.

    \b
    drain flow forecast 42
    drain flow forecast onboarding --workers 8
    drain flow forecast 42 --json | jq .latest_seconds
    """  # noqa: D301
    with database(settings) as connection, snapshot(connection):
        found = flows.find(connection, name)
        remaining = flow_forecast.read(connection, found)
    crews = dict.fromkeys(remaining.queues, workers) if workers else _workers(settings, remaining.queues)
    made = remaining.forecast(crews)
    if as_json:
        click.echo(json.dumps(made.as_json(found)))
        return
    ends = [remaining.now + timedelta(seconds=each) for each in (made.earliest_seconds, made.latest_seconds)]
    more = f" -> {len(made.path) - _SHOWN_PATH:,} more" if len(made.path) > _SHOWN_PATH else ""
    show_lines(
        [
            ("flow", f"{found.words}: {count(len(remaining.nodes), 'unfinished member')}"),
            ("path", " -> ".join(node.title for node in made.path[:_SHOWN_PATH]) + more),
            ("ends", f"in {duration(made.earliest_seconds)} to {duration(made.latest_seconds)}"),
            ("at", f"{clock(ends[0])} to {clock(ends[1])}"),
        ]
    )


def _workers(settings: Settings, queues: list[str]) -> dict[str, int]:
    if not settings.redis_url:
        raise flow_forecast.NoForecastError(
            "no forecast: Redis is not configured, so the workers are unknown: set DRAIN_REDIS_URL, or give --workers"
        )
    with closing(wire.Producer(settings.redis_url, settings.namespace)) as redis:
        return {queue: len(crew) for queue, crew in redis.crews(queues).items()}
