"""The instants between two steps that touch a store, each with a name: where dying must harm nothing.

Nothing happens there, unless a test has set a hook in its own process that kills it. There is no setting
for it, so no configuration can switch one on.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum


class FailurePoint(StrEnum):
    """All of them, in the order in which a job passes them."""

    LEADING = "the lock is held, nothing recovered"
    RECOVERED = "what was left to push has been pushed, Redis not marked"
    MATURED = "scheduled rows made ready, not committed"
    TAKEN = "rows read, not moved"
    MOVED = "rows moved, not committed"
    COMMITTED = "the move committed, nothing pushed"
    PUSHED_A_SLICE = "a part of the batch pushed"
    PUSHED = "all pushed, the watermark not moved"
    WATERMARK_MOVED = "the watermark written down"
    BURIED = "a row that cannot be moved given up"
    FORWARDED = "forwarded rows deleted, not pushed"
    PUSHED_FORWARD = "forwarded rows pushed, their deletion not committed"
    RENUMBERED = "a redelivery numbered, not pushed"
    PUSHED_AGAIN = "a redelivery pushed, its last one not forgotten"
    FORGOTTEN = "the last delivery forgotten, the watermark not moved"
    ASLEEP = "asleep, and those who stage know it"

    POPPED = "popped, not claimed"
    CLAIMED = "claimed, not run"
    EXTENDED = "the lease extended, the job in the middle"
    WRITTEN = "the job's transaction written, not finished"
    SETTLED_AND_COMMITTED = "the job's transaction committed, RQ not told"
    RAN = "run, the outcome not recorded"
    RECORDED = "the outcome recorded, RQ not told"
    REFUSED = "a stale outcome refused, not noted"


_hook: Callable[[FailurePoint], None] | None = None


def failpoint(point: FailurePoint) -> None:
    """To be called at the point; does nothing unless a hook is set."""
    if _hook is not None:
        _hook(point)


def set_hook(hook: Callable[[FailurePoint], None] | None) -> None:
    """Let `hook` be called, in whatever thread, with each point that this process reaches."""
    global _hook  # noqa: PLW0603
    _hook = hook
