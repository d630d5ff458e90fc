"""What a drill has found: evidence that the race took place, and that it was survived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """All that a drill can come to."""

    SURVIVED = "survived"
    NOT_PROVEN = "not proven"
    NOT_SURVIVED = "not survived"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that has to be so, and what was found.

    Attributes:
        claim: What has to be so, and which table says it.
        found: What was found, in a few words.
        holds: Whether it is so.
    """

    claim: str
    found: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one drill came to.

    Attributes:
        happened: What was done, in one sentence.
        race: Evidence that it took place.
        survival: Evidence that it harmed nothing.
    """

    happened: str
    race: Sequence[Evidence]
    survival: Sequence[Evidence]

    @property
    def outcome(self) -> Outcome:
        """Without a race there is nothing to survive."""
        if not self.race or not all(each.holds for each in self.race):
            return Outcome.NOT_PROVEN
        if not self.survival or not all(each.holds for each in self.survival):
            return Outcome.NOT_SURVIVED
        return Outcome.SURVIVED

    @property
    def passed(self) -> bool:
        """Whether the race took place and was survived."""
        return self.outcome is Outcome.SURVIVED
