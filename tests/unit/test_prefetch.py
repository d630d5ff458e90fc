"""How many jobs a worker takes follows from how long they have lately run."""

import pytest

from drain.workers.process.prefetch import LARGEST, Prefetch


def after(prefetch: Prefetch, seconds: float, jobs: int) -> int:
    for _ in range(jobs):
        prefetch.observe(seconds)
    return prefetch.size


def test_it_begins_with_one_and_grows_no_faster_than_what_has_been_run() -> None:
    prefetch = Prefetch()
    sizes = [prefetch.size] + [after(prefetch, 0.00001, 1) for _ in range(9)]
    assert sizes == list(range(1, 11))


@pytest.mark.parametrize(
    ("seconds", "size"), [(0.00001, LARGEST), (0.001, 100), (0.01, 10), (0.1, 1), (10, 1)]
)
def test_it_takes_what_runs_within_a_tenth_of_a_second(seconds: float, size: int) -> None:
    assert after(Prefetch(), seconds, 2000) in range(max(1, size - 1), size + 1)


def test_one_slow_job_is_enough_to_take_them_singly_and_fast_ones_make_up_for_it() -> None:
    prefetch = Prefetch()
    after(prefetch, 0.00001, 1000)
    assert after(prefetch, 60, 1) == 1
    assert after(prefetch, 0.00001, 30) == 1
    assert after(prefetch, 0.00001, 500) == LARGEST


@pytest.mark.parametrize(("seconds", "low"), [(0.00001, LARGEST // 2), (0.001, 25), (0.1, 0)])
def test_more_is_fetched_while_what_is_left_lasts_until_the_claim_is_answered(
    seconds: float, low: int
) -> None:
    prefetch = Prefetch()
    after(prefetch, seconds, 2000)
    assert prefetch.low in range(max(0, low - 1), low + 1)


def test_a_number_that_was_given_is_kept_to() -> None:
    assert after(Prefetch(7), 0.00001, 1000) == after(Prefetch(7), 10, 10) == 7
