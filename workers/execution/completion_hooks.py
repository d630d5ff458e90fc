"""Hooks of `drain.on_finish` and `drain.on_dead`, called after recording."""

from __future__ import annotations

import logging

from drain import hooks
from drain.formatting import visible
from drain.workers.context.current import Attempt

log = logging.getLogger(__name__)


def are_wanted() -> bool:
    """Return True if there are such hooks."""
    return bool(hooks.finish_hooks or hooks.dead_hooks)


def call(attempt: Attempt, reason: str | None = None) -> None:
    """Call the hooks of a finished job, or one dead for this reason; log exceptions."""
    if reason is None:
        for hook in hooks.finish_hooks:
            _call(hook, attempt)
    else:
        for hook in hooks.dead_hooks:
            _call(hook, attempt, reason)


def _call(hook: hooks.Hook, attempt: Attempt, *more: str) -> None:
    try:
        hook(attempt.current, *more)
    # SystemExit too: the job has ended.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        log.exception(
            "the hook %s failed for job %d (%s), whose outcome is recorded",
            hooks.name_of(hook),
            attempt.claim.id,
            visible(attempt.claim.job_name),
            extra={"event": "hook_failed", "job_id": attempt.claim.id},
        )
