"""Death of a job, for RQ's records and exception handlers."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from drain.workers.errors import JobDeadError


class Death(NamedTuple):
    """Why a job is dead.

    Attributes:
        queue, job_name: "" if unclaimable.
        cause: Exception raised in this process.
    """

    job_id: int
    queue: str
    explanation: str
    traceback: str = ""
    cause: BaseException | None = None
    job_name: str = ""

    def exception(self) -> Exception:
        """Return the cause with the explanation as a note; else a JobDeadError."""
        line = f"job {self.job_id} is dead: {self.explanation}"
        if self.cause is None or not issubclass(type(self.cause), Exception):
            dead = JobDeadError(f"{line}\n\n{self.traceback}" if self.traceback else line)
            dead.drain_job_id = self.job_id
            return dead
        with suppress(Exception):
            # For tools that get it from RQ.
            self.cause.drain_job_id = self.job_id  # type: ignore[attr-defined]
            if line not in getattr(self.cause, "__notes__", ()):
                self.cause.add_note(line)
        return self.cause  # type: ignore[return-value]
