"""The `drain` command, put together; also `python -m drain`."""

from __future__ import annotations

import click

from drain.commandline import Group
from drain.commands.audit import audit_jobs
from drain.commands.dead import dead
from drain.commands.demo import demo, drill
from drain.commands.dev import dev
from drain.commands.jobs import list_jobs, show
from drain.commands.run import run
from drain.commands.setup import init, show_roles
from drain.commands.status import status
from drain.commands.work import work
from pipeline.commands import COMMANDS


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="job-drain", prog_name="drain")
def main() -> None:
    """Jobs that commit with your data: staged in Postgres, drained into Redis, run by RQ workers.

    \b
    Try it:        drain demo, drain drill --all
    First steps:   drain dev            PostgreSQL and Redis in the foreground; prints two exports
                   drain init           create the tables
                   drain roles          SQL for roles with the least rights
                   drain run            the enqueuer
                   drain work mail      a worker on the queue "mail"
    Look around:   drain status, drain list, drain show
    Check it:      drain audit           exits 1 if a job is lost, doubled or stuck
    In bulk:       drain backfill, drain reconcile, drain archive, drain stats    (on Spark)
    Clean up:      drain dead list, drain dead retry, drain dead discard

    Exit codes: 0 done, 1 it could not be done (one line says why), 2 wrong usage.
    """  # noqa: D301  (click wants the backspace character itself)


for command in (
    init,
    show_roles,
    run,
    work,
    status,
    list_jobs,
    show,
    audit_jobs,
    dead,
    dev,
    demo,
    drill,
    *COMMANDS,
):
    main.add_command(command)


if __name__ == "__main__":
    main()
