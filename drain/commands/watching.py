"""`drain status --watch`: the status again and again, in place on a terminal."""

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
from drain.tables.counts import Status
from drain.terminal.status_report import status_view
from drain.visible import visible

# A status, and why a part of it is unknown.
Look = Callable[[], tuple[Status, str | None]]
Show = Callable[[Status | None, str | None], None]


def watch_status(look: Look, seconds: float, *, as_json: bool) -> None:
    """Look and show what was found every so many seconds, until Ctrl-C, which returns.

    While a store is away, one line says so when it begins and one when it ends.

    Raises:
        DrainError: It is no outage: a setting cannot be used, or the schema is missing.
    """
    console = Console(highlight=False, markup=False)
    in_place = console.is_terminal and not as_json
    try:
        with _in_place(console) if in_place else _in_turn(console, as_json=as_json) as show:
            while True:
                show(*_look(look))
                sleep(seconds)
    except KeyboardInterrupt:
        return


def _look(look: Look) -> tuple[Status | None, str | None]:
    try:
        return look()
    except UnavailableError as error:
        return None, f"{error}; trying again"


@contextmanager
def _in_place(console: Console) -> Iterator[Show]:
    """On a terminal: the latest status, and below it what is wrong by now."""
    latest: list[Status] = []

    with Live(console=console, auto_refresh=False) as live:

        def show(result: Status | None, problem: str | None) -> None:
            latest[:] = [result] if result else latest
            parts = [status_view(each, console.width) for each in latest]
            lines = [Text(visible(problem), style="red")] if problem else []
            live.update(Group(*parts, *lines), refresh=True)

        yield show


@contextmanager
def _in_turn(console: Console, *, as_json: bool) -> Iterator[Show]:
    """In a file or a pipe: one after the other, and on standard error what changes about the stores."""
    told: str | None = None

    def show(result: Status | None, problem: str | None) -> None:
        nonlocal told
        if bool(problem) != bool(told):
            click.echo(visible(problem) if problem else "PostgreSQL and Redis answer again", err=True)
        told = problem
        if result and as_json:
            click.echo(json.dumps(result.as_json()))
        elif result:
            console.print(status_view(result, console.width))
            console.print()

    yield show
