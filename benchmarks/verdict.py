"""Verdict on a ratio that was measured in rounds: whether it holds what is recorded, has fallen, or cannot be told.

The bound is 0.8 of the recorded median. The verdict is that of a sign test, which assumes nothing about the noise but
that the rounds are independent: if the median lay below the bound, each round would be above it with a probability of
at most one half. So a ratio holds if at most k of n rounds are below the bound, k being the largest number for which n
tosses of a coin show k heads or fewer with a probability of at most 0.1; it has fallen if at most k of n are above.
This is the same as an interval of the median from order statistics: from 4 rounds on its lower end is the lowest
round, from 7 on the second lowest, from 9 on the third.

The record is noisy as well: a ratio has fallen only if it is below 0.8 of the lower bound of the recorded median. The
probabilities are those of one look; the check looks after each round, so that they add up where it looks often.
"""

from __future__ import annotations

import statistics
from enum import Enum
from math import comb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Part of the recorded ratio that must be left.
ALLOWED = 0.8
# Upper bound of the probability that a ratio whose median is at the bound is said to hold, and that it is said to have
# fallen.
DOUBT = 0.1


class Verdict(Enum):
    """What the rounds of one ratio allow to say."""

    HOLDS = "holds"
    FELL = "fell"
    CANNOT_TELL = "cannot tell"


def verdict(ratios: Sequence[float], recorded: Sequence[float]) -> Verdict:
    """Judge a ratio, of which higher is better.

    Args:
        ratios: Ratio of each round.
        recorded: Ratios of the rounds that were recorded; from fewer than four nothing can have fallen.
    """
    low, high = interval(ratios)
    if low is not None and low >= ALLOWED * statistics.median(recorded):
        return Verdict.HOLDS
    before, _ = interval(recorded)
    has_fallen = high is not None and before is not None and high < ALLOWED * before
    return Verdict.FELL if has_fallen else Verdict.CANNOT_TELL


def interval(ratios: Sequence[float]) -> tuple[float | None, float | None]:
    """Bounds of the median, each wrong with a probability of at most DOUBT; None while the rounds are too few."""
    ordered = sorted(ratios)
    rank = _rank(len(ordered))
    return (ordered[rank], ordered[-1 - rank]) if rank is not None else (None, None)


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Exit code of the check: 0 if all hold, 1 if one has fallen, 3 if one cannot be told and none has fallen."""
    if Verdict.FELL in verdicts:
        return 1
    return 3 if Verdict.CANNOT_TELL in verdicts else 0


def of_recorded(ratios: Sequence[float], recorded: float) -> float:
    """The median, as a part of what is recorded."""
    return statistics.median(ratios) / recorded


def _rank(rounds: int) -> int | None:
    """Number of the lowest rounds that may lie below a bound of the median."""
    below, rank = 0.0, None
    for number in range(rounds):
        below += comb(rounds, number) / 2**rounds
        if below > DOUBT:
            break
        rank = number
    return rank
