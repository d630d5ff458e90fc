"""Steps of one attempt: recorded results, and the names in use."""

from __future__ import annotations

import threading

from drain.tables.steps import Step
from drain.workers.errors import StepError


class Steps:
    """Steps of one attempt.

    Attributes:
        kept: Results of earlier attempts; None until read.
        used: Names used in this attempt.
        running: Names of steps whose function or commit has not ended.
        doubtful: Names of steps that may have been recorded although they raised.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.kept: dict[str, str] | None = None
        self.used: set[str] = set()
        self.running: set[str] = set()
        self.doubtful: set[str] = set()

    def needs_reading(self, name: str, *, may_have_some: bool) -> bool:
        """Return False if there is nothing more to know of a step."""
        if name in self.doubtful:
            return True
        if self.kept is None and not may_have_some:
            self.kept = {}
        return self.kept is None

    def take(self, name: str) -> Step | None:
        """Return a recorded step, or raise StepError if its name is used twice."""
        with self.lock:
            if name in self.used:
                raise StepError(
                    f"two steps of a job are named {name!r}: give each its own name, such as {name + ' 2'!r}"
                )
            self.used.add(name)
        return Step(name, self.kept[name], 0.0) if self.kept and name in self.kept else None
