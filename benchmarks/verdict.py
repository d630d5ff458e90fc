"""Verdict on a ratio measured in rounds: it holds, it fell, or more rounds are needed.

The bound is 0.8 of the recorded median. A sign test decides; it assumes only that the rounds are independent. If the
median were below the bound, each round would be above it with a probability of at most one half. So a ratio holds if at
most k of n rounds are below the bound, where k is the largest number such that n coin tosses show at most k heads with
a probability of at most 0.1; it fell if at most k of n are above. This is an order-statistics interval of the median:
its lower end is the lowest round from 4 rounds on, the second lowest from 7, and the third from 9.

The record is noisy too, so a ratio fell only if it is below 0.8 of the lower bound of the recorded median. The
probabilities are those of a single look; the check looks after each round, so they add up over many looks.
"""

from __future__ import annotations

import statistics
from enum import Enum
from math import comb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Fraction of the recorded ratio that must remain.
ALLOWED = 0.8
# For a ratio whose median is at the bound, maximum probability of the verdict "holds", and of the verdict "fell".
DOUBT = 0.1


class Verdict(Enum):
    """Conclusion from the rounds of one ratio."""

    HOLDS = "holds"
    FELL = "fell"
    CANNOT_TELL = "cannot tell"


def verdict(ratios: Sequence[float], recorded: Sequence[float]) -> Verdict:
    """Judge a ratio; higher is better.

    Args:
        ratios: Ratio of each round.
        recorded: Ratio of each recorded round; with fewer than four, the verdict is never `FELL`.
    """
    low, high = interval(ratios)
    if low is not None and low >= ALLOWED * statistics.median(recorded):
        return Verdict.HOLDS
    before, _ = interval(recorded)
    has_fallen = high is not None and before is not None and high < ALLOWED * before
    return Verdict.FELL if has_fallen else Verdict.CANNOT_TELL


def interval(ratios: Sequence[float]) -> tuple[float | None, float | None]:
    """Bounds of the median, each wrong with a probability of at most DOUBT; None if there are too few rounds."""
    ordered = sorted(ratios)
    rank = _rank(len(ordered))
    return (ordered[rank], ordered[-1 - rank]) if rank is not None else (None, None)


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Exit code of the check: 0 if all hold, 1 if any fell, 3 if none fell but some are undecided."""
    if Verdict.FELL in verdicts:
        return 1
    return 3 if Verdict.CANNOT_TELL in verdicts else 0


def of_recorded(ratios: Sequence[float], recorded: float) -> float:
    """Median as a fraction of the recorded ratio."""
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
