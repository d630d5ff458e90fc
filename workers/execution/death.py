"""A job that has gone to `dead_jobs`, as RQ's books and exception handlers are told of it."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from workers.errors import JobDeadError


class Death(NamedTuple):
    """Why a job is dead.

    Attributes:
        job_id: The job.
        queue: Its queue; "" if the job could not even be claimed.
        explanation: As `dead_jobs` has it.
        traceback: Text of what it raised, if anything.
        cause: What it raised, if that was in this process.
    """

    job_id: int
    queue: str
    explanation: str
    traceback: str = ""
    cause: BaseException | None = None

    def exception(self) -> Exception:
        """What the job raised, with the explanation as a note; a JobDeadError if that is no Exception, or nothing."""
        told = f"job {self.job_id} is dead: {self.explanation}"
        # What isinstance() asks of an exception may raise.
        if self.cause is None or not issubclass(type(self.cause), Exception):
            return JobDeadError(f"{told}\n\n{self.traceback}" if self.traceback else told)
        with suppress(Exception):
            if told not in getattr(self.cause, "__notes__", ()):
                self.cause.add_note(told)
        return self.cause  # type: ignore[return-value]
