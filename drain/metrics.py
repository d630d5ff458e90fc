"""All metrics; times are in seconds.

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
REDELIVERED = Counter("drain_redelivered_jobs", "Jobs pushed once more, by reason.", ["reason"])
DEAD = Counter("drain_dead_jobs", "Jobs that the enqueuer moved to dead_jobs, by reason.", ["reason"])
SUPERSEDED = Counter("drain_superseded_jobs", "Jobs superseded by another one of their unique key.")
FAILING = Gauge(
    "drain_queue_failing", "1 while the queue's retries are let through one at a time.", ["queue"]
)
STALE = Counter("drain_stale_finishes", "Outcomes that were refused because their fencing token was stale.")
FAILURES = Counter("drain_failures", "Rounds that failed, by the store that failed.", ["store"])
TRUNCATED = Counter("drain_truncated_partitions", "Partitions of staged_jobs that were truncated.")
CRON_TICKS = Counter("drain_cron_ticks", "Jobs staged for ticks of schedules.")
DROPPED_DAYS = Counter("drain_dropped_days", "Days of finished_jobs dropped by --keep-days.")
BATCH_SIZE = Histogram("drain_batch_jobs", "Rows in one batch.", buckets=_BATCH_SIZES)
MOVE_SECONDS = Histogram("drain_move_seconds", "Duration of one batch's transaction.", buckets=_DURATIONS)
PUSH_SECONDS = Histogram("drain_push_seconds", "Duration of one batch's push into Redis.", buckets=_DURATIONS)
KEPT = Gauge(
    "drain_dead_jobs_kept",
    "Rows in dead_jobs, given up by the enqueuer or by workers; counted up to 100000, which means that or more.",
)
STAGED = Gauge("drain_staged_jobs", "Rows in staged_jobs; counted up to 100000, which means that or more.")
LAG = Gauge("drain_lag_seconds", "Time that the longest-waiting due row has been due.")
ARRIVED = Counter(
    "drain_arrived_jobs", "Jobs that were due and have left staged_jobs for Redis.", ["queue", "job_name"]
)
EXPIRED = Counter(
    "drain_expired_jobs", "Jobs that were given up since their expires_at had passed.", ["queue"]
)
BUILD_INFO = Gauge(
    "drain_build_info",
    "1; the labels are versions: that of PostgreSQL once the process has led.",
    ["version", "python", "postgres"],
)
TAG_WAITING = Gauge(
    "drain_tag_waiting_jobs",
    "Due jobs with a tag, of those next in line in each queue, staged or delivered; the hundred largest tags.",
    ["tag"],
)
TAG_WAIT = Gauge(
    "drain_tag_wait_seconds",
    "Longest time that one of the jobs of drain_tag_waiting_jobs has waited for a worker.",
    ["tag"],
)
DEAD_ROWS = Gauge(
    "drain_table_dead_rows", "Row versions that vacuum has to remove, by PostgreSQL's statistics.", ["table"]
)
LIVE_ROWS = Gauge("drain_table_live_rows", "Rows, by PostgreSQL's statistics.", ["table"])
TABLE_BYTES = Gauge("drain_table_bytes", "Bytes on disk, with indexes and long values.", ["table"])
READY_PARTITIONS = Gauge(
    "drain_ready_partitions", "Partitions of the ready rows of staged_jobs that occupy the disk, of three."
)
WAL = Counter("drain_wal_bytes", "WAL that the server has written while this process led.")
OLDEST_TRANSACTION = Gauge(
    "drain_oldest_transaction_seconds",
    "Age of the oldest open transaction of the server that keeps dead rows from being removed; 0 without one.",
)

WORK_ALIVE = ("drain_work_alive", "1 while the worker process of this number is alive and working.")
WORK_CUT_OFF = (
    "drain_work_cut_off",
    "1 while the process cannot reach PostgreSQL or Redis, as far as it knows.",
)
WORK_HELD = ("drain_work_held_jobs", "Jobs that the process has claimed and not recorded, by their state.")
WORK_ENDED = ("drain_work_jobs", "Tracked jobs that have ended on this process number, by outcome.")
WORK_RUN = ("drain_work_run_seconds", "Time that attempts have run, each counted when it ends.")
WORK_WAIT = (
    "drain_work_wait_seconds",
    "Time from when jobs were due until they began for the first time; pauses and limits included.",
)
WORK_FINISHED = ("drain_work_finished_jobs", "Jobs recorded as finished.")
WORK_FAILED = ("drain_work_failed_attempts", "Attempts recorded as failed, by type of exception.")
WORK_BUSY = (
    "drain_work_busy_seconds",
    "Time that jobs have run on this process number, counted at their end.",
)
WORK_LOST_LEASES = ("drain_work_lost_leases", "Attempts whose job another worker has claimed since.")
WORK_STALE = (
    "drain_work_stale_outcomes",
    "Outcomes of attempts that were refused because their fencing token was stale.",
)
WORK_MEMORY = ("drain_work_memory_bytes", "Resident memory of the process.")
WORK_EXPIRED = ("drain_expired_jobs", "Jobs that were given up since their expires_at had passed.")
WORK_BUILD_INFO = ("drain_build_info", "1; the labels are versions.")

AUDIT_BREACHES = ("drain_audit_breaches", "Breaches that the last audit has found.")
AUDIT_UNCHECKED = ("drain_audit_unchecked", "Checks that the last audit could not make.")
AUDIT_TIMESTAMP = ("drain_audit_timestamp_seconds", "End of the last audit, in seconds since 1970.")
DEPTH = Gauge("drain_redis_depth", "Ids in the queue's Redis list, of tracked and other jobs.", ["queue"])
WAIT = Gauge(
    "drain_wait_seconds",
    "Time that the queue's oldest due job has waited for a worker, staged or in flight; 0 if no job waits.",
    ["queue"],
)
WAITING = Gauge(
    "drain_waiting_jobs",
    "Jobs of the queue that wait, staged or in flight, by cause; counted up to 10000, which means that or more.",
    ["queue", "cause"],
)
WORKERS = Gauge("drain_queue_workers", "Live workers that take the queue's tracked jobs.", ["queue"])

# From 0: alarms miss growth in a series that begins at 1.
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
    """Return a queue's label: its name for the first thousand, then `(others)`."""
    if queue not in _labels:
        if len(_labels) >= _MOST_QUEUES:
            return OTHER_QUEUES
        _labels.add(queue)
    return queue


def count_arrived(jobs: Mapping[tuple[str, str], int]) -> None:
    """Count jobs that left `staged_jobs` for Redis."""
    for labels, number in jobs.items():
        child = _pairs.get(labels)
        if child is None:
            queue, job = labels
            if len(_pairs) < _MOST_PAIRS:
                child = _pairs[labels] = ARRIVED.labels(queue_label(queue), job)
            else:
                child = ARRIVED.labels(queue_label(queue), OTHERS)
        child.inc(number)
