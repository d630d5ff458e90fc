"""The soak's judge of growth: a leak is found, noise is not."""

from __future__ import annotations

from collections.abc import Callable
from math import sin
from random import Random

import pytest

from tests.soak import flat
from tests.soak.flat import Growth, Sample

MIB = 1 << 20
HOUR = 3600.0


def growth_of(value: Callable[[float], float], *, kind: str = "memory", seconds: float = 2 * HOUR) -> Growth:
    """Judge a made-up series of a thousand samples."""
    samples = (Sample(at, {kind: {"made up": value(at)}}) for at in (seconds * n / 1000 for n in range(1000)))
    (found,) = flat.growth(flat.series(samples), seconds)
    return found


def noisy(at: float) -> float:
    """Eighty MiB that come and go by a tenth, a window of ten minutes, and rare peaks of the double."""
    chance = Random(at)
    wave = 80 * MIB * (1 + 0.05 * sin(at / 95) + chance.gauss(0, 0.05))
    return wave * (2 if chance.random() < 0.1 else 1)


def test_a_flat_noisy_series_is_flat() -> None:
    found = growth_of(noisy)
    assert not found.is_too_much
    assert flat.leaks([found], 2 * HOUR) == []


@pytest.mark.parametrize("hours", [2, 24])
def test_a_leak_under_noise_is_found(hours: int) -> None:
    found = growth_of(lambda at: noisy(at) + 60 * MIB * at / (hours * HOUR), seconds=hours * HOUR)
    assert found.is_too_much
    assert flat.leaks([found], hours * HOUR) == [found]
    assert found.per_day == pytest.approx(60 * MIB * 24 / hours, rel=0.2)


def test_growth_while_warming_up_is_allowed() -> None:
    assert not growth_of(lambda at: 80 * MIB * min(1, at / (2400 - 1))).is_too_much


@pytest.mark.parametrize("kind", flat.BOUNDS)
def test_steady_growth_from_nothing_is_found_in_each_kind(kind: str) -> None:
    assert growth_of(lambda at: 1024 * MIB * at / HOUR, kind=kind).is_too_much


def test_a_sawtooth_of_windows_is_flat() -> None:
    assert not growth_of(lambda at: 20 * MIB * (at % 600) / 600, kind="tables").is_too_much


def test_a_short_run_does_not_fail_by_growth() -> None:
    found = growth_of(lambda at: at * MIB, seconds=720)
    assert found.is_too_much
    assert flat.leaks([found], 720) == []


def test_a_series_with_few_samples_is_not_judged() -> None:
    samples = [Sample(at, {"disk": {"logs": at}}) for at in (0, 1, 2, 3, 4)]
    assert flat.growth(flat.series(samples), 5) == []
