"""Commands imported on demand, also from other packages.

Entry points add commands (group `drain.commands`, `hello = "shop.drain_commands:hello"`) and options to a command
(group `drain.options`, `status = "shop.drain_commands:add_options"`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from copy import copy
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

import click

from drain.errors import DrainError

GROUP = "drain.commands"
OPTIONS = "drain.options"


class LazyCommands(MutableMapping[str, click.Command]):
    """Commands by name; our `own` cannot be replaced."""

    def __init__(self, own: Mapping[str, str]) -> None:
        self._own = {name: EntryPoint(name, value, GROUP) for name, value in own.items()}
        self._loaded: dict[str, click.Command] = {}

    @cached_property
    def _known(self) -> dict[str, EntryPoint]:
        """Entry points; reading them takes 10 ms."""
        added = {each.name: each for each in entry_points(group=GROUP)}
        return self._own | added | self._own

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            own = self._own.get(name)
            self._loaded[name] = _with_options(_load(own)) if own else _load(self._known[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known | self._loaded)

    def __len__(self) -> int:
        return len(self._known | self._loaded)


def _with_options(command: click.Command) -> click.Command:
    """Add other packages' options, reporting failures."""
    for entry in entry_points(group=OPTIONS, name=command.name or ""):
        extended = copy(command)
        extended.params = list(command.params)
        try:
            entry.load()(extended)
        # A module may raise anything.
        except Exception as error:  # noqa: BLE001
            problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
            click.echo(
                f"`drain {command.name}` runs without the options of {entry.value}: {problem}", err=True
            )
        else:
            command = extended
    return command


def _load(entry: EntryPoint) -> click.Command:
    """Import a command; another package's failure becomes one that reports it."""
    try:
        found = entry.load()
    except Exception as error:
        if entry.dist is None:
            raise
        problem = f"{entry.value} cannot be imported: {type(error).__name__}: {' '.join(str(error).split())}"
    else:
        if isinstance(found, click.Command):
            return found
        problem = f"{entry.value} is not a click command"
    text = f"the command `{entry.name}` of package {entry.dist and entry.dist.name} does not work: {problem}"

    def fail(**_: object) -> None:
        raise DrainError(text)

    return click.Command(entry.name, callback=fail, short_help=f"Does not work: {problem}", help=text)
