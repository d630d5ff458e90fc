"""`drain queue`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from drain import queues
from drain.admission import declared
from drain.admission.options import as_options
from drain.admission.rules import Rules, check_queue
from drain.commands.database import database, hint_at_unknown
from drain.commands.pausing import pause, resume
from drain.config import Settings
from drain.database.postgres import Connection
from drain.errors import ConfigError, DrainError
from drain.formatting import count, visible
from drain.read import queries
from drain.tables.pauses import Pause
from drain.terminal import queue_report
from drain.terminal.commandline import DURATION, F, as_json_option, settings_options

_OFF = "none"


class _Limit(click.IntRange):
    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        # int() accepts other scripts' digits, and 1_0.
        if not re.fullmatch("-?[0-9]+", str(value)):
            self.fail(f"{value!r} is neither a whole number nor {_OFF!r}", param, ctx)
        return super().convert(value, param, ctx)


class _OrOff(click.ParamType):  # type: ignore[type-arg]
    """Value of a type, or the word that removes the rule."""

    def __init__(self, kind: click.ParamType) -> None:  # type: ignore[type-arg]
        self.name = kind.name
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == _OFF else self._kind.convert(value, param, ctx)


_A_LIMIT = _OrOff(_Limit(1, 2**31 - 1))
_A_RATE = _OrOff(click.STRING)


@click.group()
def queue() -> None:
    """Edit queue rules, and pause and resume queues.

    Rules limit how many jobs of a queue run at once and how many start per second, minute, hour or day, and set their
    order. Changes apply within a second.

    \b
    drain queue set calls --running 50 --rate 100/s
    drain queue pause calls --key acme --for 10m --reason "at their request"
    drain queue list
    """  # noqa: D301


def rule_options(command: F) -> F:
    """Add an option for each rule."""
    for option in (
        click.option("--running", type=_A_LIMIT, metavar="N", help="Maximum number of running jobs."),
        click.option(
            "--running-per-key", type=_A_LIMIT, metavar="N", help="Maximum number of running jobs per key."
        ),
        click.option(
            "--rate", type=_A_RATE, metavar="RATE", help="Maximum start rate: 100/s, 10/min, 5/h, 1/d."
        ),
        click.option("--rate-per-key", type=_A_RATE, metavar="RATE", help="Maximum start rate per key."),
        click.option(
            "--burst", type=_A_LIMIT, metavar="N", help="Starts allowed at once after an idle period."
        ),
        click.option("--fair/--no-fair", default=None, help="Keys take turns."),
        click.option(
            "--weight",
            "weights",
            multiple=True,
            metavar="KEY=N",
            help="Turns of a key, 1 by default; repeatable.",
        ),
        click.option(
            "--ordered/--no-ordered", default=None, help="Run each key's jobs one at a time, by id."
        ),
        click.option(
            "--on-dead",
            type=_OrOff(click.Choice(["hold", "skip"])),
            metavar="[hold|skip]",
            help="After a dead job, hold its ordered key or skip the job.",
        ),
        click.option(
            "--aging",
            type=_OrOff(DURATION),
            metavar="TIME",
            help="Waiting time worth one step of priority: 60s.",
        ),
    )[::-1]:
        command = option(command)
    return command


@queue.command("set", short_help="Change the rules of a queue.")
@click.argument("name", metavar="QUEUE")
@settings_options("database_url", "forward_queues")
@rule_options
def set_rules(settings: Settings, *, name: str, weights: Sequence[str], **given: Any) -> None:
    """Change rules of a queue. Other rules stay; "none" removes one.

    \b
    drain queue set calls --running 50 --running-per-key 4
    drain queue set calls --rate 100/s --rate-per-key 10/min --burst 20
    drain queue set events --ordered --on-dead skip
    drain queue set calls --running none --no-fair --weight none
    """  # noqa: D301
    options = {rule: None if value == _OFF else value for rule, value in given.items() if value is not None}
    with database(settings) as connection:
        with connection.transaction():
            if weights:
                options["weights"] = _weights(queues.show(connection, name) or Rules(name), weights)
            rules = queues.change(connection, name, options)
            rules.require_tracked(settings.forward_queues)
        _show(connection, rules)
        hint_at_unknown([name], queries.queues(connection))


def _weights(rules: Rules, given: Sequence[str]) -> dict[str, float]:
    weights = {} if _OFF in given else dict(rules.weights)
    for each in given:
        if each == _OFF:
            continue
        key, _, number = each.rpartition("=")
        if not key or not re.fullmatch(rf"-?[0-9]+(\.[0-9]+)?|{_OFF}", number):
            raise ConfigError(f"a weight must be KEY=N, such as acme=3, not '{visible(each)[:50]}'")
        weights.pop(key, None)
        if number != _OFF:
            weights[key] = float(number) if "." in number else int(number)
    return weights


@queue.command("unset", short_help="Remove all rules of queues.")
@click.argument("names", metavar="QUEUE [QUEUE]...", nargs=-1, required=True)
@settings_options("database_url")
def unset_rules(settings: Settings, *, names: Sequence[str]) -> None:
    """Remove all rules of queues. Pauses stay.

    \b
    drain queue unset calls
    """  # noqa: D301
    with database(settings) as connection, connection.transaction():
        without = [name for name in names if not queues.unset(connection, name)]
        if without:
            raise DrainError(f"no rules to remove: {', '.join(without)}; nothing was done")
    click.echo(f"rules removed: {', '.join(names)}")


@queue.command("show", short_help="Show the rules and pauses of a queue.")
@click.argument("name", metavar="QUEUE")
@settings_options("database_url")
@as_json_option
def show_rules(settings: Settings, *, name: str, as_json: bool) -> None:
    """Show the rules of a queue, and the pauses that affect it.

    \b
    drain queue show calls
    drain queue show calls --json | jq .rules.running
    """  # noqa: D301
    with database(settings) as connection:
        rules = queues.show(connection, name)
        pauses = _pauses_of(connection, name)
        if rules is None and all(each.queue is None for each in pauses):
            hint_at_unknown([name], queries.queues(connection))
        if as_json:
            click.echo(json.dumps(queue_report.queue_as_json(rules or Rules(name), pauses)))
        else:
            queue_report.show_queue(rules or Rules(name), pauses, queries.now(connection))


@queue.command("list", short_help="List queues with their rules and pauses.")
@settings_options("database_url")
@as_json_option
def list_rules(settings: Settings, *, as_json: bool) -> None:
    """List queues that have rules or jobs, and all pauses.

    Tables show up to a thousand of each; --json shows all.

    \b
    drain queue list
    drain queue list --json | jq '.pauses[] | select(.key == "acme")'
    """  # noqa: D301
    with database(settings) as connection:
        ruled = {each.queue: each for each in queues.list(connection)}
        rules = [ruled.get(name, Rules(name)) for name in sorted(ruled.keys() | queries.queues(connection))]
        pauses, now = queues.pauses(connection), queries.now(connection)
    if as_json:
        listed = [{"queue": each.queue, "rules": as_options(each)} for each in rules]
        click.echo(json.dumps({"queues": listed, "pauses": queue_report.pauses_as_json(pauses)}))
    else:
        queue_report.show_queues(rules, pauses, now)


def _pauses_of(connection: Connection, name: str) -> list[Pause]:
    return [each for each in queues.pauses(connection) if each.queue in (None, check_queue(name))]


def _show(connection: Connection, rules: Rules) -> None:
    queue_report.show_queue(rules, _pauses_of(connection, rules.queue), queries.now(connection))


@click.command("apply", short_help="Apply the rules declared in a file.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@settings_options("database_url", "forward_queues")
@click.option("--dry-run", is_flag=True, help="Show the changes without making them.")
@click.option("--prune", is_flag=True, help="Remove the rules of queues missing from the file.")
@as_json_option
def apply_file(settings: Settings, *, file: Path, dry_run: bool, prune: bool, as_json: bool) -> None:
    """Apply the rules declared in a TOML file in one transaction, and print the changes.

    The file has a table per queue, with the option names of `drain queue set`:

    \b
    [calls]
    running = 50
    rate = "100/s"
    weights = { acme = 3 }

    \b
    drain queue apply queues.toml --dry-run
    drain queue apply queues.toml --prune
    """  # noqa: D301
    wanted = declared.of_file(file, declared.read)
    for rules in wanted.values():
        rules.require_tracked(settings.forward_queues)
    with database(settings) as connection, connection.transaction():
        present = {rules.queue: rules for rules in queues.list(connection)}
        found = declared.differences(present, wanted, prune=prune)
        if not dry_run:
            for each in found:
                queues.replace(connection, each.after)
    if as_json:
        click.echo(queue_report.differences_as_json(found, applied=not dry_run))
        return
    queue_report.show_differences(found)
    verb = "would change" if dry_run else "changed"
    click.echo(f"{count(len(found), 'queue')} {verb}" if found else "nothing to change")
    kept = sorted(present.keys() - wanted.keys())
    if kept and not prune:
        click.echo(f"not in the file, unchanged: {', '.join(kept)} (--prune removes their rules)", err=True)


for command in (pause, resume, apply_file):
    queue.add_command(command)
