"""How many jobs the list of a queue may hold: what its workers take within a moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any

import pytest

from drain.admission import depths
from drain.admission.depths import UNBOUNDED, Depths

LEAST = depths.SHORTEST


class Lists:
    """Lists and workers, as Redis would show them."""

    def __init__(self) -> None:
        self.length = 0
        self.workers = 0
        self.asked: list[list[str]] = []
        self.shown: list[dict[str, int]] = []

    def lengths(self, queues: Collection[str]) -> dict[str, tuple[int, int]]:
        self.asked.append(list(queues))
        return dict.fromkeys(queues, (self.length, self.workers))

    def show_bounds(self, bounds: Mapping[str, int]) -> None:
        self.shown.append(dict(bounds))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The only element is the time of `monotonic()`."""
    now = [1000.0]
    monkeypatch.setattr(depths, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def lists() -> Lists:
    return Lists()


def of(lists: Any, **options: Any) -> Depths:
    return Depths(lists, **options)


def push(kept: Depths, lists: Lists, jobs: int) -> None:
    kept.moved({"q": jobs})
    lists.length += jobs
    kept.pushed({"q": jobs}, {"q": lists.length})


def test_a_list_accepts_no_more_jobs_than_its_bound(lists: Lists, clock: list[float]) -> None:
    kept = of(lists)
    assert kept.room("q") == LEAST
    kept.moved({"q": LEAST})
    assert kept.room("q") == 0
    kept.pushed({"q": LEAST}, {"q": LEAST})
    assert kept.room("q") == 0
    assert kept.room("other") == LEAST


def test_room_comes_back_once_half_of_the_bound_is_free(lists: Lists, clock: list[float]) -> None:
    kept = of(lists, fixed=10)
    push(kept, lists, 10)
    for left, room in ((9, 0), (6, 0), (5, 5)):
        lists.length = left
        kept.room("q")
        clock[0] += 1
        kept.look_when_due()
        assert kept.room("q") == room


def test_an_idle_list_is_forgotten_after_a_while(lists: Lists, clock: list[float]) -> None:
    kept = of(lists)
    push(kept, lists, 1)
    kept.moved({"on the way": 1})
    clock[0] += 599
    kept.look_when_due()
    assert set(kept._depths) == {"q", "on the way"}
    clock[0] += 60
    kept.look_when_due()
    assert set(kept._depths) == {"on the way"}


def test_a_fixed_bound_ignores_the_workers_speed(lists: Lists, clock: list[float]) -> None:
    kept = of(lists, fixed=3)
    for _ in range(50):
        assert kept.room("q") == 3
        push(kept, lists, 3)
        assert kept.room("q") == 0
        clock[0] = kept.next_look_at
        lists.length = 0
        kept.look_when_due()


@pytest.mark.parametrize("options", [{"fixed": 0}, {"unbounded": {"q"}}])
def test_an_unbounded_list_always_has_room_and_never_asks_redis(
    lists: Lists, clock: list[float], options: dict[str, Any]
) -> None:
    kept = of(lists, **options)
    push(kept, lists, 1_000_000)
    assert kept.room("q") == UNBOUNDED
    clock[0] += 1
    kept.look_when_due()
    assert not lists.asked
    assert kept.next_look_at == float("inf")


def test_the_bound_follows_a_tenth_of_a_second_of_worker_throughput(lists: Lists, clock: list[float]) -> None:
    kept = of(lists)
    for _ in range(200):
        push(kept, lists, kept.room("q"))
        clock[0] += 0.01
        lists.length = max(0, lists.length - 100)
        kept.look_when_due()
    assert 400 <= lists.length + kept.room("q") <= 2200
    # Nobody takes anything any more: what is in the list stays, and its bound falls.
    for _ in range(300):
        kept.room("q")
        clock[0] += 0.05
        kept.look_when_due()
    lists.length = 0
    kept.room("q")
    clock[0] += 1
    kept.look_when_due()
    assert kept.room("q") < 200


def test_a_list_that_ran_empty_with_rows_waiting_doubles_its_bound(lists: Lists, clock: list[float]) -> None:
    kept = of(lists)
    rooms = []
    for _ in range(4):
        rooms.append(kept.room("q"))
        push(kept, lists, rooms[-1])
        assert kept.room("q") == 0
        lists.length = 0
        clock[0] = kept.next_look_at
        kept.look_when_due()
    assert rooms[0] == LEAST
    assert all(later >= 1.8 * earlier for earlier, later in pairwise(rooms))


def test_a_list_that_runs_empty_with_nothing_waiting_keeps_its_bound(
    lists: Lists, clock: list[float]
) -> None:
    kept = of(lists)
    for _ in range(100):
        push(kept, lists, 1)
        lists.length = 0
        clock[0] += 10
    assert LEAST - 1 <= kept.room("q") <= LEAST


def test_the_bound_holds_two_jobs_for_each_worker(lists: Lists, clock: list[float]) -> None:
    kept = of(lists)
    lists.workers = 100
    push(kept, lists, kept.room("q"))
    kept.room("q")
    clock[0] += 1
    kept.look_when_due()
    assert lists.length + kept.room("q") == 200


def test_redis_is_asked_only_about_full_lists_once_room_is_possible(lists: Lists, clock: list[float]) -> None:
    kept = of(lists)
    push(kept, lists, LEAST)
    kept.look_when_due()
    assert not lists.asked
    assert kept.room("q") == 0
    assert clock[0] < kept.next_look_at <= clock[0] + depths._LATEST_LOOK_SECONDS
    kept.look_when_due()
    assert not lists.asked
    clock[0] = kept.next_look_at
    kept.look_when_due()
    assert lists.asked == [["q"]]


def test_a_job_refused_by_redis_takes_no_room(lists: Lists, clock: list[float]) -> None:
    kept = of(lists, fixed=4)
    kept.moved({"q": 4})
    kept.pushed({"q": 4}, {})
    assert kept.room("q") == 4


def test_the_bounds_of_lists_with_waiting_rows_are_shown_periodically(
    lists: Lists, clock: list[float]
) -> None:
    kept = of(lists, fixed=20)
    push(kept, lists, 20)
    kept.look_when_due()
    assert lists.shown == []
    for _ in range(100):
        kept.room("q")
        clock[0] += 0.1
        kept.look_when_due()
    assert lists.shown == [{"q": 20}] * len(lists.shown)
    assert 10 <= len(lists.shown) <= 20


@pytest.mark.parametrize("workers", [0, 1])
def test_a_look_at_lists_without_workers_takes_a_tenth_of_the_time(
    lists: Lists, clock: list[float], monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    kept = of(lists, fixed=1)
    lists.workers, lists.length = workers, 1
    names = [f"q{number}" for number in range(1000)]
    kept.moved(dict.fromkeys(names, 1))
    kept.pushed(dict.fromkeys(names, 1), dict.fromkeys(names, 1))
    ask = lists.lengths

    def slowly(queues: Collection[str]) -> dict[str, tuple[int, int]]:
        clock[0] += 0.0001 * len(queues)
        return ask(queues)

    monkeypatch.setattr(lists, "lengths", slowly)
    began = clock[0]
    while len(lists.asked) < 20:
        for name in names:
            assert kept.room(name) == 0
        clock[0] = max(clock[0], kept.next_look_at)
        kept.look_when_due()
    part = 0.1 * len(lists.asked) / (clock[0] - began)
    assert (part < 0.15) == (not workers)


def test_a_stalled_look_is_repeated_soon(
    lists: Lists, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis may stand still for seconds, whatever is asked."""
    kept = of(lists, fixed=1)
    push(kept, lists, 1)
    ask = lists.lengths

    def stall(queues: Collection[str]) -> dict[str, tuple[int, int]]:
        clock[0] += 4
        return ask(queues)

    monkeypatch.setattr(lists, "lengths", stall)
    kept.room("q")
    clock[0] = kept.next_look_at
    kept.look_when_due()
    assert kept.room("q") == 0
    assert kept.next_look_at - clock[0] <= 1
