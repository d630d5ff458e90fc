"""`drain audit --expected`, from the entry point `drain.options`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from drain.config import Settings
from drain.pipeline import conservation
from drain.pipeline.commands.options import Runtime, spark_options, warn_if_absent
from drain.pipeline.sources import Source
from drain.pipeline.stats.question import literal
from drain.terminal import progress
from drain.terminal.commandline import add_to

if TYPE_CHECKING:
    from collections.abc import Mapping


def add_options(command: click.Command) -> None:
    """Add --expected and its options."""
    audit = command.callback

    @click.option(
        "--expected",
        metavar="SOURCE",
        help="On Spark, check that these job ids exist: 'sql:SELECT job_id AS id FROM orders'.",
    )
    @click.option("--key", default="id", show_default=True, help="Column with the ids.")
    @click.option(
        "--archive",
        envvar="DRAIN_ARCHIVE",
        show_envvar=True,
        help="With --expected: path of the archive.",
    )
    @click.option("--queue", help="With --expected: only this queue.")
    @click.option("--job", help="With --expected: only this job name.")
    @spark_options
    def with_expected(
        *,
        runtime: Runtime,
        expected: str | None,
        key: str,
        archive: str | None,
        queue: str | None,
        job: str | None,
        **given: Any,
    ) -> Any:
        if expected is None:
            if queue or job:
                raise click.UsageError("--queue and --job go with --expected")
            return audit(**given) if audit else None
        if given["textfile"] is not None:
            raise click.UsageError("--textfile is not for an audit with --expected")
        settings = Settings.from_texts({name: given[name] for name in ("database_url", "schema")})
        only = {"queue": queue, "job_name": job}
        as_json = given["as_json"]
        ok = _check(settings, runtime, expected, key=key, archive=archive, only=only, as_json=as_json)
        sys.exit(0 if ok else 1)

    add_to(command, with_expected)


def _check(
    settings: Settings,
    runtime: Runtime,
    expected: str,
    *,
    key: str,
    archive: str | None,
    only: Mapping[str, str | None],
    as_json: bool,
) -> bool:
    source = Source.of(expected, database_url=settings.database_url)
    conditions = [f"{name} = {literal(value)}" for name, value in only.items() if value is not None]
    with progress.show() as step, runtime.session(step) as spark:
        warn_if_absent(archive)
        step("comparing the list with the tables")
        report = conservation.check(
            spark,
            settings.database_url,
            source,
            key=key,
            archive=archive,
            where=" AND ".join(conditions) or None,
        )
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        _show(report)
    return report.ok


def _show(report: conservation.Report) -> None:
    for finding in report.findings:
        ids = ", ".join(map(str, finding.ids)) + (", ..." if finding.count > len(finding.ids) else "")
        click.echo(f"FAIL  {finding.count:,} {conservation.REASONS[finding.reason]}: {ids}")
    counts = ", ".join(f"{count:,} {place}" for place, count in report.found.items())
    verdict = "every job is in exactly one place" if report.ok else "not every job is in exactly one place"
    click.echo(f"{report.expected:,} expected; {counts}: {verdict}")
