"""How many jobs a worker takes follows from how long they have lately run."""

import pytest

from drain.workers.process.prefetch import LARGEST, Prefetch


def after(prefetch: Prefetch, seconds: float, jobs: int) -> int:
    for _ in range(jobs):
        prefetch.observe(seconds)
    return prefetch.size


def test_the_size_begins_at_one_and_grows_with_completed_jobs() -> None:
    prefetch = Prefetch()
    sizes = [prefetch.size] + [after(prefetch, 0.00001, 1) for _ in range(9)]
    assert sizes == list(range(1, 11))


@pytest.mark.parametrize(
    ("seconds", "size"), [(0.00001, LARGEST), (0.001, 100), (0.01, 10), (0.1, 1), (10, 1)]
)
def test_the_size_covers_a_tenth_of_a_second_of_work(seconds: float, size: int) -> None:
    assert after(Prefetch(), seconds, 2000) in range(max(1, size - 1), size + 1)


def test_one_slow_job_reduces_the_size_to_one_until_many_fast_jobs_ran() -> None:
    prefetch = Prefetch()
    after(prefetch, 0.00001, 1000)
    assert after(prefetch, 60, 1) == 1
    assert after(prefetch, 0.00001, 30) == 1
    assert after(prefetch, 0.00001, 500) == LARGEST


@pytest.mark.parametrize(("seconds", "low"), [(0.00001, LARGEST // 2), (0.001, 25), (0.1, 0)])
def test_more_jobs_are_fetched_before_the_remaining_ones_run_out(seconds: float, low: int) -> None:
    prefetch = Prefetch()
    after(prefetch, seconds, 2000)
    assert prefetch.low in range(max(0, low - 1), low + 1)


def test_a_configured_size_never_changes() -> None:
    assert after(Prefetch(7), 0.00001, 1000) == after(Prefetch(7), 10, 10) == 7
