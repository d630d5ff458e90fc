"""`drain forecast`: when does a backlog end?"""

from __future__ import annotations

import json
from contextlib import closing, nullcontext

import click

from drain import wire
from drain.commands.database import database, hint_at_unknown
from drain.config import Settings
from drain.contrib.forecast import report as forecast_report
from drain.contrib.forecast.inputs import Added
from drain.contrib.forecast.prediction import predict
from drain.contrib.forecast.reading import Question, read
from drain.read import queries
from drain.terminal.commandline import DURATION, FiniteRange, as_json_option, settings_options

# Word that stands for a queue where --rows says that jobs are only imagined.
_BACKFILL = "backfill"
# Timeout of one statement, in seconds: a backlog of millions is counted.
_STATEMENT_SECONDS = 120


@click.command(short_help="Say when a backlog ends, and who waits for it meanwhile.")
@click.argument("what", metavar="QUEUE|backfill")
@settings_options("database_url", "redis_url")
@click.option(
    "--rows", type=click.IntRange(1, 10**12), help="With backfill: number of jobs that would be staged."
)
@click.option("--job", "job_name", help="With backfill: their name.")
@click.option("--queue", help="With backfill: their queue; 'default' by default.")
@click.option(
    "--max-rows-per-second",
    "rows_per_second",
    type=FiniteRange(min=0, min_open=True),
    help="With backfill: number of them that come due in each second.",
)
@click.option(
    "--workers", type=click.IntRange(1, 100_000), help="Number of worker processes; by default those of now."
)
@click.option(
    "--run-seconds",
    type=FiniteRange(min=0, min_open=True, max=1e9),
    help="Run time of the jobs; by default that of jobs that have finished.",
)
@click.option(
    "--arrivals",
    type=FiniteRange(min=0, max=1e9),
    help="Jobs that come to the queue in a second; by default as in the last ten minutes.",
)
@click.option(
    "--within",
    type=DURATION,
    default="1h",
    show_default=True,
    help="Time within which jobs have to have finished to count: 10m, 1d.",
)
@click.option(
    "--archive", envvar="DRAIN_ARCHIVE", show_envvar=True, metavar="PATH", help="Run times from this archive."
)
@as_json_option
def forecast(
    settings: Settings,
    *,
    what: str,
    rows: int | None,
    job_name: str | None,
    queue: str | None,
    rows_per_second: float | None,
    workers: int | None,
    run_seconds: float | None,
    arrivals: float | None,
    within: float,
    archive: str | None,
    as_json: bool,
) -> None:
    """Predict when a queue's backlog ends, and how long jobs that arrive meanwhile will wait.

    With 'backfill' and --rows, predict the same for jobs that are not staged yet.

    The next hours are simulated twenty times, with the current workers and the order in which they serve queues, run
    times of finished jobs, recent arrivals, and the limits, rates and pauses of the queues. The answer is the median
    and the range of nine in ten. Rules of keys and failed attempts are not simulated.

    \b
    drain forecast mail
    drain forecast mail --workers 8
    drain forecast backfill --rows 2000000 --job shop.index --queue bulk
    drain forecast backfill --rows 500 --job shop.index --run-seconds 0.2
    """  # noqa: D301
    added = None
    if what == _BACKFILL and rows is not None:
        if job_name is None:
            raise click.UsageError("name the jobs by --job, such as --job shop.index")
        added, what = Added(rows, job_name, rows_per_second), queue or "default"
    elif rows or job_name or queue or rows_per_second:
        raise click.UsageError(
            "--rows, --job, --queue and --max-rows-per-second go with `drain forecast backfill`"
        )
    question = Question(
        queue=what,
        added=added,
        workers=workers,
        run_seconds=run_seconds,
        arrivals=arrivals,
        within=within,
        archive=archive,
    )
    redis = wire.Producer(settings.redis_url, settings.namespace) if settings.redis_url else None
    with closing(redis) if redis else nullcontext(), database(settings, _STATEMENT_SECONDS) as connection:
        known = read(connection, redis, question)
        if added is None and not known.queues[what].jobs:
            hint_at_unknown([what], queries.queues(connection) | set(known.times.by_queue))
    prediction = predict(known)
    if as_json:
        click.echo(json.dumps(forecast_report.as_json(known, prediction)))
    else:
        forecast_report.show(known, prediction)
