"""How each peer is run: two worker processes everywhere, as its own documentation says it is fastest.

What is safe by default stays so: nobody is told to forget a job that a dead worker had in hand.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.peers.environments import python, script

if TYPE_CHECKING:
    from collections.abc import Callable

PROCESSES = 2
AT_ONCE = 16


@dataclass(frozen=True)
class Program:
    """One program of a peer.

    Attributes:
        words: The command.
        is_worker: It runs jobs; or else it only brings them to those who do.
    """

    words: list[str]
    is_worker: bool = True


@dataclass(frozen=True)
class Peer:
    """One way to run jobs.

    Attributes:
        name: For people, and in the JSON file.
        environment: Its virtual environment, and the file of its requirements; "" for our own.
        app: Its module in `apps`.
        programs: What is started to work on the queue, in two processes.
        at_once: What is started to have 16 jobs in hand at a time; None where that is another row's.
        why: How it is set up, and for what reason.
        guess: Jobs a second that do nothing: how many to begin with.
        wait: Its job that waits for 10 ms.
        update: Its job of one UPDATE.
        schedule: SQL that adds %s jobs for tomorrow; None if they are not in Postgres.
        read: SQL that reads the whole of its queue.
        unfinished: SQL that asks whether a job that has run is still to be noted as finished.
    """

    name: str
    environment: str
    app: str
    programs: Callable[[str], list[Program]]
    at_once: Callable[[str], list[Program]] | None
    why: str
    guess: int
    wait: str = "wait"
    update: str = "update"
    schedule: str | None = None
    read: str | None = None
    unfinished: str | None = None

    @property
    def python(self) -> str:
        return python(self.environment)


DRAIN = "job-drain"
DRAIN_PSYCOPG = "job-drain, psycopg"
DRAIN_PROCESSES = "job-drain, 16 processes"
SCHEDULED_FOR_TOMORROW = "now() + interval '1 day' + n * interval '1 ms'"


_RQ_OPTIONS = ["--quiet", "--config", "benchmarks.peers.apps.rq_app"]


def _rq(*words: str, processes: int = PROCESSES) -> Callable[[str], list[Program]]:
    return lambda url: [
        Program([script("rq", "rq"), "worker", *words, *_RQ_OPTIONS, "--url", url, "default"])
        for _ in range(processes)
    ]


def _rq_pool(processes: int) -> Callable[[str], list[Program]]:
    return lambda url: [
        Program(
            [script("rq", "rq"), "worker-pool", "-n", str(processes), *_RQ_OPTIONS, "--url", url, "default"]
        )
    ]


def _pgqueuer(processes: int, *words: str) -> Callable[[str], list[Program]]:
    program = [script("pgqueuer", "pgq"), "run", "benchmarks.peers.apps.pgqueuer_app:main"]
    return lambda _: [Program([*program, *words])] * processes


def _procrastinate(processes: int, concurrency: int) -> Callable[[str], list[Program]]:
    program = [
        script("procrastinate", "procrastinate"),
        "--app=benchmarks.peers.apps.procrastinate_app.app",
        "worker",
        f"--concurrency={concurrency}",
    ]
    return lambda _: [Program(program)] * processes


def _dramatiq(processes: int, threads: int) -> Callable[[str], list[Program]]:
    program = [script("dramatiq", "dramatiq"), "benchmarks.peers.apps.dramatiq_app"]
    return lambda _: [Program([*program, "--processes", str(processes), "--threads", str(threads)])]


def _celery(concurrency: int) -> Callable[[str], list[Program]]:
    program = [script("celery", "celery"), "--app=benchmarks.peers.apps.celery_app", "worker"]
    return lambda _: [Program([*program, f"--concurrency={concurrency}", "--loglevel=WARNING"])]


def _drain(processes: int, concurrency: int = 1) -> Callable[[str], list[Program]]:
    options = [f"--processes={processes}", f"--concurrency={concurrency}"]
    return lambda _: [
        Program([*_DRAIN, "run", "--metrics-port", "0"], is_worker=False),
        Program([*_DRAIN, "work", *options, "default"]),
    ]


_DRAIN = [sys.executable, "-c", "from drain.__main__ import main; main()"]

_UNFINISHED = "SELECT FROM inflight_jobs LIMIT 1"

OURS = Peer(
    name=DRAIN,
    environment="",
    app="drain_app",
    programs=_drain(PROCESSES),
    at_once=_drain(1, AT_ONCE),
    why="`drain run`, and `drain work --processes 2`; jobs that wait are `async def`, 16 in one process.",
    guess=20_000,
    wait="wait_async",
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
    why="two `rq worker`, which run jobs in their own process: RQ's fastest.",
    guess=800,
)
RQ_WORKER = Peer(
    name="RQ, Worker",
    environment="rq",
    app="rq_app",
    programs=_rq(),
    at_once=None,
    why="two `rq worker` as they are: a process is forked for each job, the jobs' module imported before.",
    guess=150,
)
RQ_POOL = Peer(
    name="RQ, worker-pool",
    environment="rq",
    app="rq_app",
    programs=_rq_pool(PROCESSES),
    at_once=_rq_pool(AT_ONCE),
    why="`rq worker-pool -n 2`, with its default, the worker that forks.",
    guess=150,
)
PGQUEUER = Peer(
    name="PgQueuer",
    environment="pgqueuer",
    app="pgqueuer_app",
    programs=_pgqueuer(PROCESSES, "--batch-size", "1000"),
    at_once=_pgqueuer(1, "--batch-size", "8", "--max-concurrent-tasks", "16"),
    why=(
        "two `pgq run --batch-size 1000` on asyncpg and uvloop, after `pgq autovac`, tables durable as by default. "
        "Its guide says larger for short jobs, its example says 25, which runs a third as many."
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
    programs=_procrastinate(PROCESSES, 10),
    at_once=_procrastinate(1, AT_ONCE),
    why="two `procrastinate worker --concurrency 10`, woken by NOTIFY, finished jobs kept as by default.",
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
    programs=_dramatiq(PROCESSES, 8),
    at_once=_dramatiq(1, AT_ONCE),
    why="`dramatiq --processes 2 --threads 8`: a process for each core, and its own number of threads.",
    guess=4000,
)
CELERY = Peer(
    name="Celery",
    environment="celery",
    app="celery_app",
    programs=_celery(PROCESSES),
    at_once=_celery(AT_ONCE),
    why="`celery worker --concurrency 2`, prefork, results ignored, no rate limits, 64 prefetched a process.",
    guess=1500,
)

ALL = (OURS, RQ_SIMPLE, RQ_WORKER, RQ_POOL, PGQUEUER, PROCRASTINATE, DRAMATIQ, CELERY)
# Jobs that wait without `await` want processes.
OURS_IN_PROCESSES = Peer(
    name=DRAIN_PROCESSES,
    environment="",
    app="drain_app",
    programs=_drain(AT_ONCE),
    at_once=_drain(AT_ONCE),
    why="`drain work --processes 16`, jobs that sleep.",
    guess=20_000,
)
# The same with one kind of work.
OURS_ON_PSYCOPG = replace(
    OURS,
    name=DRAIN_PSYCOPG,
    update="update_psycopg",
    why="the same, its UPDATE in `psycopg_transaction()`: without SQLAlchemy, as in the jobs of the peers.",
)
IN_POSTGRES = (OURS, PGQUEUER, PROCRASTINATE)


def versions() -> list[str]:
    """What is measured, as pinned: the first line of each requirements file."""
    files = sorted((Path(__file__).parent / "requirements").glob("*.txt"))
    return [file.read_text(encoding="utf-8").split("\n", 1)[0].replace("==", " ") for file in files]
