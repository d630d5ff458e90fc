"""`drain init` and `drain roles`: the tables, and rights on them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from drain.commands.database import database
from drain.config import Settings
from drain.database import roles
from drain.database import schema as versions
from drain.database.grants import DEFAULT_NAMES, TITLES
from drain.terminal.commandline import F, setting_option, settings_options


@click.command()
@setting_option("database_url")
@setting_option("schema")
@click.option(
    "--print", "only_print", is_flag=True, help="Print the SQL for psql instead; connects to no database."
)
@click.option("--version", "to", type=int, help="With --print: version to reach; by default the newest.")
@click.option(
    "--from", "since", type=int, help="With --print: version to start from; by default an empty database."
)
def init(
    database_url: str | None, schema: str | None, *, only_print: bool, to: int | None, since: int | None
) -> None:
    """Create the tables, or bring them up to date; safe to repeat.

    The change of the tables is one transaction: after an error the database is unchanged.

    \b
    drain init
    drain init --print              the SQL for an empty database
    drain init --print --from 1     the SQL for a database with version 1
    drain init --schema jobs        tables in a schema of their own
    """  # noqa: D301
    if only_print:
        script = versions.script(versions.VERSION if to is None else to, since or 0)
        click.echo(versions.path_to(schema) + script if schema else script, nl=False)
        return
    if to is not None or since is not None:
        raise click.UsageError("--version and --from go with --print")
    settings = Settings.from_texts({"database_url": database_url, "schema": schema})
    version = versions.install(settings.database_url)
    click.echo(f"the schema is in place, version {version}")


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


@click.command("roles", short_help="Print the SQL for roles with the least rights.")
@click.argument("which", nargs=-1, metavar="[ROLE]...", type=click.Choice(list(DEFAULT_NAMES)))
@settings_options("database_url")
@role_options
@click.option(
    "--owner", metavar="NAME", help="Role that becomes the owner of the tables; by default the owner stays."
)
@click.option("--apply", "is_applied", is_flag=True, help="Execute the SQL, in one transaction.")
def show_roles(
    settings: Settings, *, which: Sequence[str], owner: str | None, is_applied: bool, **names: str
) -> None:
    """Print the SQL for roles with the least rights: application, enqueuer, worker, operator, inspection.

    The roles cannot log in: grant them to the roles that your programs log in as. The SQL is for psql. --apply
    executes it instead, and needs a superuser, or an owner of schema and tables who may create roles. Both are safe to
    repeat.

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
