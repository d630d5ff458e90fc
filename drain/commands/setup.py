"""`drain init` and `drain roles`: the tables, and who may do what with them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from drain.commands.database import database
from drain.config import Settings
from drain.database import roles, schema
from drain.database.grants import DEFAULT_NAMES, TITLES
from drain.terminal.commandline import F, setting_option, settings_options


@click.command()
@setting_option("database_url")
@click.option(
    "--print", "only_print", is_flag=True, help="Print the SQL instead, for psql; no database is asked."
)
@click.option("--version", "to", type=int, help="With --print: of this version; of the newest by default.")
@click.option("--from", "since", type=int, help="With --print: of the way from this version.")
def init(database_url: str | None, *, only_print: bool, to: int | None, since: int | None) -> None:
    """Create the tables, or bring them up to date; safe to repeat.

    \b
    drain init
    drain init --print              what it would do in an empty database
    drain init --print --from 1     what it would do in one that has version 1
    """  # noqa: D301
    if only_print:
        click.echo(schema.script(schema.VERSION if to is None else to, since or 0), nl=False)
        return
    if to is not None or since is not None:
        raise click.UsageError("--version and --from go with --print")
    version = schema.install(Settings.from_texts({"database_url": database_url}).database_url)
    click.echo(f"the schema is in place, version {version}")


def role_options(command: F) -> F:
    """Give a command the name of each role as an option."""
    for role, name in reversed(DEFAULT_NAMES.items()):
        command = click.option(
            f"--{role}",
            default=name,
            show_default=True,
            metavar="NAME",
            help=f"Role for {TITLES[role]}",
        )(command)
    return command


@click.command("roles", short_help="Print the SQL for roles with the least rights.")
@click.argument("which", nargs=-1, metavar="[ROLE]...", type=click.Choice(list(DEFAULT_NAMES)))
@settings_options("database_url")
@role_options
@click.option(
    "--owner", metavar="NAME", help="Hand the tables over to this role; by default they stay where they are."
)
@click.option("--apply", "is_applied", is_flag=True, help="Execute it, in one transaction.")
def show_roles(
    settings: Settings, *, which: Sequence[str], owner: str | None, is_applied: bool, **names: str
) -> None:
    """Print the SQL that makes roles with the least rights: application, enqueuer, worker, inspection.

    They are roles that nobody logs in as: grant them to those that your programs log in as. What is printed is for
    psql, and does the same as --apply, which takes a superuser, or an owner of schema and tables who may create
    roles. Safe to repeat.

    \b
    drain roles | less
    drain roles --owner drain_owner --apply
    drain roles application --application shop_stages | psql
    """  # noqa: D301
    with database(settings) as connection:
        installation = roles.installation_of(connection)
        wanted = {role: names[role] for role in which or DEFAULT_NAMES}
        statements = roles.statements(installation, wanted, owner)
        if is_applied:
            roles.apply(connection, statements)
    if is_applied:
        click.echo(f"the roles have their rights: {', '.join(dict.fromkeys(wanted.values()))}")
    else:
        click.echo(roles.script(installation, statements))
