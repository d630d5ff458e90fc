"""Points where a process may die without harm. Only a test's hook can kill it there."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class FailurePoint(StrEnum):
    """Failure points, in the order a job passes them."""

    LEADING = "the lock of the leader is held, deliveries that were never pushed not pushed yet"
    RECOVERED = "unclaimed deliveries pushed again, Redis not marked as fed by this database"
    TICKED = "jobs of ticks staged, their schedules not moved on"
    TICKS_COMMITTED = "jobs of ticks committed, not read by the drain"
    JUDGED = "ended predecessors seen and their edges changed, the jobs that waited for them not"
    UNBLOCKED = "jobs unblocked, not committed"
    WAITS_ENDED = "waits for events ended and committed, their jobs not redelivered"
    MATURED = "scheduled rows made ready, their transaction not committed"
    SUPERSEDED = "jobs that give way to another one of their unique key recorded as superseded, not committed"
    READ = "staged rows read, not moved"
    MOVED = "staged rows moved to inflight_jobs, others forwarded, nothing committed"
    ADMITTED = "rows of queues with rules moved and committed, not counted as running yet"
    COMMITTED = "the move committed, nothing of the batch pushed"
    PUSHED_A_SLICE = "a part of the batch pushed, the rest not"
    PUSHED = "the whole batch pushed, the watermark not moved"
    WATERMARK_MOVED = "the watermark moved"
    BURIED = "a row that cannot be moved put into dead_jobs"
    FORWARDED = "forwarded rows deleted, not pushed"
    PUSHED_FORWARD = "forwarded rows pushed, their deletion not committed"
    CALLED_BACK = "deliveries of paused jobs called back, their ids still in Redis"
    RENUMBERED = "a redelivery has its new delivery number, not pushed"
    PUSHED_AGAIN = "a redelivery pushed, its former delivery not removed from Redis"
    FORGOTTEN = "the former delivery removed from Redis, the watermark not moved"
    ASLEEP = "the enqueuer asleep, and transactions that stage will notify it"

    STAGED_ONCE = "a job and its idempotency key staged, their transaction not committed"
    CANCELLED = "staged jobs of a cancel put into dead_jobs, those in flight not"
    CHANGED = "staged jobs given another queue, priority or time, those in flight not"

    POPPED = "ids popped from Redis, not claimed"
    CLAIMED = "jobs claimed, not run"
    EXTENDED = "leases extended, their jobs still running"
    STEP_RAN = "a step has run, its result not recorded"
    STEP_RECORDED = "the result of a step committed, the job not finished"
    WRITTEN = "the writes of the job's transaction made, the job not finished"
    FINISHED_AND_COMMITTED = "the job's transaction committed with its finish, RQ's books not updated"
    RAN = "the job has run, its outcome not recorded"
    RECORDED = "the outcome recorded, RQ's books not updated"
    REFUSED = "a stale outcome refused, the refusal not noted in stale_finishes"


_hook: Callable[[FailurePoint], None] | None = None


def failpoint(point: FailurePoint) -> None:
    """Mark a reached point."""
    if _hook is not None:
        _hook(point)


def set_hook(hook: Callable[[FailurePoint], None] | None) -> None:
    """Set the function called at each point."""
    global _hook  # noqa: PLW0603
    _hook = hook
