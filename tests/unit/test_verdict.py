"""Verdict of `make bench-check` on ratios that were measured in rounds."""

from __future__ import annotations

import random

import pytest

from benchmarks.verdict import Verdict, exit_code, interval, verdict

HOLDS, FELL, CANNOT_TELL = Verdict.HOLDS, Verdict.FELL, Verdict.CANNOT_TELL


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        pytest.param([1.0] * 3, CANNOT_TELL, id="three rounds are too few, however alike"),
        pytest.param([0.81, 1.3, 0.9, 1.0], HOLDS, id="four rounds above the bound"),
        pytest.param([0.79, 0.5, 0.7, 0.3], FELL, id="four rounds below it"),
        pytest.param([0.79, 1.0, 1.0, 1.0], CANNOT_TELL, id="one of four below it"),
        pytest.param([0.1, *[1.0] * 5], CANNOT_TELL, id="one of six below it"),
        pytest.param([0.1, *[1.0] * 6], HOLDS, id="one of seven below it, however far"),
        pytest.param([9.0, *[0.7] * 6], FELL, id="one of seven above it, however far"),
        pytest.param([0.7, 0.9] * 6, CANNOT_TELL, id="half of twelve on either side"),
        pytest.param([], CANNOT_TELL, id="no round"),
    ],
)
def test_a_ratio_holds_or_has_fallen_only_if_nearly_all_rounds_say_so(
    ratios: list[float], expected: Verdict
) -> None:
    assert verdict(ratios, [1.0] * 9) is expected


def test_the_bound_is_four_fifths_of_the_recorded_ratio() -> None:
    assert verdict([1.5] * 4, [1.8] * 9) is HOLDS
    assert verdict([1.5] * 4, [2.0] * 9) is FELL


@pytest.mark.parametrize(
    "recorded",
    [
        pytest.param([1.0], id="of one round"),
        pytest.param([0.5, 0.6, *[1.0] * 5], id="whose lower bound is low"),
    ],
)
def test_nothing_is_judged_fallen_against_an_inconclusive_record(recorded: list[float]) -> None:
    assert verdict([0.5] * 12, recorded) is CANNOT_TELL
    assert verdict([0.9] * 12, recorded) is HOLDS


def test_the_order_of_the_rounds_does_not_matter() -> None:
    ratios = [0.7, 0.75, 0.9, 0.95, 1.0, 1.1, 1.2, 1.3, 1.4]
    shuffled = random.Random(5).sample(ratios, len(ratios))
    assert verdict(ratios, [1.0] * 9) is verdict(shuffled, [1.0] * 9) is HOLDS


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [(3, (None, None)), (4, (1.0, 4.0)), (7, (2.0, 6.0)), (9, (3.0, 7.0)), (12, (4.0, 9.0))],
)
def test_the_bounds_of_the_median_follow_from_the_number_of_rounds(
    rounds: int, expected: tuple[float | None, float | None]
) -> None:
    assert interval([float(number) for number in range(1, rounds + 1)]) == expected


def judged(median: float, spread: float, seed: int) -> Verdict:
    """What the check says of a noisy ratio: rounds until there is a verdict, twelve at most."""
    chance = random.Random(seed)
    ratios: list[float] = []
    while len(ratios) < 12:
        ratios.append(median * chance.lognormvariate(0, spread))
        if (found := verdict(ratios, [1.0] * 9)) is not CANNOT_TELL:
            return found
    return CANNOT_TELL


def test_noise_neither_fails_an_unchanged_ratio_nor_hides_one_that_was_halved() -> None:
    unchanged = [judged(1.0, 0.2, seed) for seed in range(300)]
    halved = [judged(0.5, 0.2, seed) for seed in range(300)]
    assert unchanged.count(FELL) == 0
    assert unchanged.count(HOLDS) > 250
    assert halved.count(HOLDS) == 0
    assert halved.count(FELL) > 290


def test_noise_as_large_as_the_ratio_is_inconclusive() -> None:
    assert judged(0.8, 1.0, seed=1) is CANNOT_TELL


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [([HOLDS, HOLDS], 0), ([HOLDS, CANNOT_TELL], 3), ([FELL, CANNOT_TELL], 1), ([], 0)],
)
def test_the_exit_code_distinguishes_a_fall_from_an_inconclusive_result(
    verdicts: list[Verdict], expected: int
) -> None:
    assert exit_code(verdicts) == expected
