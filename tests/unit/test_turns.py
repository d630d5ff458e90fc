"""Turns of keys: by weight, with no credit for idle time, or by the places of their jobs."""

from collections import Counter

from drain.admission.turns import Turns

PLACE = (0, 1)


def take(turns: Turns, count: int) -> list[str]:
    taken = []
    for _ in range(count):
        key = turns.first()
        assert key is not None
        taken.append(key)
        turns.served(key, PLACE)
    return taken


def fair(*keys: str, **weights: float) -> Turns:
    turns = Turns(fair=True, weights=weights)
    for key in keys:
        turns.enter(key, PLACE)
    return turns


def test_keys_take_turns() -> None:
    assert take(fair("a", "b", "c"), 6) == ["a", "b", "c"] * 2


def test_turns_match_the_weights_within_five_percent() -> None:
    keys = [f"k{number}" for number in range(50)]
    counts = Counter(take(fair(*keys, k0=3, k1=0.5, k2=10), 10_000))
    turn = 10_000 / (47 + 13.5)

    assert all(abs(counts[key] - turn) <= max(1, turn * 0.05) for key in keys[3:])
    assert [round(counts[f"k{number}"] / turn, 1) for number in range(3)] == [3.0, 0.5, 10.0]


def test_a_heavy_key_does_not_have_its_turns_in_a_row() -> None:
    taken = "".join(take(fair("a", "b", "c", a=2), 400))

    assert "aaa" not in taken


def test_an_idle_key_earns_no_extra_turns() -> None:
    turns = fair("a")
    take(turns, 1000)
    turns.enter("b", PLACE)

    assert Counter(take(turns, 20)) == {"a": 10, "b": 10}


def test_a_key_that_goes_and_comes_back_does_not_get_ahead() -> None:
    turns = fair("a", "b")
    taken = Counter[str]()
    for _ in range(100):
        taken.update(key := take(turns, 1))
        turns.leave(key[0])
        turns.enter(key[0], PLACE)

    assert taken == {"a": 50, "b": 50}


def test_turns_of_a_selection_that_was_rolled_back_are_undone() -> None:
    turns, undisturbed = fair("a", "b", "c", b=2), fair("a", "b", "c", b=2)
    take(turns, 7)
    take(undisturbed, 7)
    turns.mark()
    take(turns, 5)
    turns.leave("a")
    turns.undo()

    assert take(turns, 12) == take(undisturbed, 12)


def test_without_turns_keys_go_in_the_order_of_their_next_jobs() -> None:
    turns = Turns()
    turns.enter("late", (0, 9))
    turns.enter("early", (0, 5))
    turns.enter("patient", (7, 1))
    taken = []
    while key := turns.first():
        taken.append(key)
        if key == "early" and taken.count(key) == 1:
            turns.served(key, (0, 20))
        else:
            turns.leave(key)

    assert taken == ["early", "late", "early", "patient"]


def test_the_following_keys_are_each_named_once() -> None:
    turns = fair("a", "b", "c")
    turns.leave("a")
    turns.enter("a", PLACE)

    assert sorted(turns.following(2)) == ["a", "b"]
    assert sorted(turns.following(10)) == ["a", "b", "c"]
    assert sorted(take(turns, 3)) == ["a", "b", "c"]


def test_memory_depends_on_the_keys_that_wait() -> None:
    turns = fair("a")
    for number in range(50_000):
        key = str(number)
        turns.mark()
        turns.enter(key, PLACE)
        turns.served(key, PLACE)
        turns.leave(key)
        take(turns, 2)

    assert len(turns._heap) < 5_000
    assert len(turns._ended) < 20_000
