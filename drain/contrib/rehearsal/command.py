"""`drain rehearse`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from drain.commands.database import database
from drain.commands.selecting import JOB_OPTIONS
from drain.config import Settings
from drain.contrib.rehearsal import past, report as rehearsal_report
from drain.errors import DrainError
from drain.formatting import count
from drain.tables import dead as dead_tables
from drain.tables.dead import Selection
from drain.terminal import progress
from drain.terminal.commandline import FiniteRange, as_json_option, errors_in_one_line, settings_options

# libpq options for the jobs' own connections.
_READ_ONLY = "-c default_transaction_read_only=on"
# Exit code for failures, as in `diff`.
_TROUBLE = 2


class _TroubleError(click.ClickException):
    exit_code = _TROUBLE


def _job_options(command: Any) -> Any:
    for option in JOB_OPTIONS:
        command = option(command)
    return command


@click.command(short_help="Rerun past jobs with today's code, rolled back.")
@_job_options
@settings_options("database_url", "jobs")
@click.option("--dead", "is_dead", is_flag=True, help="Rehearse dead jobs, latest first.")
@click.option("--archive", metavar="PATH", help="Rehearse archived jobs, latest days first.")
@click.option(
    "--where",
    default="true",
    metavar="CONDITION",
    help="SQL condition on the columns of dead_jobs or finished_jobs.",
)
@click.option(
    "--limit", type=click.IntRange(1, 100_000), default=100, show_default=True, help="Maximum number of jobs."
)
@click.option(
    "--timeout",
    type=FiniteRange(min=0, min_open=True, max=86_400),
    metavar="SECONDS",
    help="Time limit per job; its own by default.",
)
@click.option(
    "--isolated", is_flag=True, help="Run each job in its own process, killed 5 s after its time limit."
)
@click.option(
    "--writes-elsewhere", is_flag=True, help="Allow connections that jobs open themselves to write, for real."
)
@click.option("--yes", is_flag=True, help="Skip the confirmation.")
@as_json_option
def rehearse(settings: Settings, *, as_json: bool, yes: bool, **given: Any) -> None:
    """Rerun dead or archived jobs with today's code, and compare the outcomes.

    Each job's drain.transaction() is rolled back, along with any jobs it staged; job-drain's tables stay as they are.
    Everything else is REAL: mail, requests, Redis, files, advancing sequences. Other libpq connections are
    read-only without --writes-elsewhere.

    Exit codes: 0 same outcomes; 1 different outcomes; 2 failure.

    \b
    drain rehearse --dead --job shop.send_receipt
    drain rehearse --dead 42 57 --isolated --timeout 10
    drain rehearse --archive /lake/jobs --job shop.index --limit 20 \\
        --where "finished_date > '2026-11-01' AND attempts > 1"
    """  # noqa: D301
    try:
        with errors_in_one_line():
            rows = _rehearsed(settings, yes=yes, **given)
    except click.UsageError:
        raise
    except click.ClickException as error:
        raise _TroubleError(error.message) from error
    except click.Abort:
        raise _TroubleError("not confirmed; nothing was rehearsed") from None
    if as_json:
        click.echo(json.dumps(rehearsal_report.as_json(rows)))
    else:
        rehearsal_report.show(rows)
    sys.exit(1 if any(row["difference"] for row in rows) else 0)


def _rehearsed(settings: Settings, *, yes: bool, **given: Any) -> list[dict[str, Any]]:
    if given["is_dead"] == (given["archive"] is not None):
        raise click.UsageError("name either --dead or --archive PATH")
    if not given["where"].strip():
        raise click.UsageError("--where is empty; leave it out for all jobs")
    jobs = _chosen(settings, **given)
    if not jobs:
        raise DrainError("no job matches; nothing was rehearsed")
    _confirm(len(jobs), writes_elsewhere=given["writes_elsewhere"], yes=yes)
    # Before importing job modules, which may connect.
    with nullcontext() if given["writes_elsewhere"] else _reading_only():
        return _run(settings, jobs, given["timeout"], isolated=given["isolated"])


@contextmanager
def _reading_only() -> Iterator[None]:
    """Make libpq connections read-only unless they set their own options."""
    before = os.environ.get("PGOPTIONS")
    os.environ["PGOPTIONS"] = f"{before or ''} {_READ_ONLY}".strip()
    try:
        yield
    finally:
        del os.environ["PGOPTIONS"]
        if before is not None:
            os.environ["PGOPTIONS"] = before


def _chosen(
    settings: Settings,
    *,
    ids: tuple[int, ...],
    queue: str | None,
    job: str | None,
    tag: str | None,
    archive: str | None,
    where: str,
    limit: int,
    **_: Any,
) -> list[past.PastJob]:
    selection = Selection(ids or None, queue, job, tag)
    with database(settings) as connection:
        if archive is not None:
            return past.archived_jobs(connection, archive, selection, where, limit)
        others = dead_tables.not_dead(connection, ids)
        if others:
            raise DrainError(f"not dead: {', '.join(map(str, others))}; nothing was rehearsed")
        return past.dead_jobs(connection, selection, where, limit)


def _confirm(jobs: int, *, writes_elsewhere: bool, yes: bool) -> None:
    if yes:
        return
    also = ", writes on other connections," if writes_elsewhere else ""
    real = f"mail, requests{also} and all else that they do outside of their transactions is done for real"
    if not sys.stdin.isatty():
        raise DrainError(f"{count(jobs, 'job')} would be run, and {real}; confirm with --yes")
    click.confirm(f"{real}.\nRun {count(jobs, 'job')} with the code of today?", abort=True, err=True)


def _run(
    settings: Settings, jobs: list[past.PastJob], timeout: float | None, *, isolated: bool
) -> list[dict[str, Any]]:
    from drain.contrib.rehearsal.difference import difference
    from drain.contrib.rehearsal.isolated import rehearse_isolated
    from drain.contrib.rehearsal.rehearsal import rehearse as rehearse_here
    from drain.jobs import registry

    # As in `drain work`.
    sys.path.insert(0, str(Path.cwd()))
    registry.load(settings.jobs)
    act = rehearse_isolated if isolated else rehearse_here
    rows = []
    with progress.show() as step:
        for number, job in enumerate(jobs, 1):
            step(f"job {job.id}, {number} of {len(jobs)}")
            done = act(settings.database_url, job, timeout)
            rows.append(
                {
                    **{name: getattr(job, name) for name in ("id", "job_name", "queue")},
                    "before": job.end,
                    "now": done.end,
                    "difference": difference(job.end, done.end),
                    "staged": done.written.staged,
                    "tables": {table: vars(each) for table, each in done.written.tables.items()},
                }
            )
    return rows
