"""`drain audit`."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing, nullcontext
from pathlib import Path
from time import time

import click
from prometheus_client import CollectorRegistry, Gauge, write_to_textfile
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from drain import metrics, wire
from drain.audit import CHECKS, OVERDUE_SECONDS, PATIENCE_SECONDS, UNATTENDED_SECONDS, Breach, audit
from drain.audit.report import OF_REDIS, Report
from drain.commands.database import database
from drain.config import Settings
from drain.errors import ConfigError
from drain.formatting import count, visible
from drain.terminal import progress
from drain.terminal.commandline import as_json_option, settings_options
from drain.terminal.values import WORDS_OF_STATES

_NAME_WIDTH = max(map(len, CHECKS))
_NOT_ASKED = "Redis is not configured: set DRAIN_REDIS_URL"

# One statement reads all finished jobs.
_AUDIT_SECONDS = 3600


@click.command("audit")
@settings_options("database_url", "redis_url", "namespace")
@click.option(
    "--overdue-seconds",
    type=click.IntRange(0, 100_000_000),
    default=OVERDUE_SECONDS,
    show_default=True,
    help="Report jobs due for longer than this.",
)
@click.option(
    "--patience-seconds",
    type=click.IntRange(0, 3600),
    default=PATIENCE_SECONDS,
    show_default=True,
    help="Time to recheck suspicious jobs.",
)
@click.option(
    "--unattended-seconds",
    type=click.IntRange(0, 100_000_000),
    default=UNATTENDED_SECONDS,
    show_default=True,
    help="Report jobs that wait this long without a worker.",
)
@click.option(
    "--textfile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write metrics for node_exporter's textfile collector (*.prom).",
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
    """Prove that no job is lost, duplicated or stuck.

    Reads all tables in one snapshot and changes nothing. With Redis, it also compares its lists with the tables and
    checks that each queue with jobs has a worker. Suspicious jobs are rechecked for up to --patience-seconds.

    Exit codes: 0 no problem; 1 problems, one per line; 3 no problem found, but Redis is unavailable.

    \b
    drain audit
    drain audit --overdue-seconds 600     if a backlog may take ten minutes
    drain audit --json | jq '.checks[] | select(.ok | not)'
    """  # noqa: D301
    if textfile is not None:
        check_writable(textfile)
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
        write_textfile(textfile, report)
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        show_audit(report)
    sys.exit(report.exit_code)


def show_audit(report: Report) -> None:
    """Print the report, wrapped on a terminal only."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.soft_wrap = True
    checks = report.checks()
    for name in CHECKS:
        _show_check(console, report, name, checks.get(name))
    for reason in sorted(set(report.unchecked.values()))[:1]:
        _show_indented(console, reason)
    console.print(Text(_summary(report)))


def _show_check(console: Console, report: Report, name: str, breaches: list[Breach] | None) -> None:
    if breaches is None:
        _show_line(
            console, "-", "", name, f"not checked, {_NOT_ASKED}" if name == OF_REDIS[0] else "not checked"
        )
    elif name in report.unchecked:
        _show_line(console, "?", "yellow", name, "could not be checked: Redis does not answer")
    elif breaches:
        _show_line(console, "FAIL", "red", name, CHECKS[name].breach)
        for breach in breaches:
            _show_indented(console, _breach_line(breach))
    else:
        _show_line(console, "ok", "green", name, CHECKS[name].ok)


def _show_line(console: Console, word: str, style: str, name: str, text: str) -> None:
    console.print(Text.assemble((f"{word:4}", style), f"  {name:{_NAME_WIDTH}}  {text}"))


def _show_indented(console: Console, text: str) -> None:
    line = Text(visible(text))
    console.print(Text("      ") + line if console.soft_wrap else Padding(line, (0, 0, 0, 6)))


def _breach_line(breach: Breach) -> str:
    ids = ", ".join(map(str, breach.ids))
    more = ", ..." if breach.count > len(breach.ids) else ""
    return f"{breach.count:,} {breach.explanation}" + (f": {ids}{more}" if ids else "")


def _summary(report: Report) -> str:
    counts = ", ".join(
        f"{number:,} {WORDS_OF_STATES.get(state, state)}" for state, number in report.counts.items()
    )
    if report.breaches:
        return f"{counts}: {count(len(report.breaches), 'breach', 'breaches')}"
    return f"{counts}: {'some checks were skipped' if report.unchecked else 'no breach'}"


def check_writable(path: Path) -> None:
    """Check a file before an audit that may take an hour; ConfigError unless it is writable and ends in .prom."""
    if path.suffix != ".prom":
        raise ConfigError(_refusal(path, "node_exporter reads only files whose names end in .prom"))
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(_refusal(path, "no such directory, or it is not writable"))


def write_textfile(path: Path, report: Report) -> None:
    """Replace the file with the audit's metrics, or raise ConfigError."""
    registry = CollectorRegistry()
    for (name, text), value in (
        (metrics.AUDIT_BREACHES, len(report.breaches)),
        (metrics.AUDIT_UNCHECKED, len(report.unchecked)),
        (metrics.AUDIT_TIMESTAMP, time()),
    ):
        Gauge(name, text, registry=registry).set(value)
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise ConfigError(_refusal(path, error.strerror or "unknown")) from error


def _refusal(path: Path, reason: str) -> str:
    return f"cannot write {visible(str(path))} ({reason}); choose another --textfile"
