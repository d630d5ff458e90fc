"""Where a scan of the staged rows begins, and when it is a sweep."""

import pytest

from drain.enqueuer import cursor as cursor_module, pacer as pacer_module
from drain.enqueuer.cursor import Scan, ScanCursor
from drain.enqueuer.pacer import Pacer
from drain.tables.staged import START, DueJob, Place


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The only element is the time of `monotonic()`."""
    now = [1000.0]
    monkeypatch.setattr(pacer_module, "monotonic", lambda: now[0])
    return now


def scan(*keys: Place, is_full: bool = False, sweep_seconds: float | None = None) -> Scan:
    rows = [DueJob(id_, "default", "m.f", None, False, priority) for priority, id_ in keys]
    return Scan(rows, is_full=is_full, sweep_seconds=sweep_seconds)


def test_the_first_scan_is_a_sweep() -> None:
    assert ScanCursor().sweep_is_due()
    assert ScanCursor().place == START


def test_a_scan_begins_after_the_previous_scans_last_row() -> None:
    cursor = ScanCursor()
    cursor.advance(scan((0, 1), (0, 2), is_full=True))
    assert cursor.place == (0, 2)
    cursor.advance(scan((0, 3), (1, 1)))
    assert cursor.place == (1, 1)


def test_a_scan_that_found_nothing_leaves_the_cursor_where_it_was() -> None:
    cursor = ScanCursor()
    cursor.advance(scan((0, 2)))
    cursor.advance(scan())
    assert cursor.place == (0, 2)


def test_a_sweep_that_found_every_late_row_does_not_move_the_cursor() -> None:
    cursor = ScanCursor()
    cursor.advance(scan((0, 9), is_full=True))
    cursor.advance(scan((-1, 10), (0, 1), sweep_seconds=0.0))
    assert cursor.place == (0, 9)


def test_scans_continue_from_the_end_of_a_full_sweep() -> None:
    cursor = ScanCursor()
    cursor.advance(scan((0, 9), is_full=True))
    cursor.advance(scan((-1, 10), (0, 1), is_full=True, sweep_seconds=0.0))
    assert cursor.place == (0, 1)


def test_fast_sweeps_may_follow_each_other_directly(clock: list[float]) -> None:
    cursor = ScanCursor()
    cursor.advance(scan((0, 1), is_full=True, sweep_seconds=cursor_module._SCAN_SECONDS))
    assert cursor.sweep_is_due()


def test_a_slow_sweep_delays_the_next_by_a_multiple_of_its_overrun(clock: list[float]) -> None:
    cursor = ScanCursor()
    cursor.advance(scan((0, 1), is_full=True, sweep_seconds=0.105))
    clock[0] += 4.9
    assert not cursor.sweep_is_due()
    clock[0] += 0.2
    assert cursor.sweep_is_due()


def test_other_full_scans_neither_hasten_nor_delay_the_next_sweep(clock: list[float]) -> None:
    cursor = ScanCursor()
    cursor.advance(scan((0, 1), is_full=True, sweep_seconds=0.105))
    cursor.advance(scan((0, 2), is_full=True))
    assert not cursor.sweep_is_due()


@pytest.mark.parametrize("sweep_seconds", [None, 0.105])
def test_a_scan_that_is_not_full_is_followed_by_a_sweep(
    clock: list[float], sweep_seconds: float | None
) -> None:
    cursor = ScanCursor()
    cursor.advance(scan((0, 1), is_full=True, sweep_seconds=0.105))
    cursor.advance(scan((0, 2), sweep_seconds=sweep_seconds))
    assert cursor.sweep_is_due()


def test_quick_work_comes_at_its_own_interval_and_slow_work_later(clock: list[float]) -> None:
    pacer = Pacer(1.0)
    assert pacer.is_due()
    pacer.ran_for(0.001)
    clock[0] += 0.9
    assert not pacer.is_due()
    clock[0] += 0.2
    assert pacer.is_due()
    pacer.ran_for(0.1)
    clock[0] += 4.9
    assert not pacer.is_due()
    clock[0] += 0.2
    assert pacer.is_due()


def test_no_work_is_put_off_for_more_than_a_minute(clock: list[float]) -> None:
    pacer = Pacer()
    pacer.ran_for(1000.0)
    clock[0] += 60.0
    assert pacer.is_due()
