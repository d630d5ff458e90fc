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
        DrainError as DrainError,
        IdempotencyConflictError as IdempotencyConflictError,
        NoResultError as NoResultError,
        NotFinishedError as NotFinishedError,
        ResultError as ResultError,
        SelectionError as SelectionError,
        StageError as StageError,
        UnknownJobError as UnknownJobError,
    )
    from drain.health import (
        HealthChange as HealthChange,
        on_recovery as on_recovery,
        on_unhealthy as on_unhealthy,
    )
    from drain.hooks import around as around, on_dead as on_dead, on_finish as on_finish, on_stage as on_stage
    from drain.jobs.async_staging import astage as astage, astage_many as astage_many
    from drain.jobs.batches import Batch as Batch, abatch as abatch, batch as batch
    from drain.jobs.cancelling import Cancelled as Cancelled, cancel as cancel
    from drain.jobs.codecs import codec as codec
    from drain.jobs.dependencies import After as After
    from drain.jobs.events import aemit as aemit, emit as emit
    from drain.jobs.flow_progress import (
        FlowProgress as FlowProgress,
        aflow_progress as aflow_progress,
        flow_progress as flow_progress,
    )
    from drain.jobs.graphs import Flow as Flow, StagedFlow as StagedFlow
    from drain.jobs.progress import Progress as Progress, progress as progress
    from drain.jobs.registry import job as job
    from drain.jobs.results import (
        JobState as JobState,
        aresult as aresult,
        astate as astate,
        result as result,
        state as state,
    )
    from drain.jobs.schedules import schedule as schedule, unschedule as unschedule
    from drain.jobs.staging import stage as stage, stage_many as stage_many
    from drain.workers import (
        CurrentJob as CurrentJob,
        Dead as Dead,
        Defer as Defer,
        EventTimeoutError as EventTimeoutError,
        JobCancelledError as JobCancelledError,
        JobTimeoutError as JobTimeoutError,
        LeaseLostError as LeaseLostError,
        NoCurrentJobError as NoCurrentJobError,
        RateLimited as RateLimited,
        Retry as Retry,
        StepError as StepError,
        TransactionError as TransactionError,
        UnfitResultError as UnfitResultError,
        async_psycopg_step_transaction as async_psycopg_step_transaction,
        async_psycopg_transaction as async_psycopg_transaction,
        async_sleep as async_sleep,
        async_step as async_step,
        async_step_transaction as async_step_transaction,
        async_transaction as async_transaction,
        async_wait_for as async_wait_for,
        current_job as current_job,
        psycopg_step_transaction as psycopg_step_transaction,
        psycopg_transaction as psycopg_transaction,
        sleep as sleep,
        step as step,
        step_transaction as step_transaction,
        transaction as transaction,
        wait_for as wait_for,
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
        "Batch": "drain.jobs.batches",
        "abatch": "drain.jobs.batches",
        "batch": "drain.jobs.batches",
        "Cancelled": "drain.jobs.cancelling",
        "cancel": "drain.jobs.cancelling",
        "codec": "drain.jobs.codecs",
        "After": "drain.jobs.dependencies",
        "FlowProgress": "drain.jobs.flow_progress",
        "aflow_progress": "drain.jobs.flow_progress",
        "flow_progress": "drain.jobs.flow_progress",
        "Flow": "drain.jobs.graphs",
        "StagedFlow": "drain.jobs.graphs",
        "aemit": "drain.jobs.events",
        "emit": "drain.jobs.events",
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
        "EventTimeoutError": "drain.workers",
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
        "async_sleep": "drain.workers",
        "async_step": "drain.workers",
        "async_step_transaction": "drain.workers",
        "async_transaction": "drain.workers",
        "async_wait_for": "drain.workers",
        "current_job": "drain.workers",
        "psycopg_step_transaction": "drain.workers",
        "psycopg_transaction": "drain.workers",
        "sleep": "drain.workers",
        "step": "drain.workers",
        "step_transaction": "drain.workers",
        "transaction": "drain.workers",
        "wait_for": "drain.workers",
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
