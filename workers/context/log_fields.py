"""Log records of a running job: they carry its id, its name and the number of its attempt."""

from __future__ import annotations

from drain import log
from drain.workers.context.current import job_fields


def install() -> None:
    """Let each log record of this process carry the job that is running in its thread or task; may be called again."""
    log.carry_job(job_fields)
