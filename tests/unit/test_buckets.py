"""Token buckets, at times that the test chooses."""

import random

import pytest
from hypothesis import given, strategies as st

from drain.admission.buckets import Buckets
from drain.admission.rules import Rate

# Seconds since 1970, as the database says.
NOW = 1_800_000_000.0


def take_all(buckets: Buckets, key: str, now: float) -> int:
    tokens = buckets.tokens(key, now)
    buckets.begin(key, [now] * tokens, now)
    return tokens


@pytest.mark.parametrize(("rate", "burst"), [("100/s", 100), ("10/min", 1), ("5/h", 1)])
def test_a_bucket_without_a_burst_holds_one_second_of_tokens(rate: str, burst: int) -> None:
    assert Buckets(Rate.parse(rate), None).tokens("a", 0.0) == burst


def test_a_bucket_gains_tokens_at_its_rate_up_to_the_burst() -> None:
    buckets = Buckets(Rate.parse("10/min"), 3)

    assert take_all(buckets, "a", 0.0) == 3
    assert buckets.tokens("a", 5.9) == 0
    assert buckets.next_token_at("a", 5.9) == pytest.approx(6.0)
    assert take_all(buckets, "a", 6.0) == 1
    assert buckets.tokens("a", 1000.0) == 3


def test_each_key_has_a_bucket_of_its_own() -> None:
    buckets = Buckets(Rate.parse("1/s"), 1)
    buckets.begin("a", [0.0], 0.0)

    assert (buckets.tokens("a", 0.0), buckets.tokens("b", 0.0)) == (0, 1)
    assert buckets.empty(0.0) == ["a"]


@given(
    st.lists(st.floats(0.0, 0.5), max_size=200),
    st.sampled_from(["7/s", "100/s", "30/min"]),
    st.integers(1, 20),
)
def test_starts_in_any_interval_stay_within_burst_and_rate(
    pauses: list[float], rate: str, burst: int
) -> None:
    buckets, now, begun = Buckets(Rate.parse(rate), burst), 0.0, []
    for pause in pauses:
        now += pause
        begun += [now] * take_all(buckets, "a", now)
    for first, start in enumerate(begun):
        for last, end in enumerate(begun[first:], first):
            assert last - first + 1 <= burst + (end - start) * Rate.parse(rate).per_second + 0.001


def test_the_whole_rate_is_used() -> None:
    buckets = Buckets(Rate.parse("100/s"), None)

    assert sum(take_all(buckets, "a", step / 50) for step in range(501)) == 100 + 1000


def test_the_buckets_of_the_next_leader_are_never_fuller() -> None:
    source = random.Random(1)
    for _ in range(200):
        buckets, now, begun = Buckets(Rate.parse("10/s"), 15), 0.0, []
        for _ in range(100):
            now += source.random() * 0.3
            begun += [now] * min(source.randrange(6), tokens := buckets.tokens("a", now))
            buckets.begin("a", [now] * begun.count(now), now)
            assert tokens >= 0
        later, since = Buckets(Rate.parse("10/s"), 15), now - buckets.memory_seconds
        later.refill({"a": sum(start > since for start in begun)}, since, now)

        assert later.tokens("a", now) <= buckets.tokens("a", now)
        assert later.tokens("b", now) == 15


def test_tokens_of_an_unknown_period_count_as_taken() -> None:
    buckets = Buckets(Rate.parse("1/min"), 10)
    buckets.refill({"a": 1}, since=700.0, now=1000.0)

    assert (buckets.tokens("a", 1000.0), buckets.tokens("b", 1000.0)) == (4, 5)


def test_full_buckets_are_forgotten() -> None:
    buckets = Buckets(Rate.parse("10/s"), 1)
    for number in range(100_000):
        buckets.begin(str(number), [number / 1000], number / 1000)

    assert buckets.remembered < 3000


@pytest.mark.parametrize("rate", ["1/d", "1/h", "1/s"])
def test_no_token_comes_early(rate: str) -> None:
    bucket = Buckets(Rate.parse(rate), 1)
    bucket.begin("", [NOW], NOW)
    at = bucket.next_token_at("", NOW)
    assert bucket.tokens("", at) == 1
    assert bucket.tokens("", at - 0.00001) == 0


def test_jobs_waiting_for_a_worker_hold_their_tokens_until_they_begin() -> None:
    buckets = Buckets(Rate(1, 1.0), 4, per_key=True)
    for _ in range(4):
        buckets.hold("a")
    assert buckets.empty(0.0) == ["a"]
    assert (buckets.tokens("a", 0.0), buckets.tokens("a", 1e6)) == (0, 0)
    assert buckets.next_token_at("a", 3.0) == 4.0
    # Two began at 5.5 and 6, two still wait: 4 tokens less those of 0.5 s.
    buckets.begin("a", [5.5, 6.0], 6.0)
    buckets.hold_only({"a": 2})
    assert buckets.tokens("a", 6.0) == 0
    assert buckets.tokens("a", 6.5) == 1
    assert buckets.tokens("a", 10.0) == 2
    buckets.hold_only({})
    assert (buckets.tokens("a", 10.0), buckets.empty(10.0)) == (4, [])


def test_rounding_errors_do_not_accumulate_at_full_rate() -> None:
    buckets, start = Buckets(Rate(4700, 1.0), 10), 1.8e9
    begun, now = 0, start
    while now < start + 20:
        tokens = buckets.tokens("a", now)
        buckets.begin("a", [now] * tokens, now)
        begun += tokens
        now = buckets.next_token_at("a", now) + 1e-6
    assert 0.99 * 4700 * 20 < begun <= 10 + 4700 * 20 + 0.1


@given(
    st.lists(st.tuples(st.floats(0.0, 0.5), st.booleans(), st.integers(0, 5)), max_size=100),
    st.sampled_from(["7/s", "100/s", "30/min"]),
    st.integers(1, 20),
)
def test_late_claims_and_observations_never_exceed_burst_and_rate(
    steps: list[tuple[float, bool, int]], rate: str, burst: int
) -> None:
    buckets, now, begun = Buckets(Rate.parse(rate), burst, per_key=True), 0.0, []
    waiting = 0
    unseen: list[float] = []
    for pause, looks, claimed in steps:
        now += pause
        if looks:
            buckets.begin("a", unseen, now)
            buckets.hold_only({"a": waiting})
            unseen = []
            for _ in range(buckets.tokens("a", now)):
                buckets.hold("a")
                waiting += 1
        now_claimed = [now] * min(claimed, waiting)
        waiting -= len(now_claimed)
        begun += now_claimed
        unseen += now_claimed
    for first, start in enumerate(begun):
        for last, end in enumerate(begun[first:], first):
            assert last - first + 1 <= burst + (end - start) * Rate.parse(rate).per_second + 0.001


def test_jobs_that_begin_at_once_use_the_whole_rate() -> None:
    buckets = Buckets(Rate(10, 1.0), 1, per_key=True)
    for tick in range(5):
        now = tick / 10
        if tick:
            buckets.begin("a", [now - 0.1], now)
        buckets.hold_only({})
        assert buckets.tokens("a", now) == 1
        buckets.hold("a")


def test_a_bucket_keeps_its_deficit_under_a_new_rate() -> None:
    before, after = Buckets(Rate(20, 3600.0), 20), Buckets(Rate(10, 3600.0), 15)
    before.refill({}, since=-1800.0, now=0.0)
    before.begin("a", [0.0] * 8, 0.0)
    assert (before.tokens("a", 0.0), before.tokens("b", 0.0)) == (2, 10)
    after.refill({}, since=-1e6, now=0.0)
    assert after.tokens("a", 0.0) == 15
    after.owe(before, 0.0)
    assert (after.tokens("a", 0.0), after.tokens("b", 0.0)) == (0, 5)
