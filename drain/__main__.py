"""The `drain` command, put together from all groups of commands; also `python -m drain`."""

from __future__ import annotations

import click

from drain.commands.audit import audit_jobs
from drain.commands.cancel import cancel
from drain.commands.check import check
from drain.commands.cron import cron
from drain.commands.dead import dead
from drain.commands.demo import demo, drill
from drain.commands.dev import dev
from drain.commands.events import events
from drain.commands.explain import explain_job
from drain.commands.forecast import forecast
from drain.commands.jobs import list_jobs, show
from drain.commands.move import jobs
from drain.commands.prune import prune
from drain.commands.queue import queue
from drain.commands.rehearse import rehearse
from drain.commands.run import run
from drain.commands.setup import init, show_roles
from drain.commands.slo import slo
from drain.commands.stack import stack
from drain.commands.status import status
from drain.commands.top import top
from drain.commands.trace import trace
from drain.commands.web import web
from drain.commands.work import work
from drain.terminal.commandline import Group
from pipeline.commands import COMMANDS

# Headings of `drain --help`, each with its commands.
_SECTIONS = {
    "See that it works": ("demo", "drill"),
    "First steps, in this order": ("dev", "init", "run", "work"),
    "Look around": (
        *("status", "top", "list", "show", "explain", "forecast", "trace", "stack", "events"),
        *("slo", "audit", "check", "web"),
    ),
    "Operate": ("queue", "cron", "cancel", "jobs", "dead", "rehearse", "roles", "prune"),
    "In bulk, on Spark": ("backfill", "replay", "reconcile", "archive", "stats"),
}


@click.group(cls=Group, sections=_SECTIONS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="job-drain", prog_name="drain")
def main() -> None:
    """Jobs that commit with your data: staged in Postgres, drained into Redis, run by RQ workers.

    `drain COMMAND --help` explains a command and has examples. Exit codes: 0 done; 1 not done, and one line on
    standard error says why (a setting that cannot be used is one reason); 2 wrong usage.
    """


for command in (
    init,
    show_roles,
    run,
    work,
    status,
    top,
    list_jobs,
    show,
    explain_job,
    forecast,
    trace,
    stack,
    events,
    slo,
    audit_jobs,
    check,
    web,
    cron,
    cancel,
    jobs,
    dead,
    rehearse,
    queue,
    prune,
    dev,
    demo,
    drill,
    *COMMANDS,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
