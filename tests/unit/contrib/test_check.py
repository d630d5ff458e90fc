"""`make bench-check`: its rounds, what it prints, and its exit code."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import cast

import pytest

from benchmarks import check, servers
from benchmarks.check_figures import Group
from benchmarks.peers import results
from benchmarks.peers.bench import Bench
from benchmarks.peers.results import Results

RECORDED = {"rate": [2.0, 2.1, 2.0, 2.0, 1.9], "time": [1.0] * 4}


def run_check(monkeypatch: pytest.MonkeyPatch, **series: Iterator[float]) -> tuple[object, dict[str, int]]:
    """Run the check on ratios that are made up, a group for each; returns the exit code and the rounds by ratio."""
    rounds = dict.fromkeys(series, 0)

    def group(name: str, values: Iterator[float]) -> Group:
        def measure(_place: Bench, number: int) -> dict[str, float]:
            assert number == rounds[name]
            rounds[name] += 1
            return {name: next(values)}

        return Group(name, measure)

    groups = [group(name, values) for name, values in series.items()]
    monkeypatch.setattr(check, "groups", lambda: groups)
    monkeypatch.setattr(check, "bench", lambda _: nullcontext(cast("Bench", None)))
    monkeypatch.setattr(check, "_install", lambda: None)
    monkeypatch.setattr(servers, "running", lambda _: nullcontext())
    monkeypatch.setattr(servers, "title", lambda _: "none")
    monkeypatch.setattr(results, "load", lambda _: Results(check=dict(RECORDED)))
    monkeypatch.setattr(sys, "argv", ["check"])
    with pytest.raises(SystemExit) as ended:
        check.main()
    return ended.value.code, rounds


def test_a_decided_ratio_is_not_measured_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_check(monkeypatch, rate=itertools.repeat(2.0), time=itertools.cycle([0.5, 1.5]))
    assert found == (3, {"rate": 4, "time": check.ROUNDS})
    printed = capsys.readouterr().out
    assert "| rate | 2 | 2 – 2 | 2 | 1.00 | 4 | holds |" in printed
    assert "CANNOT TELL" in printed


def test_a_fallen_ratio_fails_the_check_even_if_others_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_check(monkeypatch, rate=itertools.repeat(1.5), time=itertools.repeat(1.0))
    assert found == (1, {"rate": 4, "time": 4})
    assert "FELL" in capsys.readouterr().out


def test_a_ratio_without_a_recorded_value_is_shown_but_does_not_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_check(monkeypatch, new=itertools.repeat(0.1)) == (0, {"new": 1})
    assert "not recorded" in capsys.readouterr().out
