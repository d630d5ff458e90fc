"""`drain init` and `drain roles`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from drain.commands.database import database
from drain.config import Settings
from drain.database import roles, schema as versions
from drain.database.grants import DEFAULT_NAMES, TITLES
from drain.terminal.commandline import F, setting_option, settings_options


@click.command()
@setting_option("database_url")
@setting_option("schema")
@click.option(
    "--print", "only_print", is_flag=True, help="Print the SQL for psql instead, without connecting."
)
@click.option("--version", "to", type=int, help="With --print: target version; newest by default.")
@click.option("--from", "since", type=int, help="With --print: current version; empty database by default.")
def init(
    database_url: str | None, schema: str | None, *, only_print: bool, to: int | None, since: int | None
) -> None:
    """Create or upgrade the tables, in one transaction; safe to repeat.

    \b
    drain init
    drain init --print --from 1     the SQL to upgrade from version 1
    drain init --schema jobs        tables in their own schema
    """  # noqa: D301
    if only_print:
        script = versions.script(versions.VERSION if to is None else to, since or 0)
        click.echo(versions.path_to(schema) + script if schema else script, nl=False)
        return
    if to is not None or since is not None:
        raise click.UsageError("--version and --from require --print")
    settings = Settings.from_texts({"database_url": database_url, "schema": schema})
    version = versions.install(settings.database_url)
    click.echo(f"the schema is installed, version {version}")


def role_options(command: F) -> F:
    """Add an option for each role's name."""
    for role, name in reversed(DEFAULT_NAMES.items()):
        command = click.option(
            f"--{role}",
            default=name,
            show_default=True,
            metavar="NAME",
            help=f"Role for {TITLES[role]}",
        )(command)
    return command


@click.command("roles", short_help="Print the SQL for least-privilege roles.")
@click.argument("which", nargs=-1, metavar="[ROLE]...", type=click.Choice(list(DEFAULT_NAMES)))
@settings_options("database_url")
@role_options
@click.option("--owner", metavar="NAME", help="New owner of the tables; unchanged by default.")
@click.option("--apply", "is_applied", is_flag=True, help="Execute the SQL in one transaction.")
def show_roles(
    settings: Settings, *, which: Sequence[str], owner: str | None, is_applied: bool, **names: str
) -> None:
    """Print the SQL for least-privilege roles: application, enqueuer, worker, operator, inspection.

    The roles cannot log in: grant them to your login roles. --apply executes the SQL instead, as a superuser or the
    tables' owner with the right to create roles. Safe to repeat.

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
        click.echo(f"rights granted to {', '.join(dict.fromkeys(wanted.values()))}")
    else:
        click.echo(roles.script(installation, statements))
