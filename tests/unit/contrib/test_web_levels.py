"""Levels of the overview: bounded samples from one thread, which ends after the last visit."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator

import pytest

from drain.contrib.web import charts, levels
from drain.contrib.web.levels import Level, Levels
from drain.errors import UnavailableError
from drain.read.queue_overview import Number
from tests.helpers import wait_until

SAMPLER = "drain web levels"


def level(number: int) -> Level:
    return Level(Number(number), Number(2 * number))


# Of pages that other tests of this process have left open.
_OTHERS = set[threading.Thread]()


def samplers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == SAMPLER and thread not in _OTHERS]


@pytest.fixture(autouse=True)
def other_samplers() -> None:
    _OTHERS.update(samplers())


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, other_samplers: None) -> Iterator[Levels]:
    monkeypatch.setattr(levels, "EVERY_SECONDS", 0.02)
    # Longer than the test waits for the end of the thread.
    monkeypatch.setattr(levels, "SAMPLES", 10_000)
    made = Levels()
    yield made
    made.close()
    wait_until(lambda: not samplers())


def known(found: Levels) -> list[Level]:
    return [each for each in found.curve() if each is not None]


def test_one_thread_samples_for_all_visits_and_ends_with_the_site(found: Levels) -> None:
    for number in range(3):
        found.visit(level(number), lambda: level(7))
    assert len(samplers()) == 1
    wait_until(lambda: len(known(found)) > 5)
    # The first visit is a sample.
    assert known(found)[0] == level(0)
    assert known(found)[-1] == level(7)
    found.close()
    wait_until(lambda: not samplers())
    found.visit(level(1), lambda: level(7))
    assert not samplers()


def test_sampling_is_bounded_and_ends_after_the_last_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "EVERY_SECONDS", 0.05)
    monkeypatch.setattr(levels, "SAMPLES", 20)
    found, sizes = Levels(), list[int]()

    def read() -> Level:
        sizes.append(len(found.curve()))
        return level(1)

    found.visit(level(0), read)
    wait_until(lambda: not samplers())
    assert 2 <= max(sizes) <= 20
    assert len(found._samples) <= 20
    # Samples age also while there is no thread; a visit starts it again.
    wait_until(lambda: not found.curve())
    found.visit(level(0), read)
    assert len(samplers()) == 1
    found.close()
    wait_until(lambda: not samplers())


def test_a_visit_saves_the_thread_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(levels, "monotonic", lambda: now)
    found, reads = Levels(), list[int]()

    def read() -> Level:
        reads.append(1)
        return level(9)

    for now in (0.0, 2.0, 61.0):
        found._note(level(int(now)))
        found._sample(read)
    assert (found.curve(), reads) == ([level(0), level(61)], [])
    now = 125.0
    found._sample(read)
    found._sample(read)
    assert (found.curve()[2:], reads) == ([level(9)], [1])


@pytest.mark.parametrize("error", [UnavailableError("away"), RuntimeError("broken")])
def test_a_failed_sample_is_a_gap(found: Levels, error: Exception) -> None:
    failures = [error, error]

    def read() -> Level:
        if failures:
            raise failures.pop()
        return level(2)

    found.visit(level(1), read)
    wait_until(lambda: level(2) in found.curve())
    assert None in found.curve()


def numbers(*given: int | None) -> list[Number | None]:
    return [None if each is None else Number(each) for each in given]


def test_a_sparkline_needs_five_samples() -> None:
    assert charts.level(numbers(1, 2, None, None, 3, 4), "waiting") == ""
    drawn = charts.level(numbers(1, 2, None, 3, 4, 1_200), "waiting")
    assert 'aria-label="1 to 1,200 waiting in the last 6m"' in drawn
    assert "about 1,200 waiting" in charts.level(
        [*numbers(0, 0, 0, 0), Number(1_234, is_estimate=True)], "waiting"
    )


def test_a_sparkline_grows_to_the_right_and_keeps_its_peaks() -> None:
    few = re.findall(r"M([\d.]+) ", charts.level(numbers(*range(1, 6)), "running"))
    assert [float(x) for x in few] == [pytest.approx(144 / 60 * at, abs=0.1) for at in range(5)]
    many = charts.level(numbers(*[1] * 400, 100, *[1] * 319), "running")
    assert many.count("M") == 60
    assert re.findall(r"v-28\.0h", many) == ["v-28.0h"]
