"""`drain queue`: rules and pauses of queues."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from drain import queues
from drain.admission import declared
from drain.admission.rules import Rules, check_queue
from drain.commands.database import database, hint_at_unknown
from drain.config import Settings
from drain.database.postgres import Connection
from drain.errors import ConfigError, DrainError
from drain.tables import queries
from drain.tables.pauses import Pause
from drain.terminal import queue_report
from drain.terminal.commandline import F, as_json_option, settings_options
from drain.visible import visible
from drain.wording import count, seconds

# Word that takes a rule off.
_OFF = "none"


class _Duration(click.ParamType):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            return seconds(str(value))
        except ValueError as error:
            self.fail(f"{error}, not as {value!r}", param, ctx)


class _Limit(click.IntRange):
    name = "limit"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        # Python would also read the digits of other scripts, and 1_0.
        if not re.fullmatch("-?[0-9]+", str(value)):
            self.fail(f"{value!r} is neither a whole number nor {_OFF!r}", param, ctx)
        return super().convert(value, param, ctx)


class _OrOff(click.ParamType):
    """A value that may also be the word that takes the rule off, which becomes that word."""

    def __init__(self, kind: click.ParamType) -> None:
        self.name = kind.name
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == _OFF else self._kind.convert(value, param, ctx)


_A_LIMIT = _OrOff(_Limit(1, 2**31 - 1))
_A_RATE = _OrOff(click.STRING)


@click.group()
def queue() -> None:
    """Edit the rules of queues, pause and resume.

    Rules say how many jobs of a queue run at a time, how many begin in a time, and in which order. The leader
    follows within a second. A queue without rules is not limited.

    \b
    drain queue set calls --running 50 --rate 100/s
    drain queue pause calls --key acme --for 10m --reason "they asked for it"
    drain queue list
    drain queue apply queues.toml --dry-run
    """  # noqa: D301


def rule_options(command: F) -> F:
    """Add an option for each rule to a command."""
    for option in (
        click.option(
            "--running", type=_A_LIMIT, metavar="N", help="Upper bound of the jobs that run at a time."
        ),
        click.option(
            "--running-per-key", type=_A_LIMIT, metavar="N", help="The same for the jobs of each key."
        ),
        click.option(
            "--rate", type=_A_RATE, metavar="RATE", help="Jobs that begin in a time: 100/s, 10/min, 5/h, 1/d."
        ),
        click.option(
            "--rate-per-key", type=_A_RATE, metavar="RATE", help="The same for the jobs of each key."
        ),
        click.option(
            "--burst", type=_A_LIMIT, metavar="N", help="Jobs that may begin at once after a pause."
        ),
        click.option("--fair/--no-fair", default=None, help="Keys take turns."),
        click.option(
            "--weight",
            "weights",
            multiple=True,
            metavar="KEY=N",
            help="Turns of a key, 1 by default; may be repeated.",
        ),
        click.option(
            "--ordered/--no-ordered", default=None, help="A key's jobs run one at a time, by their ids."
        ),
        click.option(
            "--on-dead",
            type=_OrOff(click.Choice(["hold", "skip"])),
            metavar="[hold|skip]",
            help="When a job of an ordered key is dead, the others wait or go on.",
        ),
        click.option(
            "--aging",
            type=_OrOff(_Duration()),
            metavar="TIME",
            help="Time of waiting that counts as a step of priority: 60s.",
        ),
    )[::-1]:
        command = option(command)
    return command


@queue.command("set", short_help="Change rules of a queue.")
@click.argument("name", metavar="QUEUE")
@settings_options("database_url")
@rule_options
def set_rules(settings: Settings, *, name: str, weights: Sequence[str], **given: Any) -> None:
    """Change rules of a queue. Rules that are not given stay as they are, and "none" takes a rule off.

    \b
    drain queue set calls --running 50 --running-per-key 4
    drain queue set calls --rate 100/s --rate-per-key 10/min --burst 20
    drain queue set calls --fair --weight acme=3
    drain queue set events --ordered --on-dead skip
    drain queue set calls --running none --no-fair --weight none
    """  # noqa: D301
    options = {rule: None if value == _OFF else value for rule, value in given.items() if value is not None}
    with database(settings) as connection:
        with connection.transaction():
            if weights:
                options["weights"] = _weights(queues.show(connection, name) or Rules(name), weights)
            rules = queues.change(connection, name, options)
        _show(connection, rules)
        hint_at_unknown([name], queries.queues(connection))


def _weights(rules: Rules, given: Sequence[str]) -> dict[str, float]:
    """Return the weights of a queue, changed as the options say."""
    weights = {} if _OFF in given else dict(rules.weights)
    for each in given:
        if each == _OFF:
            continue
        key, _, number = each.rpartition("=")
        if not key or not re.fullmatch(rf"-?[0-9]+(\.[0-9]+)?|{_OFF}", number):
            raise ConfigError(f"a weight is written as KEY=N, such as acme=3, not as '{visible(each)[:50]}'")
        weights.pop(key, None)
        if number != _OFF:
            weights[key] = float(number) if "." in number else int(number)
    return weights


@queue.command("unset", short_help="Take all rules off queues.")
@click.argument("names", metavar="QUEUE...", nargs=-1, required=True)
@settings_options("database_url")
def unset_rules(settings: Settings, *, names: Sequence[str]) -> None:
    """Take all rules off queues. Their pauses stay.

    \b
    drain queue unset calls
    """  # noqa: D301
    with database(settings) as connection, connection.transaction():
        without = [name for name in names if not queues.unset(connection, name)]
        if without:
            raise DrainError(f"no rules to take off: {', '.join(without)}; nothing was done")
    click.echo(f"no rules: {', '.join(names)}")


@queue.command("show", short_help="Show the rules and pauses of one queue.")
@click.argument("name", metavar="QUEUE")
@settings_options("database_url")
@as_json_option
def show_rules(settings: Settings, *, name: str, as_json: bool) -> None:
    """Show the rules of one queue, and the pauses that apply to it or to jobs of it.

    \b
    drain queue show calls
    drain queue show calls --json | jq .rules.running
    """  # noqa: D301
    with database(settings) as connection:
        rules = queues.show(connection, name)
        pauses = _pauses_of(connection, name)
        if rules is None and not pauses:
            hint_at_unknown([name], queries.queues(connection))
        if as_json:
            click.echo(json.dumps(queue_report.queue_as_json(rules or Rules(name), pauses)))
        else:
            queue_report.show_queue(rules or Rules(name), pauses, queries.now(connection))


@queue.command("list", short_help="List the queues that have rules, and all pauses.")
@settings_options("database_url")
@as_json_option
def list_rules(settings: Settings, *, as_json: bool) -> None:
    """List the queues that have rules, and all pauses.

    \b
    drain queue list
    drain queue list --json | jq '.pauses[] | select(.key == "acme")'
    """  # noqa: D301
    with database(settings) as connection:
        rules, pauses, now = queues.list(connection), queues.pauses(connection), queries.now(connection)
    if as_json:
        listed = [{"queue": each.queue, **queue_report.queue_as_json(each, [])} for each in rules]
        for each in listed:
            del each["pauses"]
        click.echo(json.dumps({"queues": listed, "pauses": queue_report.pauses_as_json(pauses)}))
    else:
        queue_report.show_queues(rules, pauses, now)


def named_options(command: F) -> F:
    """Add the options that name what is paused to a command: a queue, a job name, a key."""

    def with_names(*, name: str | None, **given: Any) -> Any:
        if name is None and given["job"] is None and given["key"] is None:
            raise click.UsageError("name a queue, --job or --key")
        return command(name=name, **given)

    with_names.__name__, with_names.__doc__ = command.__name__, command.__doc__
    with_names.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--key", metavar="KEY", help="Only jobs of this key."),
        click.option("--job", metavar="NAME", help="Only jobs of this job name."),
        click.argument("name", metavar="[QUEUE]", required=False),
    ):
        with_names = option(with_names)
    return with_names  # type: ignore[return-value]


@queue.command("pause", short_help="Pause a queue, a job name or a key.")
@settings_options("database_url")
@click.option(
    "--for", "lasts", type=_Duration(), metavar="TIME", help="End by itself after this time: 10m, 2h, 1d."
)
@click.option("--reason", help="Sentence for the people who will ask why.")
@named_options
def pause(
    settings: Settings,
    *,
    name: str | None,
    job: str | None,
    key: str | None,
    lasts: float | None,
    reason: str | None,
) -> None:
    """Pause a queue, the jobs of a name, or a key: within a second nothing of it starts any more.

    Jobs that run already go on, and applications go on staging. What is given together has to apply together: a queue
    and a key pause that key in that queue. Without --for, the pause ends with `drain queue resume`.

    \b
    drain queue pause calls
    drain queue pause calls --key acme --for 10m --reason "their server is down"
    drain queue pause --job shop.jobs.send_receipt
    """  # noqa: D301
    with database(settings) as connection:
        queues.pause(connection, name, job=job, key=key, until=lasts, reason=reason)
        if name is not None:
            hint_at_unknown([name], queries.queues(connection))
        if key is not None and not queries.is_known_key(connection, key):
            click.echo(f"key {key!r} is not known here: no job of it is staged, in flight or dead", err=True)
    click.echo(f"paused: {_words(name, job, key)}")


@queue.command("resume", short_help="End a pause.")
@settings_options("database_url")
@named_options
def resume(settings: Settings, *, name: str | None, job: str | None, key: str | None) -> None:
    """End the pause of exactly what is named. Jobs that it held start again within a second.

    \b
    drain queue resume calls
    drain queue resume calls --key acme
    """  # noqa: D301
    words = _words(name, job, key)
    with database(settings) as connection:
        if not queues.resume(connection, name, job=job, key=key):
            raise DrainError(f"not paused: {words}; `drain queue list` shows what is")
        others = [each for each in queues.pauses(connection) if name is not None and each.queue == name]
    click.echo(f"resumed: {words}")
    if others:
        click.echo(
            f"{count(len(others), 'other pause')} of queue {name}; `drain queue show {name}` shows them"
        )


@queue.command("apply", short_help="Give queues the rules that a file declares.")
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@settings_options("database_url")
@click.option("--dry-run", is_flag=True, help="Print the difference, and change nothing.")
@click.option("--prune", is_flag=True, help="Take the rules off queues that the file does not name.")
@as_json_option
def apply(settings: Settings, *, file: Path, dry_run: bool, prune: bool, as_json: bool) -> None:
    """Give queues exactly the rules that a TOML file declares, in one transaction, and print the difference.

    The file has a table for each queue, and a line for each rule, by the names of the options of `drain queue set`:

    \b
    [calls]
    running = 50
    rate = "100/s"
    fair = true
    weights = { acme = 3 }

    \b
    drain queue apply queues.toml --dry-run
    drain queue apply queues.toml --prune
    """  # noqa: D301
    wanted = _read(file)
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
        click.echo(
            f"not in the file, and as before: {', '.join(kept)} (--prune takes their rules off)", err=True
        )


def _read(file: Path) -> dict[str, Rules]:
    try:
        return declared.read(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"{visible(str(file))}: it is no text in UTF-8") from None
    except ConfigError as error:
        raise ConfigError(f"{visible(str(file))}: {error}") from None


def _pauses_of(connection: Connection, name: str) -> list[Pause]:
    return [each for each in queues.pauses(connection) if each.queue in (None, check_queue(name))]


def _show(connection: Connection, rules: Rules) -> None:
    queue_report.show_queue(rules, _pauses_of(connection, rules.queue), queries.now(connection))


def _words(name: str | None, job: str | None, key: str | None) -> str:
    parts = (("queue", name), ("job", job), ("key", key))
    return visible(" ".join(f"{kind} {text}" for kind, text in parts if text is not None))
