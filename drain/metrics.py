"""All metrics, declared once. Times are in seconds.

Metrics of `drain work` are declared as pairs of name and help text: the supervisor reads their values from the shared
memory of its processes.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

# Upper bounds of the buckets: rows, and seconds.
_BATCH_SIZES = (1, 10, 100, 500, 1000, 2000, 5000, 10_000, 50_000, 100_000)
_DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

LEADER = Gauge("drain_leader", "1 while this process is the leader, 0 while it is a standby.")
MOVED = Counter("drain_moved_jobs", "Jobs moved from staged_jobs to inflight_jobs.")
PUSHED = Counter("drain_pushed_jobs", "Jobs pushed into Redis.", ["queue"])
REDELIVERED = Counter("drain_redelivered_jobs", "Jobs pushed once more, by reason.", ["reason"])
DEAD = Counter("drain_dead_jobs", "Jobs that the enqueuer moved to dead_jobs, by reason.", ["reason"])
SUPERSEDED = Counter("drain_superseded_jobs", "Jobs that gave way to another one with their unique key.")
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

WORK_ALIVE = ("drain_work_alive", "1 while the worker process of this number is alive and working.")
WORK_CUT_OFF = (
    "drain_work_cut_off",
    "1 while the process cannot reach PostgreSQL or Redis, as far as it knows.",
)
WORK_HELD = ("drain_work_held_jobs", "Jobs that the process has claimed and not recorded, by their state.")
WORK_ENDED = ("drain_work_jobs", "Tracked jobs that have ended on this process number, by outcome.")
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
WANTED = Gauge(
    "drain_wanted_workers",
    "Workers of one job at a time that the queue needs to finish its backlog within 30 s, beside what arrives.",
    ["queue"],
)
WORKERS = Gauge("drain_queue_workers", "Live workers that take the queue's tracked jobs.", ["queue"])

# Upper bound of the queues that have labels of their own: applications choose the names, and may choose many.
_MOST_QUEUES = 1000
OTHER_QUEUES = "(others)"
_labels: set[str] = set()


def queue_label(queue: str) -> str:
    """Choose the label of a queue: its name for the first thousand queues of this process, then `(others)`."""
    if queue not in _labels:
        if len(_labels) >= _MOST_QUEUES:
            return OTHER_QUEUES
        _labels.add(queue)
    return queue
