"""Every metric of the project, declared once. Times are in seconds.

Those of `drain work` are names and help texts alone: they are read from the memory of its processes.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

_BATCH_SIZES = (1, 10, 100, 500, 1000, 2000, 5000, 10_000, 50_000, 100_000)
_DURATIONS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)

LEADER = Gauge("drain_leader", "1 while this process is the leader, 0 while it stands by.")
MOVED = Counter("drain_moved_jobs", "Jobs moved from staged_jobs to inflight_jobs.")
PUSHED = Counter("drain_pushed_jobs", "Jobs pushed into Redis.", ["queue"])
REDELIVERED = Counter("drain_redelivered_jobs", "Jobs pushed once more, by reason.", ["reason"])
DEAD = Counter("drain_dead_jobs", "Jobs that the enqueuer gave up, by reason.", ["reason"])
FAILING = Gauge(
    "drain_queue_failing", "1 while the queue's retries are let through one at a time.", ["queue"]
)
STALE = Counter("drain_stale_finishes", "Outcomes that came with a stale fencing token and were refused.")
FAILURES = Counter("drain_failures", "Rounds that failed, by the store that failed.", ["store"])
TRUNCATED = Counter("drain_truncated_partitions", "Partitions of staged_jobs truncated after their turns.")
DROPPED_DAYS = Counter("drain_dropped_days", "Days of finished_jobs that --keep-days no longer keeps.")
BATCH_SIZE = Histogram("drain_batch_jobs", "Rows of one batch.", buckets=_BATCH_SIZES)
MOVE_SECONDS = Histogram("drain_move_seconds", "One batch's transaction.", buckets=_DURATIONS)
PUSH_SECONDS = Histogram("drain_push_seconds", "One batch's push into Redis.", buckets=_DURATIONS)
KEPT = Gauge(
    "drain_dead_jobs_kept",
    "Rows in dead_jobs, whoever gave them up; counted up to 100000, which means that or more.",
)
STAGED = Gauge("drain_staged_jobs", "Rows in staged_jobs; counted up to 100000, which means that or more.")
LAG = Gauge("drain_lag_seconds", "How long the longest-waiting due row has been due.")

WORK_ALIVE = ("drain_work_alive", "1 while a worker process of this number lives and works.")
WORK_CUT_OFF = (
    "drain_work_cut_off",
    "1 while the process cannot reach PostgreSQL or Redis, as far as it knows.",
)
WORK_HELD = ("drain_work_held_jobs", "Jobs that the process has claimed and not recorded, by what they do.")
WORK_ENDED = ("drain_work_jobs", "Tracked jobs that have ended on this process number, by outcome.")
DEPTH = Gauge("drain_redis_depth", "Ids in the queue's Redis list, whoever pushed them.", ["queue"])
WAIT = Gauge(
    "drain_wait_seconds",
    "How long the queue's oldest job that is due has waited for a worker, wherever it waits; 0 if none does.",
    ["queue"],
)
WORKERS = Gauge("drain_queue_workers", "Live workers that take the queue's tracked jobs.", ["queue"])

# Upper bound of the queues that have labels of their own: applications choose the names of queues.
_MOST_QUEUES = 1000
OTHER_QUEUES = "(others)"
_labels: set[str] = set()


def queue_label(queue: str) -> str:
    """Label of a queue: its name for the first thousand queues of this process, `(others)` for all that follow."""
    if queue not in _labels:
        if len(_labels) >= _MOST_QUEUES:
            return OTHER_QUEUES
        _labels.add(queue)
    return queue
