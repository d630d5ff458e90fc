"""`drain queue apply`: rules of queues from a file, for version control."""

from __future__ import annotations

from pathlib import Path

import click

from drain import queues
from drain.admission import declared
from drain.admission.rules import Rules
from drain.commands.database import database
from drain.config import Settings
from drain.errors import ConfigError
from drain.formatting import count, visible
from drain.terminal import queue_report
from drain.terminal.commandline import as_json_option, settings_options


@click.command("apply", short_help="Give queues the rules that a file declares.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@settings_options("database_url", "forward_queues")
@click.option("--dry-run", is_flag=True, help="Print the difference, and change nothing.")
@click.option("--prune", is_flag=True, help="Take the rules off queues that the file does not name.")
@as_json_option
def apply_file(settings: Settings, *, file: Path, dry_run: bool, prune: bool, as_json: bool) -> None:
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
