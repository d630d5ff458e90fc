"""Where a look at the ready rows begins, and when it is a sweep."""

import pytest

from drain.enqueuer import cursor as bound_module
from drain.enqueuer import pacer as pace_module
from drain.enqueuer.cursor import Scan, ScanCursor
from drain.enqueuer.pacer import Pace
from drain.tables.staged import START, DueJob, Key


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The one element is what the clock shows."""
    now = [1000.0]
    monkeypatch.setattr(pace_module, "monotonic", lambda: now[0])
    return now


def look(*keys: Key, is_full: bool = False, sweep_seconds: float | None = None) -> Scan:
    rows = [DueJob(id_, "default", "m.f", None, False, priority) for priority, id_ in keys]
    return Scan(rows, is_full=is_full, sweep_seconds=sweep_seconds)


def test_the_first_look_is_a_sweep() -> None:
    assert ScanCursor().sweep_is_due()
    assert ScanCursor().key == START


def test_a_look_begins_behind_the_last_row_of_the_one_before() -> None:
    bound = ScanCursor()
    bound.passed(look((0, 1), (0, 2), is_full=True))
    assert bound.key == (0, 2)
    bound.passed(look((0, 3), (1, 1)))
    assert bound.key == (1, 1)


def test_after_a_look_that_found_nothing_the_bound_is_where_it_was() -> None:
    bound = ScanCursor()
    bound.passed(look((0, 2)))
    bound.passed(look())
    assert bound.key == (0, 2)


def test_a_sweep_that_found_all_that_was_late_leaves_the_bound_where_it_was() -> None:
    bound = ScanCursor()
    bound.passed(look((0, 9), is_full=True))
    bound.passed(look((-1, 10), (0, 1), sweep_seconds=0.0))
    assert bound.key == (0, 9)


def test_a_sweep_that_may_have_left_some_is_gone_on_with() -> None:
    bound = ScanCursor()
    bound.passed(look((0, 9), is_full=True))
    bound.passed(look((-1, 10), (0, 1), is_full=True, sweep_seconds=0.0))
    assert bound.key == (0, 1)


def test_sweeps_that_take_no_longer_than_they_should_follow_each_other(clock: list[float]) -> None:
    bound = ScanCursor()
    bound.passed(look((0, 1), is_full=True, sweep_seconds=bound_module._LOOK_SECONDS))
    assert bound.sweep_is_due()


def test_a_slow_sweep_puts_the_next_one_off_for_many_times_what_it_took_too_long(clock: list[float]) -> None:
    bound = ScanCursor()
    bound.passed(look((0, 1), is_full=True, sweep_seconds=0.105))
    clock[0] += 4.9
    assert not bound.sweep_is_due()
    clock[0] += 0.2
    assert bound.sweep_is_due()


def test_other_full_looks_neither_hasten_nor_delay_the_next_sweep(clock: list[float]) -> None:
    bound = ScanCursor()
    bound.passed(look((0, 1), is_full=True, sweep_seconds=0.105))
    bound.passed(look((0, 2), is_full=True))
    assert not bound.sweep_is_due()


def test_a_bound_begins_where_its_range_does_and_so_do_its_sweeps() -> None:
    assert ScanCursor(bound_module.PATIENT).key == bound_module.PATIENT.after == (0, 2**63 - 1)
    assert bound_module.URGENT.after == START


def test_many_rows_are_stepped_over_by_the_sweep_that_follows_a_slow_one(clock: list[float]) -> None:
    bound = ScanCursor()
    assert not bound.steps_over_many()
    bound.passed(look(sweep_seconds=0.105))
    assert bound.steps_over_many()
    clock[0] += 3600
    assert bound.steps_over_many()
    bound.passed(look((0, 1), is_full=True, sweep_seconds=0.105))
    assert not bound.steps_over_many()
    bound.passed(look(sweep_seconds=bound_module._LOOK_SECONDS))
    assert not bound.steps_over_many()


@pytest.mark.parametrize("sweep_seconds", [None, 0.105])
def test_a_look_that_is_not_full_is_followed_by_a_sweep(
    clock: list[float], sweep_seconds: float | None
) -> None:
    bound = ScanCursor()
    bound.passed(look((0, 1), is_full=True, sweep_seconds=0.105))
    bound.passed(look((0, 2), sweep_seconds=sweep_seconds))
    assert bound.sweep_is_due()


def test_what_is_quick_comes_at_its_own_interval_and_what_is_slow_later(clock: list[float]) -> None:
    pace = Pace(1.0)
    assert pace.is_due()
    pace.took(0.001)
    clock[0] += 0.9
    assert not pace.is_due()
    clock[0] += 0.2
    assert pace.is_due()
    pace.took(0.1)
    clock[0] += 4.9
    assert not pace.is_due()
    clock[0] += 0.2
    assert pace.is_due()


def test_nothing_is_put_off_for_more_than_a_minute(clock: list[float]) -> None:
    pace = Pace()
    pace.took(1000.0)
    clock[0] += 60.0
    assert pace.is_due()
