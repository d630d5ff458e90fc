"""`drain audit`: is any job lost, doubled or stuck?"""

from __future__ import annotations

import json
import sys
from contextlib import closing, nullcontext
from pathlib import Path

import click

from drain import wire
from drain.audit import OVERDUE_SECONDS, PATIENCE_SECONDS, UNATTENDED_SECONDS, audit
from drain.audit import textfile as metrics_file
from drain.commands.database import database
from drain.config import Settings
from drain.terminal import audit_report, progress
from drain.terminal.commandline import as_json_option, settings_options

# Timeout of one statement of an audit, in seconds: one reads all of a hundred million finished jobs.
_AUDIT_SECONDS = 3600


@click.command("audit")
@settings_options("database_url", "redis_url", "namespace")
@click.option(
    "--overdue-seconds",
    type=click.IntRange(0, 100_000_000),
    default=OVERDUE_SECONDS,
    show_default=True,
    help="Jobs that have been due for longer than this are overdue.",
)
@click.option(
    "--patience-seconds",
    type=click.IntRange(0, 3600),
    default=PATIENCE_SECONDS,
    show_default=True,
    help="Time in which jobs that may only be under way are checked again.",
)
@click.option(
    "--unattended-seconds",
    type=click.IntRange(0, 100_000_000),
    default=UNATTENDED_SECONDS,
    show_default=True,
    help="Time that jobs may wait in a queue without a worker.",
)
@click.option(
    "--textfile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the result as metrics too, for the textfile collector of node_exporter; the name must end in .prom.",
)
@as_json_option
def audit_jobs(
    settings: Settings,
    *,
    overdue_seconds: int,
    patience_seconds: int,
    unattended_seconds: int,
    textfile: Path | None,
    as_json: bool,
) -> None:
    """Check that no job is lost, doubled or stuck.

    Changes nothing, and may run at any time. It reads every table once, all as of one instant: each id is in exactly
    one table, no job has finished without a claim, no fencing token has gone backwards, no job is overdue, nothing
    exceeds a limit or was claimed in a pause, no two jobs of one unique key wait, and no schedule is late. If Redis is
    named, it also compares the lists in Redis with inflight_jobs, and checks that each queue with jobs has a worker.
    Jobs that seem overdue or missing are checked again, for up to --patience-seconds.

    Exit codes: 0 all is well; 1 a breach, with a line for each; 3 no breach found, but Redis did not answer.

    \b
    drain audit
    drain audit --overdue-seconds 600     for a backlog that may take ten minutes
    drain audit --json | jq '.checks[] | select(.ok | not)'
    drain audit --textfile /var/lib/prometheus/node-exporter/drain.prom
    """  # noqa: D301
    if textfile is not None:
        metrics_file.check_writable(textfile)
    with database(settings, _AUDIT_SECONDS) as connection, progress.show() as step:
        redis = wire.Producer(settings.redis_url, settings.namespace) if settings.redis_url else None
        with closing(redis) if redis else nullcontext():
            report = audit(
                connection,
                redis,
                overdue_seconds=overdue_seconds,
                patience_seconds=patience_seconds,
                unattended_seconds=unattended_seconds,
                progress=step,
            )
    if textfile is not None:
        metrics_file.write(textfile, report)
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        audit_report.show_audit(report)
    sys.exit(report.exit_code)
