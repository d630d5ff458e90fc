"""`drain audit --expected`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from drain.pipeline import conservation
from drain.pipeline.commands.options import warn_if_absent
from drain.pipeline.sources import Source
from drain.pipeline.stats.question import literal
from drain.terminal import progress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from drain.config import Settings
    from drain.pipeline.commands.options import Runtime


def check_expected(
    settings: Settings,
    runtime: Runtime,
    expected: str,
    *,
    key: str,
    archive: str | None,
    only: Mapping[str, str | None],
    as_json: bool,
) -> bool:
    """Compare a list of jobs with the tables, and show the result; returns whether each is in exactly one place.

    Args:
        settings: Settings, of which the database's URL is read.
        runtime: Settings of the Spark session.
        expected: Source of the list; see `drain.pipeline.sources.SPELLING`.
        key: Column of the list with the ids.
        archive: Path of the archive.
        only: Columns of jobs, each with the value that all jobs in the list have; None: any value.
        as_json: Print JSON for programs.
    """
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
