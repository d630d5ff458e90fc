"""Number of workers for a load, by simulation: as many as it says finish the backlog in time."""

import heapq
from typing import Any

import pytest

from drain.contrib.scaling.load import Load
from drain.contrib.scaling.wanted import wanted
from drain.tables.rules import RulesRow


def load(backlog: int = 0, *, arrivals: float = 0.0, seconds: float | None = 1.0, **more: Any) -> Load:
    waiting = {"due": backlog} if backlog else {}
    given: dict[str, Any] = {
        "waiting": waiting,
        "arrivals": arrivals,
        "mean_seconds": seconds,
        "busy_seconds": seconds,
    }
    return Load("calls", **(given | more))


def workers(found: Load, within: float = 30.0, concurrency: int = 1) -> int:
    return wanted(found, within, concurrency).workers


def last_start(jobs: int, seconds: float, places: int) -> float:
    """Return the time at which the last of these jobs starts, each as soon as a place is free."""
    free, start = [0.0] * places, 0.0
    for _ in range(jobs):
        start = heapq.heappop(free)
        heapq.heappush(free, start + seconds)
    return start


@pytest.mark.parametrize(
    ("jobs", "seconds"), [(1, 1.0), (10, 0.5), (1000, 0.2), (300, 10.0), (5, 3600.0), (77, 29.0)]
)
@pytest.mark.parametrize("within", [10.0, 30.0, 300.0])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_the_computed_workers_finish_in_time_and_one_fewer_could_not(
    jobs: int, seconds: float, within: float, concurrency: int
) -> None:
    number = workers(load(jobs, seconds=seconds), within, concurrency)

    assert last_start(jobs, seconds, number * concurrency) <= within
    assert (number - 1) * concurrency * within < jobs * seconds
    assert (number - 1) * concurrency < jobs


@pytest.mark.parametrize("arrivals", [0.5, 3.0, 40.0])
@pytest.mark.parametrize("seconds", [0.05, 2.0])
def test_a_queue_in_balance_keeps_as_many_workers_as_its_jobs_occupy(arrivals: float, seconds: float) -> None:
    number = workers(load(arrivals=arrivals, seconds=seconds))
    assert number - 1 < arrivals * seconds <= number


def test_an_autoscaler_following_the_number_drains_the_queue_and_reaches_zero() -> None:
    """Simulate half a minute of arrivals, with a look every five seconds."""
    waiting, arrivals, seen = 600.0, 10.0, list[int]()
    for second in range(180):
        if second % 5 == 0:
            lately = arrivals if second < 30 else max(0.0, arrivals * (90 - second) / 60)
            seen.append(workers(load(round(waiting), arrivals=lately, seconds=0.5)))
        waiting = max(0.0, waiting + (arrivals if second < 30 else 0.0) - seen[-1] / 0.5)
    # (600 / 30 + 10) * 0.5, and no more at any time.
    assert seen[0] == max(seen) == 15
    assert waiting == 0
    assert seen[-1] == 0


def test_an_idle_queue_needs_no_worker() -> None:
    assert workers(load()) == 0
    assert workers(load(seconds=None, busy_seconds=None)) == 0


def test_a_queue_without_completed_jobs_needs_one_worker() -> None:
    found = wanted(load(1, seconds=None, busy_seconds=None))
    assert (found.workers, found.run_seconds) == (1, 1.0)


def test_jobs_that_were_claimed_together_do_not_count_the_wait_for_each_other() -> None:
    # A process claims fifty jobs of a millisecond at once: each is finished 50 ms after its claim.
    found = load(100, arrivals=1000, mean_seconds=0.05, busy_seconds=0.001)
    assert workers(found) == 2


def test_free_slots_of_a_process_count() -> None:
    # One job at a time was there for a process that runs a hundred.
    found = load(0, arrivals=5, mean_seconds=1.0, busy_seconds=1.0)
    assert workers(found, concurrency=100) == 1


@pytest.mark.parametrize(
    ("rules", "bound", "number"),
    [
        ({"running": 7}, "running", 7),
        ({"rate": "10/s"}, "rate", 20),
        ({"rate": "1/min"}, "rate", 1),
        ({"running": 50, "rate": "2/s"}, "rate", 4),
        ({"ordered": True}, "keys", 40),
        ({"running_per_key": 3}, "keys", 40),
        ({}, None, 67),
    ],
)
def test_queue_rules_cap_the_number_of_workers(rules: Any, bound: str | None, number: int) -> None:
    waiting = {"due": 30, "limited": 970, "scheduled": 10_000, "paused": 10_000, "retrying": 10_000}
    found = wanted(load(seconds=2.0, waiting=waiting, rules=RulesRow("calls", **rules), running=((10, 0.5),)))
    assert (found.workers, found.bound, found.backlog) == (number, bound, 1000)


def test_a_queue_with_an_ordered_backlog_of_one_key_needs_one_worker() -> None:
    rules = RulesRow("calls", ordered=True)
    assert workers(load(waiting={"limited": 99}, rules=rules, running=((1, 0.1),))) == 1
    assert workers(load(waiting={"due": 1, "limited": 99}, rules=rules)) == 1


def test_a_paused_queue_needs_workers_only_for_running_jobs() -> None:
    assert workers(load(1000, is_paused=True)) == 0
    found = wanted(load(1000, is_paused=True, running=((1, 40.0), (2, 3.0))))
    assert (found.workers, found.bound) == (1, "pause")
    assert "the queue is paused; 1 worker kept for longer jobs" in found.reason


def test_workers_with_long_jobs_are_kept() -> None:
    ten = tuple((1, 600.0 + number) for number in range(10))
    assert workers(load(seconds=3600.0, running=ten)) == 10
    # Five pods of two processes, or one that runs all.
    assert workers(load(seconds=3600.0, running=ten), concurrency=2) == 5
    assert workers(load(seconds=3600.0, running=((10, 600.0),)), concurrency=10) == 1
    assert workers(load(seconds=3600.0, running=((10, 600.0),)), concurrency=1) == 1


def test_long_jobs_never_ask_for_more_workers_than_jobs() -> None:
    assert workers(load(10, seconds=3600.0)) == 10
    assert workers(load(10, seconds=3600.0), concurrency=4) == 3


def test_the_answer_includes_the_inputs_of_its_computation() -> None:
    found = wanted(load(1200, arrivals=4.0, seconds=0.8, running=((3, 1.0),)), 30.0, 8)
    assert found.as_json() == {
        "queue": "calls",
        "wanted": 5,
        "within_seconds": 30.0,
        "concurrency": 8,
        "backlog": 1200,
        "arrivals_per_second": 4.0,
        "run_seconds": 0.8,
        "running": 3,
        "kept": 0,
        "bound": None,
        "reason": "1,200 jobs within 30s plus 4 arriving per second, 0.8s each, 8 at a time: 4.4",
    }
