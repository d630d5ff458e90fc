"""Token buckets, at times that the test chooses."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drain.admission.buckets import Buckets
from drain.admission.rules import Rate


def take_all(buckets: Buckets, key: str, now: float) -> int:
    tokens = buckets.tokens(key, now)
    buckets.take(key, tokens, now)
    return tokens


@pytest.mark.parametrize(("rate", "burst"), [("100/s", 100), ("10/min", 1), ("5/h", 1)])
def test_without_a_burst_a_bucket_holds_the_tokens_of_a_second(rate: str, burst: int) -> None:
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
    buckets.take("a", 1, 0.0)

    assert (buckets.tokens("a", 0.0), buckets.tokens("b", 0.0)) == (0, 1)
    assert buckets.empty(0.0) == ["a"]


@given(
    st.lists(st.floats(0.0, 0.5), max_size=200),
    st.sampled_from(["7/s", "100/s", "30/min"]),
    st.integers(1, 20),
)
def test_in_no_time_more_begin_than_the_burst_and_the_rate_allow(
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
            buckets.take("a", begun.count(now), now)
            assert tokens >= 0
        later, since = Buckets(Rate.parse("10/s"), 15), now - buckets.memory_seconds
        later.refill({"a": sum(start > since for start in begun)}, since, now)

        assert later.tokens("a", now) <= buckets.tokens("a", now)
        assert later.tokens("b", now) == 15


def test_what_is_not_known_of_the_time_before_counts_as_taken() -> None:
    buckets = Buckets(Rate.parse("1/min"), 10)
    buckets.refill({"a": 1}, since=700.0, now=1000.0)

    assert (buckets.tokens("a", 1000.0), buckets.tokens("b", 1000.0)) == (4, 5)


def test_full_buckets_are_forgotten() -> None:
    buckets = Buckets(Rate.parse("10/s"), 1)
    for number in range(100_000):
        buckets.take(str(number), 1, number / 1000)

    assert buckets.remembered < 3000
