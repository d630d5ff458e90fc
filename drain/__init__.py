"""Jobs that are staged in your own Postgres transaction, and drained into Redis once it has committed.

    from drain import stage

    with Session(engine) as session, session.begin():
        session.add(order)
        stage(session, "shop.jobs.send_receipt", [order.id])

All that an application needs is imported from here: `job`, `stage` and `stage_many`, `astage` and `astage_many`;
`codec`; `schedule` and `unschedule`; `cancel`; `state`, `result`, `aresult` and `progress`; in a running job
`current_job`, `transaction` and `async_transaction`; what a job raises, `Retry`, `Defer`, `RateLimited` and `Dead`;
`queues`, for the rules of queues; and the errors.

The packages of `drain`, in the order in which a job passes:

    jobs                  `@job` registers a function under a name; `stage` inserts a row into `staged_jobs`
    tables                every statement that moves a row from table to table, by the table that the row leaves
    enqueuer              one leader moves rows that are committed and due, pushes them, and pushes again what was lost
    wire                  RQ's keys and formats: the enqueuer's producer, and the workers' consumer
    workers.process       fetches ids from Redis in batches, and claims the jobs in PostgreSQL
    workers.lease         keeps the claim of a job alive until its outcome is recorded
    workers.execution     one attempt: call the function, decide what its outcome means, record that
    workers.context       what a running job may ask for: its claim, and a transaction
    workers.handover      recovery of the jobs that a dead process has left behind
    workers.measures      numbers of the jobs that have ended, for the metrics
    workers.supervisor    starts the processes of one `drain work`, and replaces them

Beside that way:

    database              connections to PostgreSQL, poolers, locks, schema, roles
    service               HTTP and systemd, for the programs that watch a long-running process
    read                  every number and list that a person, a metric or the page shows
    audit                 the proof that no job is lost, doubled or stuck
    admission             which of the due rows may leave `staged_jobs` now, as the rules of their queues say
    queues                rules and pauses of queues, changed in the transaction of an application
    commands              the command line, which `drain.__main__` puts together
    script                the installed command
    terminal              how the commands read their options and print for people
    embedded              PostgreSQL and Redis, started for `drain dev`, the demo and the tests
    contrib               extensions, which the rest does without: the page, Django, scaling, tests and more
    pipeline              work on millions of jobs at once, on Spark

Modules that every package may use:

    hooks                 functions of an application around each attempt, at staging, and at the end of a job
    config, urls          settings, from the environment or the command line; database URLs of other drivers
    health                functions of an application that hear of a process that fails, and that it is well again
    errors                every error that is raised on purpose
    log, metrics          log lines; names of all metrics
    failpoints            instants at which a test kills a process
    extras                the command that installs an optional package
    formatting            numbers and times for people; texts of others, made harmless for a terminal
    moved                 names that modules had in earlier versions
    rq, rq_settings       entry points by which RQ's own tools and workers find tracked jobs

What always holds: no job is seen before its transaction has committed, nor after it has rolled back; every committed
job ends in `finished_jobs` or `dead_jobs`, whatever process or server dies on the way; it is finished once. Redis holds
nothing that could not be rebuilt from `inflight_jobs`. No other module of `drain` imports `drain.workers` or
`drain.pipeline`; the command line alone does, and extensions do. Nothing but extensions imports `drain.contrib`.
"""

from typing import TYPE_CHECKING

from drain import moved

moved.install()

if TYPE_CHECKING:
    from drain import queues as queues
    from drain.errors import (
        DeadJobError as DeadJobError,
    )
    from drain.errors import (
        DrainError as DrainError,
    )
    from drain.errors import (
        IdempotencyConflictError as IdempotencyConflictError,
    )
    from drain.errors import (
        NoResultError as NoResultError,
    )
    from drain.errors import (
        NotFinishedError as NotFinishedError,
    )
    from drain.errors import (
        ResultError as ResultError,
    )
    from drain.errors import (
        SelectionError as SelectionError,
    )
    from drain.errors import (
        StageError as StageError,
    )
    from drain.errors import (
        UnknownJobError as UnknownJobError,
    )
    from drain.health import (
        HealthChange as HealthChange,
    )
    from drain.health import (
        on_recovery as on_recovery,
    )
    from drain.health import (
        on_unhealthy as on_unhealthy,
    )
    from drain.hooks import around as around
    from drain.hooks import on_dead as on_dead
    from drain.hooks import on_finish as on_finish
    from drain.hooks import on_stage as on_stage
    from drain.jobs.async_staging import astage as astage
    from drain.jobs.async_staging import astage_many as astage_many
    from drain.jobs.cancelling import Cancelled as Cancelled
    from drain.jobs.cancelling import cancel as cancel
    from drain.jobs.codecs import codec as codec
    from drain.jobs.progress import Progress as Progress
    from drain.jobs.progress import progress as progress
    from drain.jobs.registry import job as job
    from drain.jobs.results import (
        JobState as JobState,
    )
    from drain.jobs.results import (
        aresult as aresult,
    )
    from drain.jobs.results import (
        astate as astate,
    )
    from drain.jobs.results import (
        result as result,
    )
    from drain.jobs.results import (
        state as state,
    )
    from drain.jobs.schedules import schedule as schedule
    from drain.jobs.schedules import unschedule as unschedule
    from drain.jobs.staging import stage as stage
    from drain.jobs.staging import stage_many as stage_many
    from drain.workers import (
        CurrentJob as CurrentJob,
    )
    from drain.workers import (
        Dead as Dead,
    )
    from drain.workers import (
        Defer as Defer,
    )
    from drain.workers import (
        JobCancelledError as JobCancelledError,
    )
    from drain.workers import (
        JobTimeoutError as JobTimeoutError,
    )
    from drain.workers import (
        LeaseLostError as LeaseLostError,
    )
    from drain.workers import (
        NoCurrentJobError as NoCurrentJobError,
    )
    from drain.workers import (
        RateLimited as RateLimited,
    )
    from drain.workers import (
        Retry as Retry,
    )
    from drain.workers import (
        TransactionError as TransactionError,
    )
    from drain.workers import (
        UnfitResultError as UnfitResultError,
    )
    from drain.workers import (
        async_psycopg_transaction as async_psycopg_transaction,
    )
    from drain.workers import (
        async_transaction as async_transaction,
    )
    from drain.workers import (
        current_job as current_job,
    )
    from drain.workers import (
        psycopg_transaction as psycopg_transaction,
    )
    from drain.workers import (
        transaction as transaction,
    )

    __all__: list[str]
else:
    # At runtime a name is imported at its first use: `import drain` takes milliseconds.
    _HOME = {
        "DeadJobError": "drain.errors",
        "DrainError": "drain.errors",
        "IdempotencyConflictError": "drain.errors",
        "NoResultError": "drain.errors",
        "NotFinishedError": "drain.errors",
        "ResultError": "drain.errors",
        "SelectionError": "drain.errors",
        "StageError": "drain.errors",
        "UnknownJobError": "drain.errors",
        "HealthChange": "drain.health",
        "on_recovery": "drain.health",
        "on_unhealthy": "drain.health",
        "around": "drain.hooks",
        "on_dead": "drain.hooks",
        "on_finish": "drain.hooks",
        "on_stage": "drain.hooks",
        "astage": "drain.jobs.async_staging",
        "astage_many": "drain.jobs.async_staging",
        "Cancelled": "drain.jobs.cancelling",
        "cancel": "drain.jobs.cancelling",
        "codec": "drain.jobs.codecs",
        "Progress": "drain.jobs.progress",
        "progress": "drain.jobs.progress",
        "job": "drain.jobs.registry",
        "JobState": "drain.jobs.results",
        "aresult": "drain.jobs.results",
        "astate": "drain.jobs.results",
        "result": "drain.jobs.results",
        "state": "drain.jobs.results",
        "schedule": "drain.jobs.schedules",
        "unschedule": "drain.jobs.schedules",
        "stage": "drain.jobs.staging",
        "stage_many": "drain.jobs.staging",
        "CurrentJob": "drain.workers",
        "Dead": "drain.workers",
        "Defer": "drain.workers",
        "JobCancelledError": "drain.workers",
        "JobTimeoutError": "drain.workers",
        "LeaseLostError": "drain.workers",
        "NoCurrentJobError": "drain.workers",
        "RateLimited": "drain.workers",
        "Retry": "drain.workers",
        "TransactionError": "drain.workers",
        "UnfitResultError": "drain.workers",
        "async_psycopg_transaction": "drain.workers",
        "async_transaction": "drain.workers",
        "current_job": "drain.workers",
        "psycopg_transaction": "drain.workers",
        "transaction": "drain.workers",
    }
    __all__ = [*_HOME, "queues"]  # noqa: PLE0604

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "queues":
            return import_module("drain.queues")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value
