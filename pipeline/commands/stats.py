"""`drain stats`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from drain.formatting import clock, visible
from drain.pipeline.commands.options import Runtime, spark_options, warn_if_absent
from drain.pipeline.session import SMALL
from drain.pipeline.stats import page, tables, words
from drain.pipeline.stats.as_json import as_json as plain
from drain.pipeline.stats.measures import measure
from drain.pipeline.stats.question import PERIODS, Question, parse_time
from drain.terminal import progress
from drain.terminal.commandline import as_json_option, settings_options

if TYPE_CHECKING:
    from drain.config import Settings
    from drain.pipeline.stats.report import Report

# A page shows all periods.
_LATEST = 24
_GAP = 2
_LEAST = 12


@click.command(short_help="Show counts, retries and durations of jobs.")
@settings_options("database_url")
@click.option(
    "--archive", envvar="DRAIN_ARCHIVE", show_envvar=True, metavar="PATH", help="Path of the archive."
)
@click.option(
    "--since", metavar="TIME", help="Start of the period: 2026-11-01, 2026-11-01T12:00 (UTC), 7d, 24h."
)
@click.option("--queue", help="Only this queue.")
@click.option("--job", help="Only this job name.")
@click.option(
    "--per", type=click.Choice(list(PERIODS)), default="day", show_default=True, help="Period of each row."
)
@click.option(
    "--top",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Maximum rows per table.",
)
@click.option(
    "--html", "file", metavar="FILE", type=click.Path(path_type=Path), help="Also write a page with charts."
)
@spark_options
@as_json_option
def stats(
    settings: Settings,
    runtime: Runtime,
    *,
    archive: str | None,
    since: str | None,
    queue: str | None,
    job: str | None,
    per: str,
    top: int,
    file: Path | None,
    as_json: bool,
) -> None:
    """Show counts, retries, and waiting and processing times of archived and current jobs.

    Waiting time runs from due to claim; it is known only for jobs claimed once. Processing time runs from the last
    claim to completion. Percentiles are accurate within 1%; other numbers are exact. --since applies to finished and
    dead jobs; staged and in-flight jobs are current. A retried job is one that finished after several attempts.

    \b
    drain stats --since 14d --per hour --html weeks.html
    drain stats --archive s3://lake/jobs --queue mail --json
    """  # noqa: D301
    question = Question(since=parse_time(since) if since is not None else None, queue=queue, job=job, per=per)
    if file is not None:
        page.check(file)
    with progress.show() as step:
        with runtime.session(step, java_options=SMALL) as spark:
            warn_if_absent(archive)
            step("reading finished jobs")
            report = measure(spark, settings.database_url, question, archive=archive)
        if file is not None:
            step("drawing the plots")
            page.write(file, report, about(question, report), top=top)
    if as_json:
        click.echo(json.dumps(plain(report, top)))
    else:
        _show(report, about(question, report), top)
    if file is not None:
        click.echo(f"the page is in {file}", err=True)


def about(question: Question, report: Report) -> str:
    """Describe a report's jobs in one line."""
    where = [f"queue {question.queue}" if question.queue is not None else "all queues"]
    if question.job is not None:
        where.append(f"job {question.job}")
    since = f"since {clock(report.since)}" if report.since else "all jobs that are kept"
    seen = f"{since}, as of {clock(report.at)}"
    before = report.dropped_before
    if before and (not report.since or report.since.date() < before):
        seen += f"; finished jobs from before {before} have been dropped"
    return visible(f"{', '.join(where)}; {seen}")


def _show(report: Report, which: str, top: int) -> None:
    console = Console(highlight=False, markup=False)
    total = report.total
    now = f"{words.count(total.staged)} staged and {words.count(total.inflight)} in flight"
    if report.empty:
        console.print(f"nothing has finished ({which}); {now}", soft_wrap=True)
        return
    console.print(which, soft_wrap=True)
    counts = f"{words.count(total.done.finished)} finished, {words.count(total.died)} dead; {now}"
    console.print(counts, soft_wrap=True)
    for table in tables.tables(report, top=top, periods=_LATEST):
        console.print()
        console.print(Text(table.title, style="bold"))
        console.print(_table(table, console.width))


def _table(shown: tables.Table, width: int) -> Table:
    texts = shown.texts
    # Then seven durations and a name fit into 80 characters.
    rows = [[*row[:texts], *(cell.replace(" ", "") for cell in row[texts:])] for row in shown.rows]
    columns = dict(zip(shown.columns, zip(*rows, strict=True), strict=True))
    for long in ("job", "node", "flow"):
        if long in columns:
            others = sum(
                max(map(len, (name, *cells))) + _GAP for name, cells in columns.items() if name != long
            )
            columns[long] = tuple(_end(text, width - others) for text in columns[long])
    table = Table(
        box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0), collapse_padding=True
    )
    for index, (name, cells) in enumerate(columns.items()):
        # Only a heading wider than its cells may take a second line.
        table.add_column(
            Text(name),
            justify="left" if index < texts else "right",
            overflow="fold",
            no_wrap=max(map(len, cells)) >= len(name),
        )
    for row in zip(*columns.values(), strict=True):
        table.add_row(*map(Text, row))
    return table


def _end(text: str, room: int) -> str:
    most = max(room, _LEAST)
    return text if len(text) <= most else f"…{text[1 - most :]}"
