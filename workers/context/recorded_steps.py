"""Steps of one attempt: recorded results, and the names in use."""

from __future__ import annotations

import threading

from drain.jobs.values import LONGEST_KEY
from drain.tables.steps import Recorded, Step
from drain.workers.errors import Parked, StepError


def fitting(name: str) -> str:
    """Return a step's name, or a hash of one that is too long."""
    if len(name) <= LONGEST_KEY:
        return name
    # Jobs without steps do not need it.
    from hashlib import sha256

    return sha256(name.encode()).hexdigest()


class Steps:
    """Steps of one attempt.

    Attributes:
        kept: Results of earlier attempts; None until read.
        used: Names used in this attempt.
        running: Names of steps whose function or commit has not ended.
        doubtful: Names of steps that may have been recorded although they raised.
        sleeps: Number of sleeps without a name.
        wait: The first one that was raised to end the attempt.
    """

    def __init__(self, kept: dict[str, Recorded] | None = None) -> None:
        self.lock = threading.Lock()
        self.kept = kept
        self.used: set[str] = set()
        self.running: set[str] = set()
        self.doubtful: set[str] = set()
        self.sleeps = 0
        self.wait: Parked | None = None

    def needs_reading(self, name: str, *, may_have_some: bool) -> bool:
        """Return False if there is nothing more to know of a step."""
        if name in self.doubtful:
            return True
        if self.kept is None and not may_have_some:
            self.kept = {}
        return self.kept is None

    def take(self, name: str, was: str | None) -> Step | None:
        """Return a recorded step, or raise StepError if its name is used twice.

        Args:
            was: Its name in earlier versions of the code.
        """
        with self.lock:
            if name in self.used:
                raise StepError(
                    f"two steps of a job are named {name!r}: give each its own name, such as {name + ' 2'!r}"
                )
            self.used.add(name)
            for known in (name, was):
                if known is not None and self.kept and (recorded := self.kept.get(known)):
                    self.used.add(known)
                    return Step(name, recorded.result, 0.0)
        return None
