"""Rights of each role, as data; `roles` turns them into SQL.

    application   stages: inserts its own columns, reads the id
    enqueuer      `drain run`: drains, redelivers, truncates
    worker        `drain work` and `rq worker`: claims, records outcomes
    operator      `drain queue`: edits queue rules, pauses and resumes
    inspection    `drain status`, `list`, `show`, `audit` and `stats`: read-only

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
    "inspection": "reading jobs, rules and schedules.",
}
# Columns of `staged_jobs` that applications set.
STAGED_BY_APPLICATIONS = (
    "job_name, job_args, job_kwargs, queue, priority, scheduled_at, expires_at, tag, "
    "max_attempts, timeout_seconds, context, key, unique_key, keep, quiet_seconds"
)
# Columns of `crons` set when a job is scheduled, and by `@job`.
SCHEDULED = "name, job_name, cron, timezone, missed, job_args, job_kwargs, options, declared"
DECLARED = "name, job_name, cron, timezone, missed, options, declared"
_LANES = "queue, key, priority, id, scheduled_at, staged_at, matured_at"
_CLAIM = (
    "fencing_token, attempts, interruptions, batched, claimed_at, claimed_by, lease_expires_at, next_run_at"
)

_STAGE_OF = "drain_stage_of(regclass, text, jsonb, jsonb)"
_AFTER = "drain_after(bigint[], bigint[], text[])"
_JOIN = "drain_join(bigint, bigint[], text[])"
_CALLBACK = "drain_callback(bigint, bigint, text)"
_EMIT = "drain_emit(text, jsonb)"
_FINISH = "drain_finish(bigint, bigint, bigint, text, jsonb)"
_RECORD_STEP = "drain_record_step(bigint, bigint, bigint, text, text, json, double precision)"
_RECORD_UNDOABLE = (
    "drain_record_undoable_step(bigint, bigint, bigint, text, text, json, double precision, jsonb)"
)
_RECORD_UNDO = "drain_record_undo(bigint, bigint, bigint, text, text, json, double precision, bigint, text)"


class Grant(NamedTuple):
    """Privileges on objects of one kind, and their reason."""

    reason: str
    privileges: str
    objects: str
    kind: str = "TABLE"


_VERSION = Grant("Check the schema version.", "SELECT", "drain_schema")
GRANTS: Mapping[str, Sequence[Grant]] = {
    "application": (
        Grant(
            "Stage jobs, without choosing ids, tokens or staging times, or reading others' arguments.",
            f"INSERT ({STAGED_BY_APPLICATIONS}, starts_at), SELECT (id)",
            "staged_jobs",
        ),
        Grant(
            "Stage a job under an idempotency key, as the owner.",
            "EXECUTE",
            "drain_stage_once(text, double precision, jsonb)",
            "FUNCTION",
        ),
        Grant("Let jobs wait for others, as the owner.", "EXECUTE", _AFTER, "FUNCTION"),
        Grant("Make a flow, as the owner ...", "EXECUTE", "drain_flow(jsonb)", "FUNCTION"),
        Grant("... add jobs to it ...", "EXECUTE", _JOIN, "FUNCTION"),
        Grant("... run a job when it ends ...", "EXECUTE", _CALLBACK, "FUNCTION"),
        Grant("... find its nodes ...", "EXECUTE", "drain_node(bigint, text)", "FUNCTION"),
        Grant("... and count its members.", "EXECUTE", "drain_flow_progress(bigint)", "FUNCTION"),
        Grant("Emit events for waiting jobs, as the owner.", "EXECUTE", _EMIT, "FUNCTION"),
        Grant("Stage from any language ...", "EXECUTE", "drain_stage(text, jsonb, jsonb)", "FUNCTION"),
        Grant("... through a function that validates.", "EXECUTE", _STAGE_OF, "FUNCTION"),
        Grant(
            "Read a job's state and result, as the owner.", "EXECUTE", "drain_job_state(bigint)", "FUNCTION"
        ),
    ),
    "enqueuer": (
        _VERSION,
        Grant(
            "Read the installation; name the leader.", "SELECT, UPDATE (leader, leader_since)", "drain_state"
        ),
        Grant(
            "Number deliveries.",
            "UPDATE, SELECT",
            "drain_last_delivery, drain_pushed_up_to",
            kind="SEQUENCE",
        ),
        Grant(
            "Move rows, including their arguments.",
            "SELECT, DELETE, UPDATE (matured_at, scheduled_at, expires_at, stands_for)",
            "staged_jobs, staged_jobs_ready, staged_jobs_scheduled",
        ),
        Grant(
            "Truncate drained partitions ...",
            "SELECT, TRUNCATE",
            "staged_jobs_ready_0, staged_jobs_ready_1, staged_jobs_ready_2",
        ),
        Grant(
            "... through a function that checks that they are empty.",
            "EXECUTE",
            "drain_truncate_if_empty(regclass)",
            "FUNCTION",
        ),
        Grant(
            "Deliver and redeliver jobs, measure waits, and bury jobs that RQ gave up.",
            "INSERT, SELECT, DELETE, UPDATE (delivery, lease_expires_at, next_run_at, fencing_token, expires_at, "
            "stands_for)",
            "inflight_jobs",
        ),
        Grant(
            "Bury undeliverable jobs, count dead jobs, and find the keys that they hold.",
            "INSERT, SELECT (id, queue, key, reason, attempts, fencing_token, died_at, died_xid)",
            "dead_jobs",
        ),
        Grant(
            "Measure throughput and start rates, and record superseded jobs.",
            "INSERT, SELECT (id, queue, finished_at, key, attempts, fencing_token, moved_at, claimed_at, "
            "superseded_by, finished_by, scheduled_at, staged_at, finished_xid)",
            "finished_jobs",
        ),
        Grant(
            "Delete expired idempotency keys.",
            "DELETE, SELECT (idempotency_key, expires_at)",
            "idempotency_keys",
        ),
        Grant(
            "Unblock jobs, and delete the edges of deleted jobs.",
            "SELECT, DELETE, UPDATE (on_failure, state, awaited_id, changed_xid)",
            "job_edges",
        ),
        Grant(
            "Record the outcomes of waits, and delete the steps of deleted jobs.",
            "INSERT (job_id, name, result, seconds, fencing_token), DELETE, SELECT (job_id, name, undone_by)",
            "job_steps",
        ),
        Grant("End waits, and delete old events.", "SELECT, DELETE", "job_waits, job_events"),
        Grant("Measure and delete flows.", "DELETE, SELECT (id, name, staged_at, undone_by)", "flows"),
        Grant("Count refused outcomes.", "SELECT (number)", "stale_finishes"),
        Grant("Follow rules and pauses.", "SELECT", "queues, queue_pauses"),
        Grant("Record why a queue's rules can't be applied.", "UPDATE (error)", "queues"),
        Grant("Count cancelled jobs until their workers confirm.", "SELECT, DELETE", "cancelled_claims"),
        Grant("Delete expired pauses.", "DELETE", "queue_pauses"),
        Grant(
            "Advance schedules ...",
            "SELECT, UPDATE (next_tick_at, last_tick_at, last_job_id, error)",
            "crons",
        ),
        Grant(
            "... and stage a job at each tick, or a superseded job after a cancel.",
            f"INSERT ({STAGED_BY_APPLICATIONS}, staged_by)",
            "staged_jobs",
        ),
        Grant("Create daily partitions, as the owner.", "EXECUTE", "drain_make_days(integer)", "FUNCTION"),
        Grant(
            "Drop days beyond --keep-days, as the owner; never today or yesterday.",
            "EXECUTE",
            "drain_drop_old_day(integer)",
            "FUNCTION",
        ),
    ),
    "worker": (
        _VERSION,
        Grant(
            "Read the installation, a part of each job's key.",
            "SELECT (only_row, installation)",
            "drain_state",
        ),
        Grant(
            "Claim jobs, extend leases, release and remove jobs.",
            f"SELECT, DELETE, UPDATE ({_CLAIM}, failed_at, last_error)",
            "inflight_jobs",
        ),
        Grant("Finish jobs ...", "EXECUTE", _FINISH, "FUNCTION"),
        Grant(
            "... check that they finished, and store their results.",
            "INSERT, SELECT (id, fencing_token, finished_at, finished_by, result), UPDATE (result)",
            "finished_jobs",
        ),
        Grant(
            "Read results of predecessors ...",
            "SELECT (child_id, parent_id, awaited_id, state, on_failure, node)",
            "job_edges",
        ),
        Grant("... and a job's flow.", "SELECT (id, on_success, on_complete, on_dead, undone_by)", "flows"),
        Grant(
            "Bury jobs, and check for burials and cancellations.",
            "INSERT, SELECT (id, queue, fencing_token, salt, reason)",
            "dead_jobs",
        ),
        Grant("Record stale outcomes.", "INSERT", "stale_finishes"),
        Grant("Record results of steps ...", "EXECUTE", _RECORD_STEP, "FUNCTION"),
        Grant(
            "... for later attempts, and for the job that undoes them.",
            "INSERT (job_id, name, result, seconds, fencing_token), "
            "SELECT (job_id, name, result, recorded_at, undo, undone_by)",
            "job_steps",
        ),
        Grant("Record steps with an undo, as the owner, ...", "EXECUTE", _RECORD_UNDOABLE, "FUNCTION"),
        Grant("... and undone ones.", "EXECUTE", _RECORD_UNDO, "FUNCTION"),
        Grant(
            "Let jobs wait for events, or sleep.",
            "SELECT, INSERT (job_id, name, event, deadline, staged_by, fencing_token), "
            "UPDATE (name, event, deadline, staged_by, fencing_token, began_at, wait_xid)",
            "job_waits",
        ),
        Grant(
            "Confirm that a cancelled attempt has ended.",
            "SELECT (id, fencing_token, salt, claimed_by), DELETE",
            "cancelled_claims",
        ),
        Grant(
            "List queues, to detect misspelt ones.",
            f"SELECT ({_LANES})",
            "staged_jobs_ready, staged_jobs_scheduled",
        ),
        Grant(
            "Find queues with rates, whose released jobs return to the leader.",
            "SELECT (queue, rate, rate_per_key)",
            "queues",
        ),
        Grant(
            "Pause a key or queue when a job raises RateLimited.",
            "INSERT (queue, job_name, key, until, reason, paused_by), UPDATE (until, reason, paused_by), "
            "SELECT (queue, job_name, key, until, reason, paused_by)",
            "queue_pauses",
        ),
        Grant(
            "Update the schedules of @job(cron=...).",
            f"SELECT ({DECLARED}, next_tick_at), INSERT ({DECLARED}), "
            f"UPDATE ({DECLARED}, next_tick_at, error, changed_at)",
            "crons",
        ),
    ),
    "operator": (
        _VERSION,
        Grant("Edit the rules of queues.", "SELECT, INSERT, UPDATE, DELETE", "queues"),
        Grant(
            "Pause and resume.", "SELECT, INSERT, UPDATE (until, reason, paused_by), DELETE", "queue_pauses"
        ),
        Grant(
            "Cancel and move waiting jobs, including their arguments.",
            "SELECT, DELETE, UPDATE (queue, priority, scheduled_at, matured_at, starts_at)",
            "staged_jobs",
        ),
        Grant("List queues, to detect misspelt ones.", "SELECT", "staged_jobs_ready, staged_jobs_scheduled"),
        Grant(
            "Cancel and move jobs in flight.",
            "SELECT, DELETE, UPDATE (queue, priority, scheduled_at, next_run_at)",
            "inflight_jobs",
        ),
        Grant(
            "Bury cancelled jobs, and find the keys of dead jobs.",
            "INSERT, SELECT (id, queue, key)",
            "dead_jobs",
        ),
        Grant("Hold a cancelled job's place until its worker confirms.", "INSERT", "cancelled_claims"),
        Grant("Find jobs that finished before they were cancelled.", "SELECT (id)", "finished_jobs"),
        Grant("Edit schedules ...", "SELECT, INSERT, UPDATE, DELETE", "crons"),
        Grant(
            "... and stage a schedule's job, or a superseded job after a cancel.",
            f"INSERT ({STAGED_BY_APPLICATIONS}, staged_by)",
            "staged_jobs",
        ),
    ),
    "inspection": (
        Grant(
            "Read everything, including arguments and tracebacks.",
            "SELECT",
            "staged_jobs, staged_jobs_ready, staged_jobs_scheduled, inflight_jobs, finished_jobs, dead_jobs, "
            "stale_finishes, cancelled_claims, bulk_runs, drain_state, drain_schema, queues, queue_pauses, crons, "
            "idempotency_keys, job_steps, job_edges, flows, job_waits, job_events",
        ),
        Grant("Read a job's state and result.", "EXECUTE", "drain_job_state(bigint)", "FUNCTION"),
        Grant("Count a flow's members.", "EXECUTE", "drain_flow_progress(bigint)", "FUNCTION"),
        Grant(
            "Read the last numbers of sequences.",
            "SELECT",
            "staged_jobs_id_seq, drain_last_delivery, drain_pushed_up_to",
            kind="SEQUENCE",
        ),
    ),
}
