"""Commands of `drain` under `manage.py`."""

from __future__ import annotations

import argparse
from typing import Any

import click
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand

from drain.contrib.django import environment
from drain.errors import DrainError
from drain.terminal.commandline import Group

# Help needs no database.
_HELP = frozenset({"-h", "--help"})


class Program(BaseCommand):
    """Base of the commands; passes all but Django's own options to `drain`."""

    name: str
    command: click.Command
    requires_system_checks: list[str] = []  # noqa: RUF012  (Django's own type)

    def run_from_argv(self, argv: list[str]) -> None:
        """Run from the command line."""
        self._run(_without_options_of_django(argv[2:]))

    def print_help(self, _prog_name: str, _subcommand: str) -> None:
        """Print help for `manage.py help`."""
        self.main(["--help"])

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Accept all words of `call_command`."""
        parser.add_argument("args", nargs=argparse.REMAINDER)

    def handle(self, *words: str, **_options: Any) -> None:
        """Run for `call_command`."""
        try:
            self._run(list(words))
        except SystemExit as end:
            if end.code:
                raise

    def _run(self, words: list[str]) -> None:
        if not _HELP.intersection(words):
            try:
                environment.fill()
            # Other errors in Django's settings end in a traceback, as in Django's own commands.
            except (DrainError, ImproperlyConfigured) as error:
                raise SystemExit(f"Error: {error}") from None
        self.main(words)

    def main(self, words: list[str], **more: Any) -> None:
        """Run `drain` with these words."""
        Group(commands={self.name: self.command}).main([self.name, *words], prog_name="manage.py", **more)


def _without_options_of_django(words: list[str]) -> list[str]:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--settings")
    parser.add_argument("--pythonpath")
    for option in ("--traceback", "--no-color", "--force-color", "--skip-checks"):
        parser.add_argument(option, action="store_true")
    return parser.parse_known_args(words)[1]
