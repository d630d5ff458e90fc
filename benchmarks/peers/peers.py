"""How each peer is run: in the fastest way that its own documentation describes.

Safe defaults are kept: no peer is configured to forget the jobs that a dead worker held.
"""

# One thing: the command lines of all systems, and the reasons for them.
from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers import environments
from benchmarks.peers.environments import NODE, python, script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PROCESSES = 2
AT_ONCE = 16


@dataclass(frozen=True)
class Program:
    """One program of a peer.

    Attributes:
        words: The command.
        is_worker: Whether it runs jobs; otherwise it only delivers them to workers.
    """

    words: list[str]
    is_worker: bool = True


@dataclass(frozen=True)
class Peer:
    """One way to run jobs.

    Attributes:
        name: Name in texts and in the JSON file.
        environment: Its virtual environment, and the file of its requirements; "" for our own.
        app: Its module in `apps`.
        programs: Programs that work on the queue, by the URL of Redis and the number of processes.
        at_once: Programs that hold 16 jobs at a time; None if another row covers this.
        why: How it is set up, and why.
        guess: First guess of its rate, in jobs a second that do nothing.
        wait: Its job that waits for 10 ms.
        update: Its job of one UPDATE.
        schedule: SQL that adds %s jobs for tomorrow; None if they are not in Postgres.
        read: SQL that reads its whole queue.
        unfinished: SQL that selects something while a job that has run is not yet recorded as finished.
        package: Its Node.js package.
    """

    name: str
    environment: str
    app: str
    programs: Callable[[str, int], list[Program]]
    at_once: Callable[[str], list[Program]] | None
    why: str
    guess: int
    wait: str = "wait"
    update: str = "update"
    schedule: str | None = None
    read: str | None = None
    unfinished: str | None = None
    package: str = ""

    @property
    def python(self) -> str:
        return python(self.environment)


DRAIN = "job-drain"
DRAIN_PSYCOPG = "job-drain, psycopg"
DRAIN_FLUSHED = "job-drain, flushed"
DRAIN_FLUSHED_PSYCOPG = "job-drain, psycopg, flushed"
DRAIN_SHARED = "job-drain, shared"
DRAIN_SHARED_PSYCOPG = "job-drain, psycopg, shared"
DRAIN_PROCESSES = "job-drain, 16 processes"
DRAIN_THREADS = "job-drain, 16 threads"
BARE = "no queue, bare loops"
SCHEDULED_FOR_TOMORROW = "now() + interval '1 day' + n * interval '1 ms'"


_RQ_OPTIONS = ["--quiet", "--config", "benchmarks.peers.apps.rq_app"]


def _rq(*words: str) -> Callable[[str, int], list[Program]]:
    return lambda url, processes: [
        Program([script("rq", "rq"), "worker", *words, *_RQ_OPTIONS, "--url", url, "default"])
        for _ in range(processes)
    ]


def _rq_pool(url: str, processes: int) -> list[Program]:
    words = [script("rq", "rq"), "worker-pool", "-n", str(processes), *_RQ_OPTIONS, "--url", url, "default"]
    return [Program(words)]


def _pgqueuer(*words: str) -> Callable[[str, int], list[Program]]:
    program = [script("pgqueuer", "pgq"), "run", "benchmarks.peers.apps.pgqueuer_app:main"]
    return lambda _, processes: [Program([*program, *words])] * processes


def _procrastinate(concurrency: int) -> Callable[[str, int], list[Program]]:
    program = [
        script("procrastinate", "procrastinate"),
        "--app=benchmarks.peers.apps.procrastinate_app.app",
        "worker",
        f"--concurrency={concurrency}",
    ]
    return lambda _, processes: [Program(program)] * processes


def _dramatiq(threads: int) -> Callable[[str, int], list[Program]]:
    program = [script("dramatiq", "dramatiq"), "benchmarks.peers.apps.dramatiq_app"]
    return lambda _, processes: [
        Program([*program, "--processes", str(processes), "--threads", str(threads)])
    ]


def _celery(_url: str, processes: int) -> list[Program]:
    program = [script("celery", "celery"), "--app=benchmarks.peers.apps.celery_app", "worker"]
    return [Program([*program, f"--concurrency={processes}", "--loglevel=WARNING"])]


def _drain(concurrency: int = 1, threads: int = 1) -> Callable[[str, int], list[Program]]:
    options = [f"--concurrency={concurrency}", f"--threads={threads}"]
    return lambda _, processes: [
        Program([*_DRAIN, "run", "--metrics-port", "0"], is_worker=False),
        Program([*_DRAIN, "work", f"--processes={processes}", *options, "default"]),
    ]


def _bare(_url: str, processes: int) -> list[Program]:
    return [Program([sys.executable, "-m", "benchmarks.peers.apps.bare_app"])] * processes


def _on_node(app: str, setting: str) -> Callable[[str, int], list[Program]]:
    return lambda _, processes: [
        Program(environments.node(app, "run", setting, str(slot), str(processes)))
        for slot in range(processes)
    ]


def _with(programs: Callable[[str, int], list[Program]], processes: int) -> Callable[[str], list[Program]]:
    return lambda url: programs(url, processes)


_DRAIN = [sys.executable, "-c", "from drain.__main__ import main; main()"]

# Pushes all jobs to Redis, even without a worker.
DRAIN_ALL = [Program([*_DRAIN, "run", "--metrics-port", "0", "--depth", "0"], is_worker=False)]

_UNFINISHED = "SELECT FROM inflight_jobs LIMIT 1"

OURS = Peer(
    name=DRAIN,
    environment="",
    app="drain_app",
    programs=_drain(),
    at_once=_with(_drain(AT_ONCE), 1),
    why=(
        "`drain run` and `drain work`; jobs that wait are `async def`, 16 in one process; the UPDATE is in "
        '`transaction()`, by SQLAlchemy, with `commit="grouped"`.'
    ),
    guess=20_000,
    wait="wait_async",
    update="update_grouped",
    schedule=(
        f"INSERT INTO staged_jobs (job_name, scheduled_at) SELECT 'noop', {SCHEDULED_FOR_TOMORROW} "
        "FROM generate_series(1, %s) AS n"
    ),
    read="SELECT count(*), max(length(job_args::text)) FROM staged_jobs",
    unfinished=_UNFINISHED,
)

RQ_SIMPLE = Peer(
    name="RQ, SimpleWorker",
    environment="rq",
    app="rq_app",
    programs=_rq("--worker-class", "rq.worker.SimpleWorker"),
    at_once=None,
    why="`rq worker`s that run jobs in their own process, RQ's fastest.",
    guess=800,
)
RQ_WORKER = Peer(
    name="RQ, Worker",
    environment="rq",
    app="rq_app",
    programs=_rq(),
    at_once=None,
    why="`rq worker`s with their defaults: they fork a process for each job, with the jobs' module already imported.",
    guess=150,
)
RQ_POOL = Peer(
    name="RQ, worker-pool",
    environment="rq",
    app="rq_app",
    programs=_rq_pool,
    at_once=_with(_rq_pool, AT_ONCE),
    why="`rq worker-pool` with its default, the worker that forks.",
    guess=150,
)
PGQUEUER = Peer(
    name="PgQueuer",
    environment="pgqueuer",
    app="pgqueuer_app",
    programs=_pgqueuer("--batch-size", "1000"),
    at_once=_with(_pgqueuer("--batch-size", "8", "--max-concurrent-tasks", "16"), 1),
    why=(
        "`pgq run --batch-size 1000` on asyncpg and uvloop, after `pgq autovac`; tables are durable by default. Its "
        "guide recommends larger batches for short jobs; with the 25 of its example, it runs a third as many."
    ),
    guess=30_000,
    schedule=(
        "INSERT INTO pgqueuer (priority, entrypoint, execute_after, status) "
        f"SELECT 0, 'noop', {SCHEDULED_FOR_TOMORROW}, 'queued' FROM generate_series(1, %s) AS n"
    ),
    read="SELECT count(*), max(length(payload)) FROM pgqueuer",
    unfinished="SELECT FROM pgqueuer WHERE status = 'picked' LIMIT 1",
)
PROCRASTINATE = Peer(
    name="Procrastinate",
    environment="procrastinate",
    app="procrastinate_app",
    programs=_procrastinate(10),
    at_once=_with(_procrastinate(AT_ONCE), 1),
    why="`procrastinate worker --concurrency 10`, woken by NOTIFY; finished jobs are kept by default.",
    guess=900,
    schedule=(
        "INSERT INTO procrastinate_jobs (queue_name, task_name, scheduled_at) "
        f"SELECT 'default', 'noop', {SCHEDULED_FOR_TOMORROW} FROM generate_series(1, %s) AS n"
    ),
    read="SELECT count(*), max(length(args::text)) FROM procrastinate_jobs",
    unfinished="SELECT FROM procrastinate_jobs WHERE status = 'doing' LIMIT 1",
)
DRAMATIQ = Peer(
    name="Dramatiq",
    environment="dramatiq",
    app="dramatiq_app",
    programs=_dramatiq(8),
    at_once=_with(_dramatiq(AT_ONCE), 1),
    why="`dramatiq --threads 8`, its default number of threads.",
    guess=4000,
)
CELERY = Peer(
    name="Celery",
    environment="celery",
    app="celery_app",
    programs=_celery,
    at_once=_with(_celery, AT_ONCE),
    why="`celery worker`, prefork, results ignored, no rate limits, 64 prefetched a process.",
    guess=1500,
)
GRAPHILE = Peer(
    name="Graphile Worker",
    environment=NODE,
    app="graphile_app",
    programs=_on_node("graphile_app.mjs", "defaults"),
    at_once=None,
    why="its defaults: one job at a time per process, fetched and deleted singly. No log line per job.",
    guess=1000,
    unfinished="SELECT FROM graphile_worker._private_jobs WHERE locked_at IS NOT NULL LIMIT 1",
    package="graphile-worker",
)
GRAPHILE_BATCHED = replace(
    GRAPHILE,
    name="Graphile Worker, batched",
    programs=_on_node("graphile_app.mjs", "batched"),
    at_once=_with(_on_node("graphile_app.mjs", "sixteen"), 1),
    why=(
        "`concurrentJobs: 24, localQueue: {size: 500}, completeJobBatchDelay: 0, failJobBatchDelay: 0`, the "
        "settings behind the 183,000 jobs a second on its performance page. A job counts as done before its "
        "deletion commits."
    ),
    guess=15_000,
)
PGBOSS = Peer(
    name="pg-boss",
    environment=NODE,
    app="pgboss_app",
    programs=_on_node("pgboss_app.mjs", "defaults"),
    at_once=None,
    why="its defaults: a worker takes one job every 2 s from its queue.",
    guess=1,
    unfinished="SELECT FROM pgboss.job WHERE state = 'active' AND name NOT LIKE '\\_\\_%' LIMIT 1",
    package="pg-boss",
)
PGBOSS_BATCHED = replace(
    PGBOSS,
    name="pg-boss, batched",
    programs=_on_node("pgboss_app.mjs", "batched"),
    at_once=_with(_on_node("pgboss_app.mjs", "sixteen"), 1),
    why=(
        "`batchSize: 1000, burstWhenBatchFull: true` and LISTEN/NOTIFY; a batch is completed as a whole, after all "
        "its jobs have run."
    ),
    guess=10_000,
)
PGBOSS_TRANSACTIONAL = replace(
    PGBOSS,
    name="pg-boss, transactional",
    programs=_on_node("pgboss_app.mjs", "transactional"),
    why="`transactional: true`: the handler's transaction commits the completion.",
)

IN_PYTHON = (OURS, RQ_SIMPLE, RQ_WORKER, RQ_POOL, PGQUEUER, PROCRASTINATE, DRAMATIQ, CELERY)
ALL = (*IN_PYTHON, GRAPHILE_BATCHED, GRAPHILE, PGBOSS_BATCHED, PGBOSS)
# Jobs that wait without `await` need processes.
OURS_IN_PROCESSES = replace(
    OURS,
    name=DRAIN_PROCESSES,
    at_once=_with(_drain(), AT_ONCE),
    why="`drain work --processes 16`, jobs that sleep.",
    wait="wait",
)
OURS_IN_THREADS = replace(
    OURS_IN_PROCESSES,
    name=DRAIN_THREADS,
    at_once=_with(_drain(threads=AT_ONCE), 1),
    why="`drain work --threads 16`, the same jobs in one process.",
)
# The same system with one kind of work.
OURS_ON_PSYCOPG = replace(
    OURS,
    name=DRAIN_PSYCOPG,
    update="update_grouped_psycopg",
    why="the UPDATE in `psycopg_transaction()`, without SQLAlchemy, as in the jobs of the peers.",
)
OURS_FLUSHED = replace(
    OURS, name=DRAIN_FLUSHED, update="update", why='`commit="flushed"`, the default: each commit waits.'
)
OURS_FLUSHED_ON_PSYCOPG = replace(
    OURS_ON_PSYCOPG,
    name=DRAIN_FLUSHED_PSYCOPG,
    update="update_psycopg",
    why='`psycopg_transaction()` with `commit="flushed"`.',
)
OURS_SHARED = replace(
    OURS, name=DRAIN_SHARED, update="update_shared", why='`commit="shared"`: up to 50 jobs in a transaction.'
)
OURS_SHARED_ON_PSYCOPG = replace(
    OURS_ON_PSYCOPG,
    name=DRAIN_SHARED_PSYCOPG,
    update="update_shared_psycopg",
    why='`psycopg_transaction()` with `commit="shared"`.',
)
# Upper bound of computing: only the jobs themselves cost time.
BARE_LOOPS = Peer(
    name=BARE,
    environment="",
    app="bare_app",
    programs=_bare,
    at_once=None,
    why="processes that call the job's function in a loop, alongside idle servers.",
    guess=20_000,
)
ALSO_UPDATING = (
    OURS_ON_PSYCOPG,
    OURS_FLUSHED,
    OURS_FLUSHED_ON_PSYCOPG,
    OURS_SHARED,
    OURS_SHARED_ON_PSYCOPG,
)
IN_POSTGRES = (OURS, PGQUEUER, PROCRASTINATE)


def versions(measured: Iterable[Peer] = ALL) -> list[str]:
    """Pinned versions: the first line of each requirements file, and Node.js packages."""
    peers = list(measured)
    names = sorted({peer.environment for peer in peers} - {""})
    files = [Path(__file__).parent / "requirements" / f"{name}.txt" for name in names]
    packages = sorted({peer.package for peer in peers} - {""})
    return [
        *(file.read_text(encoding="utf-8").split("\n", 1)[0].replace("==", " ") for file in files),
        *(f"{name} {environments.package(name)}" for name in packages),
    ]
