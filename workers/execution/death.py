"""Death of a job: why it has gone to `dead_jobs`, for RQ's books and exception handlers."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from drain.workers.errors import JobDeadError


class Death(NamedTuple):
    """Why a job is dead.

    Attributes:
        job_id: The job.
        queue: Its queue; "" if the job could not even be claimed.
        explanation: The text in `dead_jobs`.
        traceback: Traceback of the exception that the job raised, if any, as text.
        cause: That exception, if it was raised in this process.
        job_name: Name of the job; "" if the job could not even be claimed.
    """

    job_id: int
    queue: str
    explanation: str
    traceback: str = ""
    cause: BaseException | None = None
    job_name: str = ""

    def exception(self) -> Exception:
        """Return what the job raised, with the explanation as a note; a JobDeadError if it raised no Exception."""
        line = f"job {self.job_id} is dead: {self.explanation}"
        # What isinstance() asks of an exception may raise.
        if self.cause is None or not issubclass(type(self.cause), Exception):
            dead = JobDeadError(f"{line}\n\n{self.traceback}" if self.traceback else line)
            dead.drain_job_id = self.job_id
            return dead
        with suppress(Exception):
            # Tells a tool that hears of it from RQ that it is that of a tracked job.
            self.cause.drain_job_id = self.job_id  # type: ignore[attr-defined]
            if line not in getattr(self.cause, "__notes__", ()):
                self.cause.add_note(line)
        return self.cause  # type: ignore[return-value]
