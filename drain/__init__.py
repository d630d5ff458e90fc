"""Jobs staged in your own Postgres transaction and drained into Redis once it commits.

    from drain import stage

    with Session(engine) as session, session.begin():
        session.add(order)
        stage(session, "shop.jobs.send_receipt", [order.id])

Packages, along a job's path:

    jobs                  registers functions with `@job`; `stage` inserts into `staged_jobs`
    tables                statements that move rows between tables
    enqueuer              the leader: moves due rows, pushes them, redelivers lost ones
    wire                  RQ's keys and formats
    workers.process       pops ids from Redis in batches, claims jobs in PostgreSQL
    workers.lease         extends claims until their outcome is recorded
    workers.execution     one attempt: call, decide, record
    workers.context       what a running job can use
    workers.handover      recovery of a dead process's jobs
    workers.measures      counts of ended jobs
    workers.supervisor    starts and replaces the processes of one `drain work`

Supporting packages:

    database              connections, poolers, locks, schema, roles
    service               HTTP and systemd
    read                  numbers and lists for people and metrics
    audit                 proof that no job is lost, doubled or stuck
    admission             rules: which due rows may leave `staged_jobs`
    queues                rules and pauses, changed by applications
    commands              the command line, assembled in `drain.__main__`
    script                the installed command
    terminal              option parsing and output
    embedded              PostgreSQL and Redis for development and tests
    contrib               extensions: web UI, Django, scaling, testing
    pipeline              bulk work on Spark

Shared modules:

    hooks                 application functions around staging and attempts
    config, urls          settings; other drivers' database URLs
    health                application functions for failures and recoveries
    errors                errors raised on purpose
    log, metrics          log lines; metric names
    failpoints            points where tests kill a process
    extras                commands that install optional packages
    formatting            text for display
    moved                 former module names
    rq, rq_settings       entry points for RQ's tools and workers

Invariants: a job is visible only after its transaction commits. It then ends in `finished_jobs` or `dead_jobs`,
whatever dies, and finishes once. Redis can be rebuilt from `inflight_jobs`. Only the command line and extensions import
`drain.workers` and `drain.pipeline`; only extensions import `drain.contrib`.
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
    from drain.jobs.dependencies import After as After
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
        StepError as StepError,
    )
    from drain.workers import (
        TransactionError as TransactionError,
    )
    from drain.workers import (
        UnfitResultError as UnfitResultError,
    )
    from drain.workers import (
        async_psycopg_step_transaction as async_psycopg_step_transaction,
    )
    from drain.workers import (
        async_psycopg_transaction as async_psycopg_transaction,
    )
    from drain.workers import (
        async_step as async_step,
    )
    from drain.workers import (
        async_step_transaction as async_step_transaction,
    )
    from drain.workers import (
        async_transaction as async_transaction,
    )
    from drain.workers import (
        current_job as current_job,
    )
    from drain.workers import (
        psycopg_step_transaction as psycopg_step_transaction,
    )
    from drain.workers import (
        psycopg_transaction as psycopg_transaction,
    )
    from drain.workers import (
        step as step,
    )
    from drain.workers import (
        step_transaction as step_transaction,
    )
    from drain.workers import (
        transaction as transaction,
    )

    __all__: list[str]
else:
    # Imported on first use: `import drain` takes milliseconds.
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
        "After": "drain.jobs.dependencies",
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
        "StepError": "drain.workers",
        "TransactionError": "drain.workers",
        "UnfitResultError": "drain.workers",
        "async_psycopg_step_transaction": "drain.workers",
        "async_psycopg_transaction": "drain.workers",
        "async_step": "drain.workers",
        "async_step_transaction": "drain.workers",
        "async_transaction": "drain.workers",
        "current_job": "drain.workers",
        "psycopg_step_transaction": "drain.workers",
        "psycopg_transaction": "drain.workers",
        "step": "drain.workers",
        "step_transaction": "drain.workers",
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
