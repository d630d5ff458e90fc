"""Rights of each role, as data; `roles` turns them into SQL.

    application   stages: inserts its own columns, reads the id
    enqueuer      `drain run`: drains, redelivers, truncates
    worker        `drain work` and `rq worker`: claims, records outcomes
    operator      `drain queue`: edits queue rules, pauses and resumes
    inspection    `drain status`, `list`, `show` and `audit`: read-only

All else is the owner's: `drain init`, `dead retry`, `dead discard`, bulk commands. Daily partitions are read through
finished_jobs and need no grants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

DEFAULT_NAMES = {
    "application": "drain_application",
    "enqueuer": "drain_enqueuer",
    "worker": "drain_worker",
    "operator": "drain_operator",
    "inspection": "drain_inspection",
}
TITLES = {
    "application": "applications that stage jobs.",
    "enqueuer": "`drain run`.",
    "worker": "`drain work` and `rq worker`; grant it the application role too if jobs stage jobs.",
    "operator": "editing rules and schedules, and cancelling or moving jobs.",
    "inspection": "`drain status`, `list`, `show` and `audit`.",
}
# Columns of `staged_jobs` that applications set; defaults, the enqueuer and retries set the others.
STAGED_BY_APPLICATIONS = (
    "job_name, job_args, job_kwargs, queue, priority, scheduled_at, expires_at, tag, "
    "max_attempts, timeout_seconds, context, key, unique_key, keep, quiet_seconds"
)
# Columns of `crons` set when a job is scheduled, and by `@job`.
SCHEDULED = "name, job_name, cron, timezone, missed, job_args, job_kwargs, options, declared"
DECLARED = "name, job_name, cron, timezone, missed, options, declared"
# Columns of the index `staged_jobs_in_lanes`.
_LANES = "queue, key, priority, id, scheduled_at, staged_at, matured_at"
_CLAIM = (
    "fencing_token, attempts, interruptions, batched, claimed_at, claimed_by, lease_expires_at, next_run_at"
)

_STAGE_OF = "drain_stage_of(regclass, text, jsonb, jsonb)"
_FINISH = "drain_finish(bigint, bigint, bigint, text, jsonb)"


class Grant(NamedTuple):
    """Privileges on objects of one kind, as in GRANT, and their reason."""

    reason: str
    privileges: str
    objects: str
    kind: str = "TABLE"


_VERSION = Grant("Whether the program and the schema go together.", "SELECT", "drain_schema")
GRANTS: Mapping[str, Sequence[Grant]] = {
    "application": (
        Grant(
            "No id, token or time of staging of its own choice; no argument of others to read.",
            f"INSERT ({STAGED_BY_APPLICATIONS}), SELECT (id)",
            "staged_jobs",
        ),
        Grant(
            "Stages a job under an idempotency key, as the owner; reads and changes no other key.",
            "EXECUTE",
            "drain_stage_once(text, double precision, jsonb)",
            "FUNCTION",
        ),
        Grant("Stages from any language ...", "EXECUTE", "drain_stage(text, jsonb, jsonb)", "FUNCTION"),
        Grant("... by a function that checks.", "EXECUTE", _STAGE_OF, "FUNCTION"),
        Grant("State and result of a job, as the owner.", "EXECUTE", "drain_job_state(bigint)", "FUNCTION"),
    ),
    "enqueuer": (
        _VERSION,
        Grant(
            "Who leads; which installation this is.", "SELECT, UPDATE (leader, leader_since)", "drain_state"
        ),
        Grant(
            "The numbers of the deliveries.",
            "UPDATE, SELECT",
            "drain_last_delivery, drain_pushed_up_to",
            kind="SEQUENCE",
        ),
        Grant(
            "Takes rows whole, arguments included, since it moves them.",
            "SELECT, DELETE, UPDATE (matured_at, scheduled_at, expires_at, stands_for)",
            "staged_jobs, staged_jobs_ready, staged_jobs_scheduled",
        ),
        Grant(
            "Gives the space of drained rows back.",
            "SELECT, TRUNCATE",
            "staged_jobs_ready_0, staged_jobs_ready_1, staged_jobs_ready_2",
        ),
        Grant(
            "... by a function that looks first.", "EXECUTE", "drain_truncate_if_empty(regclass)", "FUNCTION"
        ),
        Grant(
            "Delivers, and delivers again, and knows how long jobs wait; what RQ has given up moves to dead_jobs.",
            "INSERT, SELECT, DELETE, UPDATE (delivery, lease_expires_at, next_run_at, fencing_token, expires_at, "
            "stands_for)",
            "inflight_jobs",
        ),
        Grant(
            "What cannot be delivered, and how much of that there is; which keys a dead job holds, and what has begun.",
            "INSERT, SELECT (id, queue, key, reason, attempts, fencing_token, died_at)",
            "dead_jobs",
        ),
        Grant(
            "When a queue last finished a job, what has begun lately and for how long; which jobs gave way to others.",
            "INSERT, SELECT (id, queue, finished_at, key, attempts, fencing_token, moved_at, claimed_at, "
            "superseded_by, finished_by, scheduled_at, staged_at)",
            "finished_jobs",
        ),
        Grant(
            "Deletes idempotency keys whose time is over.",
            "DELETE, SELECT (idempotency_key, expires_at)",
            "idempotency_keys",
        ),
        Grant("How many outcomes were refused.", "SELECT (number)", "stale_finishes"),
        Grant("The rules of queues.", "SELECT", "queues, queue_pauses"),
        Grant("Notes why the rules of a queue cannot be followed.", "UPDATE (error)", "queues"),
        Grant("Counts cancelled jobs until their workers have let go.", "SELECT, DELETE", "cancelled_claims"),
        Grant("Deletes pauses that are over.", "DELETE", "queue_pauses"),
        Grant(
            "Schedules, and the ticks that they have had ...",
            "SELECT, UPDATE (next_tick_at, last_tick_at, last_job_id, error)",
            "crons",
        ),
        Grant("... each of which stages a job.", f"INSERT ({STAGED_BY_APPLICATIONS})", "staged_jobs"),
        Grant(
            "Partitions of the next days, made as the owner.",
            "EXECUTE",
            "drain_make_days(integer)",
            "FUNCTION",
        ),
        Grant(
            "Drops days that --keep-days does not keep, as the owner; never today or the day before.",
            "EXECUTE",
            "drain_drop_old_day(integer)",
            "FUNCTION",
        ),
    ),
    "worker": (
        _VERSION,
        Grant(
            "The installation is part of the key of a job.", "SELECT (only_row, installation)", "drain_state"
        ),
        Grant(
            "Claims a job, extends the lease, gives it back; the row leaves when the job has ended.",
            f"SELECT, DELETE, UPDATE ({_CLAIM}, failed_at, last_error)",
            "inflight_jobs",
        ),
        Grant("Finishes it ...", "EXECUTE", _FINISH, "FUNCTION"),
        Grant(
            "... asks whether it has, and adds what the job has returned after its own transaction.",
            "INSERT, SELECT (id, fencing_token, finished_at, finished_by), UPDATE (result)",
            "finished_jobs",
        ),
        Grant(
            "Gives it up, and asks whether it has, and whether it was cancelled.",
            "INSERT, SELECT (id, queue, fencing_token, salt, reason)",
            "dead_jobs",
        ),
        Grant("Outcomes that came too late.", "INSERT", "stale_finishes"),
        Grant(
            "Confirms that the attempt of a cancelled job has ended.",
            "SELECT (id, fencing_token, salt, claimed_by), DELETE",
            "cancelled_claims",
        ),
        Grant(
            "Which queues there are, so that a misspelt one is noticed.",
            f"SELECT ({_LANES})",
            "staged_jobs_ready, staged_jobs_scheduled",
        ),
        Grant(
            "Which queues have rates: their given-back jobs go through the leader.",
            "SELECT (queue, rate, rate_per_key)",
            "queues",
        ),
        Grant(
            "Pauses a key, or a queue, for a job that raises RateLimited.",
            "INSERT (queue, job_name, key, until, reason, paused_by), UPDATE (until, reason, paused_by), "
            "SELECT (queue, job_name, key, until, reason, paused_by)",
            "queue_pauses",
        ),
        Grant(
            "Keeps the schedules of @job(cron=...) as the code says; none of an application.",
            f"SELECT ({DECLARED}, next_tick_at), INSERT ({DECLARED}), "
            f"UPDATE ({DECLARED}, next_tick_at, error, changed_at)",
            "crons",
        ),
    ),
    "operator": (
        _VERSION,
        Grant("Edits the rules of queues.", "SELECT, INSERT, UPDATE, DELETE", "queues"),
        Grant(
            "Pauses and resumes.", "SELECT, INSERT, UPDATE (until, reason, paused_by), DELETE", "queue_pauses"
        ),
        Grant(
            "Cancels and moves jobs that wait; takes rows whole, arguments included.",
            "SELECT, DELETE, UPDATE (queue, priority, scheduled_at, matured_at)",
            "staged_jobs",
        ),
        Grant(
            "Which queues there are, so that a misspelt one is noticed.",
            "SELECT",
            "staged_jobs_ready, staged_jobs_scheduled",
        ),
        Grant(
            "... and jobs in flight.",
            "SELECT, DELETE, UPDATE (queue, priority, scheduled_at, next_run_at)",
            "inflight_jobs",
        ),
        Grant(
            "What is cancelled is dead; which keys have dead jobs.",
            "INSERT, SELECT (id, queue, key)",
            "dead_jobs",
        ),
        Grant("A cancelled job keeps its place until its worker lets go.", "INSERT", "cancelled_claims"),
        Grant("Which jobs had finished before they were cancelled.", "SELECT (id)", "finished_jobs"),
        Grant("Schedules ...", "SELECT, INSERT, UPDATE, DELETE", "crons"),
        Grant(
            "... one of whose jobs `drain cron run` stages; requests that a cancel stages again.",
            f"INSERT ({STAGED_BY_APPLICATIONS}, staged_by)",
            "staged_jobs",
        ),
    ),
    "inspection": (
        Grant(
            "Arguments and tracebacks are among what it reads.",
            "SELECT",
            "staged_jobs, staged_jobs_ready, staged_jobs_scheduled, inflight_jobs, finished_jobs, dead_jobs, "
            "stale_finishes, cancelled_claims, bulk_runs, drain_state, drain_schema, queues, queue_pauses, crons, "
            "idempotency_keys",
        ),
        Grant(
            "State and result of a job.",
            "EXECUTE",
            "drain_job_state(bigint)",
            "FUNCTION",
        ),
        Grant(
            "The last numbers that were given out.",
            "SELECT",
            "staged_jobs_id_seq, drain_last_delivery, drain_pushed_up_to",
            kind="SEQUENCE",
        ),
    ),
}
