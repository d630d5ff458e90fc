"""The `drain` command; also `python -m drain`."""

from __future__ import annotations

import click

from drain.terminal.commandline import Group
from drain.terminal.lazy_commands import LazyCommands

# Others are entry points in the group `drain.commands`.
_CORE = {
    "init": "drain.commands.setup:init",
    "roles": "drain.commands.setup:show_roles",
    "run": "drain.commands.run:run",
    "work": "drain.commands.work:work",
    "status": "drain.commands.status:status",
    "top": "drain.commands.top:top",
    "list": "drain.commands.jobs:list_jobs",
    "show": "drain.commands.jobs:show",
    "explain": "drain.commands.explain:explain_job",
    "trace": "drain.commands.trace:trace",
    "stack": "drain.commands.stack:stack",
    "audit": "drain.commands.audit:audit_jobs",
    "queue": "drain.commands.queue:queue",
    "flow": "drain.commands.flow:flow",
    "cron": "drain.commands.cron:cron",
    "cancel": "drain.commands.cancel:cancel",
    "emit": "drain.commands.emit:emit",
    "jobs": "drain.commands.move:jobs",
    "dead": "drain.commands.dead:dead",
    "prune": "drain.commands.prune:prune",
}
# Sections of `drain --help`.
_SECTIONS = {
    "Try it": ("demo", "drill"),
    "Get started": ("dev", "init", "run", "work"),
    "Inspect": (
        *("status", "top", "list", "show", "explain", "forecast", "trace", "stack", "events"),
        *("slo", "audit", "check", "web"),
    ),
    "Operate": ("queue", "flow", "cron", "cancel", "emit", "jobs", "dead", "rehearse", "roles", "prune"),
    "Bulk work on Spark": ("backfill", "replay", "reconcile", "archive", "stats"),
}


@click.group(
    cls=Group,
    commands=LazyCommands(_CORE),
    sections=_SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="job-drain", prog_name="drain")
def main() -> None:
    """Jobs that commit with your data, from PostgreSQL through Redis to workers.

    `drain COMMAND --help` shows examples. Exit codes: 0 success; 1 failure, with one line on standard error; 2 wrong
    usage. Some commands define others.
    """


if __name__ == "__main__":
    main()
