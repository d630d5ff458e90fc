"""Jobs that are staged in your own Postgres transaction, and drained into Redis once it has committed.

    from drain import stage

    with Session(engine) as session, session.begin():
        session.add(order)
        stage(session, "shop.jobs.send_receipt", [order.id])

All that an application needs is imported from here: `job`, `stage` and `stage_many`, `astage` and `astage_many`;
`codec`; `schedule` and `unschedule`; `cancel`; `state`, `result`, `aresult` and `progress`; in a running job
`current_job`, `transaction` and `async_transaction`; what a job raises, `Retry`, `Defer`, `RateLimited` and `Dead`;
`queues`, for the rules of queues; and the errors.

The packages, in the order in which a job passes:

    drain.jobs            `@job` registers a function under a name; `stage` inserts a row into `staged_jobs`
    drain.tables          every statement that moves a row from table to table, by the table that the row leaves
    drain.enqueuer        one leader moves rows that are committed and due, pushes them, and pushes again what was lost
    drain.wire            RQ's keys and formats: the enqueuer's producer, and the workers' consumer
    workers.process       fetches ids from Redis in batches, and claims the jobs in PostgreSQL
    workers.lease         keeps the claim of a job alive until its outcome is recorded
    workers.execution     one attempt: call the function, decide what its outcome means, record that
    workers.context       what a running job may ask for: its claim, and a transaction
    workers.handover      recovery of the jobs that a dead process has left behind
    workers.measures      numbers of the jobs that have ended, for the metrics
    workers.supervisor    starts the processes of one `drain work`, and replaces them

Beside that way:

    drain.django          Django: backend of tasks, `drain.django.transaction()`, programs of manage.py, admin
    drain.database        connections to PostgreSQL, poolers, locks, schema, roles
    drain.service         HTTP and systemd, for the programs that watch a long-running process
    drain.audit           the proof that no job is lost, doubled or stuck
    drain.check           one look at the whole system, for a program that watches it
    drain.events          events of jobs, as they happen
    drain.explain         the one thing for which a job waits now
    drain.slo             service level objectives: rules for Prometheus, and how many jobs have met them lately
    drain.scaling         the number of workers that a queue needs now
    drain.capacity        free and busy workers of queues: the definitions
    drain.forecast        when a backlog ends, simulated
    drain.admission       which of the due rows may leave `staged_jobs` now, as the rules of their queues say
    drain.queues          rules and pauses of queues, changed in the transaction of an application
    drain.commands        the command line, which `drain.__main__` puts together
    drain.terminal        how the commands read their options and print for people
    drain.alembic         job-drain's tables among the migrations of an application that has Alembic
    drain.dev             `drain dev`: all programs in one terminal
    drain.telemetry       jobs in OpenTelemetry and in Sentry, for applications that ask for it
    drain.web             `drain web`: the page, for a browser, or mounted in an application
    drain.rehearsal       today's code on jobs that have ended, always rolled back
    drain.testing         jobs in tests, within the test's own transaction; a plugin of pytest
    drain.embedded        PostgreSQL and Redis, started for `drain dev`, the demo and the tests
    workers.plain         RQ jobs that were not staged
    pipeline              work on millions of jobs at once, on Spark

Modules that every package may use:

    hooks                 functions of an application around each attempt, at staging, and at the end of a job
    config, urls          settings, from the environment or the command line; database URLs of other drivers
    health                functions of an application that hear of a process that fails, and that it is well again
    errors                every error that is raised on purpose
    log, metrics          log lines; names of all metrics
    buckets               upper bounds of the buckets of workers' histograms
    archive               rows of the archive, read without Spark
    failpoints            instants at which a test kills a process
    packages              applications whose packages have the names of ours
    extras                the command that installs an optional package
    wording, visible      numbers and times for people; texts of others, made harmless for a terminal
    wakeup                ends the wait of one thread, without a lock
    frames                tracebacks as texts: the innermost frame in the application's own code
    rq, rq_settings       entry points by which RQ's own tools and workers find tracked jobs

What always holds: no job is seen before its transaction has committed, nor after it has rolled back; every committed
job ends in `finished_jobs` or `dead_jobs`, whatever process or server dies on the way; it is finished once. Redis holds
nothing that could not be rebuilt from `inflight_jobs`. The modules of `drain` never import `workers` or `pipeline`; the
command line alone does.
"""

import importlib
from typing import TYPE_CHECKING, Any

from drain.errors import (
    DeadJobError,
    DrainError,
    IdempotencyConflictError,
    NoResultError,
    NotFinishedError,
    ResultError,
    SelectionError,
    StageError,
    UnknownJobError,
)
from drain.health import HealthChange, on_recovery, on_unhealthy
from drain.hooks import around, on_dead, on_finish, on_stage
from drain.jobs.async_staging import astage, astage_many
from drain.jobs.cancelling import Cancelled, cancel
from drain.jobs.codecs import codec
from drain.jobs.registry import job
from drain.jobs.results import JobState, aresult, astate, result, state
from drain.jobs.schedules import schedule, unschedule
from drain.jobs.staging import stage, stage_many

if TYPE_CHECKING:
    from drain import queues as queues
    from drain.jobs.progress import Progress, progress
    from workers import (
        CurrentJob,
        Dead,
        Defer,
        JobCancelledError,
        JobTimeoutError,
        LeaseLostError,
        NoCurrentJobError,
        RateLimited,
        Retry,
        TransactionError,
        UnfitResultError,
        async_psycopg_transaction,
        async_transaction,
        current_job,
        psycopg_transaction,
        transaction,
    )

__all__ = [
    "Cancelled",
    "CurrentJob",
    "Dead",
    "DeadJobError",
    "Defer",
    "DrainError",
    "HealthChange",
    "IdempotencyConflictError",
    "JobCancelledError",
    "JobState",
    "JobTimeoutError",
    "LeaseLostError",
    "NoCurrentJobError",
    "NoResultError",
    "NotFinishedError",
    "Progress",
    "RateLimited",
    "ResultError",
    "Retry",
    "SelectionError",
    "StageError",
    "TransactionError",
    "UnfitResultError",
    "UnknownJobError",
    "aresult",
    "around",
    "astage",
    "astage_many",
    "astate",
    "async_psycopg_transaction",
    "async_transaction",
    "cancel",
    "codec",
    "current_job",
    "job",
    "on_dead",
    "on_finish",
    "on_recovery",
    "on_stage",
    "on_unhealthy",
    "progress",
    "psycopg_transaction",
    "queues",
    "result",
    "schedule",
    "stage",
    "stage_many",
    "state",
    "transaction",
    "unschedule",
]

# Type checkers see the imports above: each name has its own type, and an unknown one is an error.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Import at its first use a name that an application does not need to stage."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        if name == "queues":
            return importlib.import_module("drain.queues")
        if name in ("Progress", "progress"):
            return getattr(importlib.import_module("drain.jobs.progress"), name)
        # Imported by name: the modules of `drain` do not depend on `workers`.
        from drain import packages

        value = globals()[name] = getattr(packages.own("workers"), name)
        return value
