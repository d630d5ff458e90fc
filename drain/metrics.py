"""All metrics, except those of flows with an SLO; times are in seconds.

Those of `drain work` and `drain audit` are name and help only: values come from shared memory, or go to a file.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Gauge, Histogram

# Rows, seconds.
_BATCH_SIZES = (1, 10, 100, 500, 1000, 2000, 5000, 10_000, 50_000, 100_000)
_DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

LEADER = Gauge("drain_leader", "1 while this process is the leader, 0 while it is a standby.")
MOVED = Counter("drain_moved_jobs", "Jobs moved from staged_jobs to inflight_jobs.")
PUSHED = Counter("drain_pushed_jobs", "Jobs pushed into Redis.", ["queue"])
REDELIVERED = Counter("drain_redelivered_jobs", "Jobs redelivered, by reason.", ["reason"])
DEAD = Counter("drain_dead_jobs", "Jobs that the enqueuer moved to dead_jobs, by reason.", ["reason"])
SUPERSEDED = Counter("drain_superseded_jobs", "Jobs superseded through their unique key or an edge.")
UNBLOCKED = Counter(
    "drain_unblocked_jobs", "Jobs whose predecessors have ended: unblocked, cancelled or superseded."
)
FAILING = Gauge(
    "drain_queue_failing", "1 while the queue's retries are let through one at a time.", ["queue"]
)
STALE = Counter("drain_stale_finishes", "Outcomes refused because their fencing token was stale.")
FAILURES = Counter("drain_failures", "Failed rounds, by store.", ["store"])
TRUNCATED = Counter("drain_truncated_partitions", "Truncated partitions of staged_jobs.")
CRON_TICKS = Counter("drain_cron_ticks", "Jobs staged for ticks of schedules.")
DROPPED_DAYS = Counter("drain_dropped_days", "Days of finished_jobs dropped by --keep-days.")
BATCH_SIZE = Histogram("drain_batch_jobs", "Rows in one batch.", buckets=_BATCH_SIZES)
MOVE_SECONDS = Histogram("drain_move_seconds", "Duration of one batch's transaction.", buckets=_DURATIONS)
PUSH_SECONDS = Histogram("drain_push_seconds", "Duration of one batch's push into Redis.", buckets=_DURATIONS)
KEPT = Gauge(
    "drain_dead_jobs_kept",
    "Rows in dead_jobs; 100000 means that or more.",
)
STAGED = Gauge("drain_staged_jobs", "Rows in staged_jobs; 100000 means that or more.")
LAG = Gauge("drain_lag_seconds", "Age of the oldest due row.")
ARRIVED = Counter("drain_arrived_jobs", "Due jobs that left staged_jobs for Redis.", ["queue", "job_name"])
EXPIRED = Counter("drain_expired_jobs", "Jobs that expired before they ran.", ["queue"])
BUILD_INFO = Gauge(
    "drain_build_info",
    "1; the labels are versions: that of PostgreSQL once the process has led.",
    ["version", "python", "postgres"],
)
TAG_WAITING = Gauge(
    "drain_tag_waiting_jobs",
    "Due jobs next in line, by tag; the hundred largest tags.",
    ["tag"],
)
TAG_WAIT = Gauge(
    "drain_tag_wait_seconds",
    "Longest wait of the jobs in drain_tag_waiting_jobs.",
    ["tag"],
)
FLOWS = Gauge(
    "drain_flows", "Unfinished flows, by state; 10000 running or paused means that or more.", ["state"]
)
FAILING_FLOW = Gauge(
    "drain_failing_flow_seconds",
    "Longest time that a dead member has held an unfinished flow; 0 without one.",
)
OVERDUE_WAIT = Gauge(
    "drain_overdue_wait_seconds",
    "Longest time since the deadline of a job's wait, which should have ended it.",
)
DEAD_ROWS = Gauge(
    "drain_table_dead_rows", "Row versions awaiting vacuum, by PostgreSQL's statistics.", ["table"]
)
LIVE_ROWS = Gauge("drain_table_live_rows", "Rows, by PostgreSQL's statistics.", ["table"])
TABLE_BYTES = Gauge("drain_table_bytes", "Bytes on disk, with indexes and long values.", ["table"])
READY_PARTITIONS = Gauge("drain_ready_partitions", "Partitions of ready rows that use disk space, of three.")
WAL = Counter("drain_wal_bytes", "WAL written by the server while this process led.")
OLDEST_TRANSACTION = Gauge(
    "drain_oldest_transaction_seconds",
    "Age of the oldest transaction that holds vacuum back; 0 without one.",
)

WORK_ALIVE = ("drain_work_alive", "1 while the worker process of this number is alive and working.")
WORK_CUT_OFF = (
    "drain_work_cut_off",
    "1 while the process cannot reach PostgreSQL or Redis, as far as it knows.",
)
WORK_HELD = ("drain_work_held_jobs", "Claimed jobs without a recorded outcome, by state.")
WORK_ENDED = ("drain_work_jobs", "Tracked jobs ended on this process number, by outcome.")
WORK_RUN = ("drain_work_run_seconds", "Duration of attempts.")
WORK_WAIT = (
    "drain_work_wait_seconds",
    "Time from due to first start, including pauses and limits.",
)
WORK_FINISHED = ("drain_work_finished_jobs", "Jobs recorded as finished.")
WORK_FAILED = ("drain_work_failed_attempts", "Attempts recorded as failed, by type of exception.")
WORK_BUSY = (
    "drain_work_busy_seconds",
    "Run time of jobs on this process number, counted at their end.",
)
WORK_LOST_LEASES = ("drain_work_lost_leases", "Attempts that lost their job to another worker.")
WORK_STALE = (
    "drain_work_stale_outcomes",
    "Outcomes refused because their fencing token was stale.",
)
WORK_MEMORY = ("drain_work_memory_bytes", "Resident memory of the process.")
WORK_EXPIRED = ("drain_expired_jobs", "Jobs that expired before they ran.")
WORK_BUILD_INFO = ("drain_build_info", "1; the labels are versions.")

AUDIT_BREACHES = ("drain_audit_breaches", "Breaches found by the last audit.")
AUDIT_UNCHECKED = ("drain_audit_unchecked", "Checks skipped by the last audit.")
AUDIT_TIMESTAMP = ("drain_audit_timestamp_seconds", "End of the last audit, in seconds since 1970.")
DEPTH = Gauge("drain_redis_depth", "Ids in the queue's Redis list.", ["queue"])
WAIT = Gauge(
    "drain_wait_seconds",
    "Wait of the queue's oldest due job; 0 if no job waits.",
    ["queue"],
)
WAITING = Gauge(
    "drain_waiting_jobs",
    "Waiting jobs of the queue, by cause; 10000 means that or more.",
    ["queue", "cause"],
)
WORKERS = Gauge("drain_queue_workers", "Live workers of the queue.", ["queue"])

# From 0: alerts miss growth in a series that begins at 1.
for _reason in ("never pushed", "lost", "lease", "retry"):
    REDELIVERED.labels(_reason)
for _store in ("postgres", "redis"):
    FAILURES.labels(_store)

# Applications choose queue names; labels are bounded.
_MOST_QUEUES = 1000
OTHERS = OTHER_QUEUES = "(others)"
# Jobs without a registered function.
NOT_REGISTERED = "(not registered)"
_labels: set[str] = set()
# Labelled pairs of queue and job.
_MOST_PAIRS = 1000
_pairs: dict[tuple[str, str], Counter] = {}


def queue_label(queue: str) -> str:
    """Queue's label: its name for the first thousand, then `(others)`."""
    if queue not in _labels:
        if len(_labels) >= _MOST_QUEUES:
            return OTHER_QUEUES
        _labels.add(queue)
    return queue


def count_arrived(jobs: Mapping[tuple[str, str], int]) -> None:
    """Count arrived jobs by queue and name."""
    for labels, number in jobs.items():
        child = _pairs.get(labels)
        if child is None:
            queue, job = labels
            if len(_pairs) < _MOST_PAIRS:
                child = _pairs[labels] = ARRIVED.labels(queue_label(queue), job)
            else:
                child = ARRIVED.labels(queue_label(queue), OTHERS)
        child.inc(number)
