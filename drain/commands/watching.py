"""`drain status --watch`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import sleep

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from drain.errors import UnavailableError
from drain.formatting import visible
from drain.read.system import System
from drain.terminal.status_report import status_view

# Reads a status, and why a part is unknown.
Look = Callable[[], tuple[System, str | None]]
# Shows a status, or why there is none.
Show = Callable[[System | None, str | None], None]


def watch_status(look: Look, seconds: float, *, as_json: bool) -> None:
    """Show the status every `seconds` until Ctrl-C, reporting each outage once.

    Raises:
        DrainError: A setting is unusable, or the schema missing.
    """
    console = Console(highlight=False, markup=False)
    in_place = console.is_terminal and not as_json
    try:
        with _in_place(console) if in_place else _one_by_one(console, as_json=as_json) as show:
            while True:
                show(*_look(look))
                sleep(seconds)
    except KeyboardInterrupt:
        return


def _look(look: Look) -> tuple[System | None, str | None]:
    try:
        return look()
    except UnavailableError as error:
        return None, f"{error}; trying again"


@contextmanager
def _in_place(console: Console) -> Iterator[Show]:
    latest: list[System] = []

    with Live(console=console, auto_refresh=False) as live:

        def show(result: System | None, problem: str | None) -> None:
            latest[:] = [result] if result else latest
            parts = [status_view(each, console.width) for each in latest]
            lines = [Text(visible(problem), style="red")] if problem else []
            live.update(Group(*parts, *lines), refresh=True)

        yield show


@contextmanager
def _one_by_one(console: Console, *, as_json: bool) -> Iterator[Show]:
    problem_shown: str | None = None

    def show(result: System | None, problem: str | None) -> None:
        nonlocal problem_shown
        if bool(problem) != bool(problem_shown):
            click.echo(visible(problem) if problem else "PostgreSQL and Redis are reachable again", err=True)
        problem_shown = problem
        if result and as_json:
            click.echo(json.dumps(result.as_json()))
        elif result:
            console.print(status_view(result, console.width))
            console.print()

    yield show
