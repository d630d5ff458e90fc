"""SLO lines in `drain status`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from drain.commands.status import SECTIONS
from drain.contrib.slo.command import read_slos
from drain.contrib.slo.compliance import Lately, lately
from drain.contrib.slo.report import texts
from drain.terminal.commandline import add_to, queue_file_option


class _Section:
    def __init__(self, found: Sequence[Lately]) -> None:
        self._found = found

    def as_json(self) -> list[dict[str, Any]]:
        return [each.as_json() for each in self._found]

    def lines(self) -> Iterable[Text]:
        return texts(self._found)


def add_options(command: click.Command) -> None:
    """Add --jobs and --queue-file."""
    show = command.callback

    @click.option(
        "--jobs",
        metavar="MODULES",
        help="Modules with job SLOs to show, comma-separated.",
    )
    @queue_file_option
    def with_slos(*, jobs: str | None, queue_file: Path | None, **given: Any) -> Any:
        slos = read_slos(jobs, queue_file)
        sections = click.get_current_context().meta.setdefault(SECTIONS, {})
        sections["slos"] = lambda connection: _Section(lately(connection, slos))
        return show(**given) if show else None

    add_to(command, with_slos)
