"""Log records of a running job carry its id, name and attempt."""

from __future__ import annotations

from drain import log
from drain.workers.context.current import job_fields


def install() -> None:
    """Let log records carry their job; repeatable."""
    log.carry_job(job_fields)
