"""`drain slo`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from drain.admission import declared as file_of_rules
from drain.commands.database import database
from drain.config import VARIABLES, Settings
from drain.contrib.slo import report
from drain.contrib.slo.compliance import lately
from drain.contrib.slo.declared import Slo, declared
from drain.errors import ConfigError
from drain.formatting import count, visible
from drain.terminal.commandline import F, as_json_option, queue_file_option, settings_options, wrapped

_NO_SLO = 'no SLOs; declare one with @job(slo="99% start within 5s"), or slo = "..." in the file of `drain queue apply`'


@click.group(short_help="List SLOs and write Prometheus alerts.")
def slo() -> None:
    """List service level objectives (SLOs) and write their Prometheus alerts.

    An SLO is the share of jobs that should start in time: @job(slo="99% start within 5s"), or slo = "99% start within
    5s" for a queue in the file of `drain queue apply`. For flows, it is the share that should finish in time.

    \b
    drain slo list --jobs shop.jobs --queue-file queues.toml
    drain slo rules --jobs shop.jobs --output slo.yml
    """  # noqa: D301


def declaring_options(command: F) -> F:
    """Add options that become the argument `slos`."""

    def with_slos(*, jobs: str | None, queue_file: Path | None, **given: Any) -> Any:
        return command(slos=read_slos(jobs, queue_file), **given)

    return wrapped(
        command,
        with_slos,
        [
            queue_file_option,
            click.option(
                "--jobs",
                envvar=VARIABLES["jobs"],
                show_envvar=True,
                metavar="MODULES",
                help="Modules with job SLOs, comma-separated.",
            ),
        ],
    )


def read_slos(jobs: str | None, queue_file: Path | None) -> list[Slo]:
    """Read all objectives; `jobs` are comma-separated modules to import."""
    from drain.jobs import registry

    if modules := [name.strip() for name in (jobs or "").split(",") if name.strip()]:
        # As `drain work` does.
        sys.path.insert(0, str(Path.cwd()))
        registry.load(modules)
    return declared(file_of_rules.of_file(queue_file, file_of_rules.objectives) if queue_file else None)


@slo.command("rules", short_help="Write Prometheus recording rules and alerts.")
@declaring_options
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Output file; standard output by default.",
)
def write_rules(*, slos: Sequence[Slo], output: Path | None) -> None:
    """Write Prometheus recording rules and alerts, without a database.

    Each SLO has two burn-rate alerts: critical (14.4 times the budget over 1 h and 5 min) and warning (6 times over 6 h
    and 30 min). Each queue also has an alert for jobs that wait while none starts, and each flow name has one for late
    flows while none finishes. Prometheus must scrape `drain work`, and `drain run` with the same --queue-file.

    \b
    drain slo rules --jobs shop.jobs --queue-file queues.toml --output slo.yml
    promtool check rules slo.yml
    """  # noqa: D301
    # The library is slow to import.
    from drain.contrib.slo import prometheus

    if not slos:
        raise ConfigError(_NO_SLO)
    text = prometheus.rules(slos)
    if output is None:
        click.echo(text, nl=False)
        return
    output.write_text(text, encoding="utf-8")
    click.echo(f"{visible(str(output))}: rules for {count(len(slos), 'SLO')}", err=True)


@slo.command("list", short_help="List SLOs with their recent compliance.")
@declaring_options
@settings_options("database_url")
@as_json_option
def list_slos(settings: Settings, *, slos: Sequence[Slo], as_json: bool) -> None:
    """List SLOs with the compliance and burn rate of the last hour.

    Counts each queue's latest 10,000 jobs that completed at their first attempt, and waiting jobs that are already
    late. Of each name's latest 10,000 flows, counts those that finished or became late. A burn rate of 1 spends exactly
    the budget.

    \b
    drain slo list --jobs shop.jobs --queue-file queues.toml
    drain slo list --json | jq '.[] | select(.burn_rate > 1)'
    """  # noqa: D301
    with database(settings) as connection:
        found = lately(connection, slos)
    if as_json:
        click.echo(json.dumps([each.as_json() for each in found]))
    elif not slos:
        click.echo(_NO_SLO, err=True)
    else:
        report.show_lately(found)
