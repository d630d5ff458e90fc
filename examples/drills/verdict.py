"""Verdict of a drill: evidence that the race took place, and that it did no harm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """Possible outcomes of a drill."""

    SURVIVED = "survived"
    NOT_PROVEN = "not proven"
    NOT_SURVIVED = "not survived"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Claim that has to hold, and the finding.

    Attributes:
        claim: Condition that has to hold, and the table that shows it.
        found: Finding, in a few words.
        holds: True if the claim holds.
    """

    claim: str
    found: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict of one drill.

    Attributes:
        happened: Summary of the race, in one sentence.
        race: Evidence that the race took place.
        survival: Evidence that the race did no harm.
    """

    happened: str
    race: Sequence[Evidence]
    survival: Sequence[Evidence]

    @property
    def outcome(self) -> Outcome:
        """Outcome by the evidence: not proven unless the race took place, whatever was survived."""
        if not self.race or not all(each.holds for each in self.race):
            return Outcome.NOT_PROVEN
        if not self.survival or not all(each.holds for each in self.survival):
            return Outcome.NOT_SURVIVED
        return Outcome.SURVIVED

    @property
    def passed(self) -> bool:
        """True if the race took place and was survived."""
        return self.outcome is Outcome.SURVIVED
