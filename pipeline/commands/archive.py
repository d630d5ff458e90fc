"""`drain archive`."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from drain.errors import ConfigError
from drain.formatting import count, duration, visible
from drain.pipeline import archive as work, follow as following
from drain.pipeline.closing import Closer
from drain.pipeline.commands.options import Runtime, spark_options
from drain.pipeline.session import BRIEF
from drain.terminal import progress
from drain.terminal.commandline import as_json_option, settings_options

if TYPE_CHECKING:
    from drain.config import Settings


@click.command(short_help="Move old completed jobs to Parquet files.")
@click.argument("path", envvar="DRAIN_ARCHIVE")
@settings_options("database_url")
@click.option(
    "--keep-days",
    type=click.IntRange(0, 36_500),
    # With 0, a worker could not look up after midnight whether its latest job was recorded.
    default=1,
    show_default=True,
    help="Closed days to keep in PostgreSQL.",
)
@click.option("--dry-run", is_flag=True, help="Count the rows of each day without changing anything.")
@click.option("--follow", is_flag=True, help="Keep running; archive each job seconds after it completes.")
@spark_options
@as_json_option
def archive(
    settings: Settings,
    runtime: Runtime,
    *,
    path: str,
    keep_days: int,
    dry_run: bool,
    follow: bool,
    as_json: bool,
) -> None:
    """Move closed days of completed jobs from PostgreSQL to Parquet files in PATH, or DRAIN_ARCHIVE.

    A day closes at midnight UTC. Its rows are written to PATH/finished_date=2026-11-20/ and verified before the
    partition is dropped. After an interruption, run the command again. Exit code 1: some days could not be archived.

    With --follow, each job is archived seconds after it completes, until SIGINT or SIGTERM.

    \b
    drain archive /var/lib/jobs --dry-run
    drain archive s3://lake/jobs --keep-days 7
    drain archive s3://lake/jobs --follow
    """  # noqa: D301
    if Path(path.removeprefix("file:")).is_file():
        raise ConfigError(
            f"{path} is a file; name the directory of the archive, which is created if it is missing"
        )
    if dry_run and follow:
        raise click.UsageError("give --dry-run or --follow, not both")
    if dry_run:
        _count(settings.database_url, keep_days, as_json=as_json)
    elif follow:
        _follow(following.Plan(settings.database_url, path, keep_days), runtime, as_json=as_json)
    else:
        _archive(settings.database_url, path, runtime, keep_days, as_json=as_json)


def _count(database_url: str, keep_days: int, *, as_json: bool) -> None:
    counts = work.count_rows(database_url, keep_days)
    if as_json:
        click.echo(json.dumps([{"day": str(day), "rows": rows} for day, rows in counts.items()]))
        return
    for day, rows in counts.items():
        click.echo(f"{day}  {count(rows, 'row')}")
    click.echo(f"{count(len(counts), 'closed day')}; nothing was archived")


def _archive(database_url: str, path: str, runtime: Runtime, keep_days: int, *, as_json: bool) -> None:
    days = []
    reporters: list[Callable[[str], None]] = []

    def report(step: str) -> None:
        reporters[-1](step)

    found = work.run(
        database_url, path, lambda: runtime.session(report, java_options=BRIEF), keep=keep_days, report=report
    )
    while True:
        # Not around _show: the progress display captures a terminal's output.
        with progress.show() as step:
            reporters.append(step)
            day = next(found, None)
        if day is None:
            break
        days.append(day)
        _show(day, as_json=as_json)
    if not days and not as_json:
        click.echo("Postgres has no closed days")
    sys.exit(1 if any(day.problem for day in days) else 0)


def _follow(plan: following.Plan, runtime: Runtime, *, as_json: bool) -> None:
    stop = threading.Event()
    terminal = sys.stderr.isatty()

    def show_batch(batch: following.Batch) -> None:
        if as_json:
            click.echo(json.dumps({"event": "batch", **asdict(batch)}))
        elif terminal:
            click.echo(f"{count(batch.rows, 'row')}, {duration(batch.behind)} behind", err=True)

    def report(step: str) -> None:
        if terminal:
            click.echo(step, err=True)

    def show_day(day: work.Archived) -> None:
        _show(day, as_json=as_json)

    closer = Closer(runtime.arguments)
    with _ended_by_signals(stop):
        following.run(plan, closer, stop, end=closer.end, on_batch=show_batch, on_day=show_day, report=report)
    click.echo("stopped", err=True)


@contextmanager
def _ended_by_signals(stop: threading.Event) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM set `stop`; previous handlers get the second."""
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(_number: int, _frame: object) -> None:
        restore()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


def _show(day: work.Archived, *, as_json: bool) -> None:
    if as_json:
        fields = {"event": "day", **asdict(day), "day": str(day.day), "seconds": round(day.seconds, 3)}
        click.echo(json.dumps(fields))
    elif day.problem:
        click.echo(f"Error: {visible(day.problem)}", err=True)
    else:
        gone = "late, deleted" if day.late else "partition dropped"
        click.echo(f"{day.day}  {count(day.rows, 'row')}  archived, {gone}")
    sys.stdout.flush()
