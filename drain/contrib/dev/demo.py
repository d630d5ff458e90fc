"""`drain demo` and `drain drill`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from drain.terminal.commandline import as_json_option


@click.command(short_help="Run ten thousand real jobs and prove none was lost.")
@as_json_option
def demo(*, as_json: bool) -> None:
    """Index Python's documentation with ten thousand real jobs, and prove that none was lost.

    Starts and stops its own servers, enqueuer and workers. Needs the extra [servers], or both servers on PATH. Exit
    code 1: a job was lost, or ran for a rolled-back transaction.

    \b
    drain demo
    drain demo --json | jq .
    """  # noqa: D301
    _find_examples()
    from docsearch.demo import main as run_demo

    sys.exit(run_demo(as_json=as_json))


@click.command(short_help="Break something on purpose and prove no job was harmed.")
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="Run all drills and print a summary.")
@as_json_option
def drill(name: str | None, *, everything: bool, as_json: bool) -> None:
    """Break something on purpose, and prove from the tables that no job was harmed.

    Starts its own servers, enqueuers and workers; prints events as JSON lines. Exit code 1: a job was harmed, or the
    fault did not happen.

    \b
    lease-race        a worker outlives its lease while another runs the job
    kill-enqueuer     the leader is killed under load, and a standby takes over
    kill-worker       a worker is killed while it runs a job
    flush-redis       Redis loses thousands of queued jobs under load
    restart-postgres  PostgreSQL crashes under load, and restarts
    zombie-leader     a leader is suspended in a batch, and resumes too late
    late-commit       a job commits after one with a higher id has finished

    \b
    drain drill kill-worker
    drain drill --all
    """  # noqa: D301
    _find_examples()
    from drills.catalogue import DRILLS, main as run_drills

    if everything and name:
        raise click.UsageError("either name one drill or --all, not both")
    if not everything and name not in DRILLS:
        wrong = f"{name!r} is not a drill; " if name else ""
        raise click.UsageError(f"{wrong}name one, or --all: {', '.join(DRILLS)}")
    sys.exit(run_drills([name] if name else list(DRILLS), as_json=as_json))


def _find_examples() -> None:
    beside_the_packages = Path(__file__).parents[3] / "examples"
    in_the_wheel = Path(__file__).parents[2] / "examples"
    sys.path.insert(0, str(in_the_wheel if in_the_wheel.exists() else beside_the_packages))
