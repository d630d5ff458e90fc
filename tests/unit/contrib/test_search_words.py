"""Words and filters of a search, as the page splits them."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from drain.contrib.web.search import FILTERS, STATES, Query, parse
from drain.contrib.web.templating import _quoted
from drain.errors import DrainError

CASES: list[tuple[str, list[str], dict[str, str]]] = [
    ("", [], {}),
    ('""', [], {}),
    ("send", ["send"], {}),
    ("  send\treceipt ", ["send", "receipt"], {}),
    ("queue:mail", [], {"queue": "mail"}),
    ("queue:mail state:dead", [], {"queue": "mail", "state": "dead"}),
    ("  state:dead\tqueue:mail  ", [], {"queue": "mail", "state": "dead"}),
    ("State:DEAD", [], {"state": "dead"}),
    ("id:0042", [], {"id": "0042"}),
    ("send queue:mail receipt", ["send", "receipt"], {"queue": "mail"}),
    # Quotes.
    ('key:"Acme Ltd" import', ["import"], {"key": "Acme Ltd"}),
    (r'key:"say \"hi\" \\ there"', [], {"key": r'say "hi" \ there'}),
    ('"two words" queue:mail', ["two words"], {"queue": "mail"}),
    ('key:"queue:mail"', [], {"key": "queue:mail"}),
    ('queue:"mail', [], {"queue": '"mail'}),
    ('"two  words"', ["two  words"], {}),
    ('"queue:mail"', ["queue:mail"], {}),
    ('"one" "two"', ["one", "two"], {}),
    ('[1,  "a b"]', ["[1,", "a b", "]"], {}),
    # No filter.
    ("colour:red", ["colour:red"], {}),
    ("colour:red queue:mail", ["colour:red"], {"queue": "mail"}),
    ('colour:"dark red" queue:mail', ['colour:"dark red"'], {"queue": "mail"}),
    ("queue:", ["queue:"], {}),
    ('queue:""', ['queue:""'], {}),
    ("queue: mail", ["queue:", "mail"], {}),
    ("http://shop/queue:mail", ["http://shop/queue:mail"], {}),
    # A value may have colons of its own.
    ("tag:cron:nightly", [], {"tag": "cron:nightly"}),
    ("tag:größe key:漢字", [], {"tag": "größe", "key": "漢字"}),
]


@pytest.mark.parametrize(("text", "words", "filters"), CASES, ids=[text or "nothing" for text, _, _ in CASES])
def test_a_search_is_split_into_words_and_filters(
    text: str, words: list[str], filters: dict[str, str]
) -> None:
    assert parse(text) == Query(words, filters)


@pytest.mark.parametrize("name", FILTERS)
def test_a_repeated_filter_is_refused(name: str) -> None:
    value = {"id": "7", "state": "dead"}.get(name, "a")
    assert parse(f"{name}:{value}") == Query([], {name: value})
    with pytest.raises(DrainError, match=f"the filter {name}: is given twice"):
        parse(f"{name}:{value} send {name}:{value}")


@pytest.mark.parametrize("state", STATES)
def test_states_are_case_insensitive(state: str) -> None:
    assert parse(f"state:{state.upper()}").filters == {"state": state}


def test_an_unknown_state_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DrainError) as raised:
        parse("state:asleep")
    assert str(raised.value) == f"there is no state 'asleep': use {', '.join(STATES)}"


def test_more_than_eight_words_are_refused() -> None:
    assert len(parse("a b c d e f g h queue:mail").words) == 8
    with pytest.raises(DrainError, match="at most 8 words: quote a text that belongs together"):
        parse("a b c d e f g h i")


@pytest.mark.parametrize("value", ["seven", "-1", "1.5", "٣", "²", "9223372036854775808", "9" * 250, "1_0"])
def test_an_invalid_job_id_is_refused(value: str) -> None:
    with pytest.raises(DrainError, match="is not the id of a job, a whole number"):
        parse(f"id:{value}")
    assert parse(f"id:{2**63 - 1}").filters == {"id": "9223372036854775807"}


@given(st.text(min_size=1))
def test_a_quoted_link_value_is_parsed_back_unchanged(value: str) -> None:
    assert parse(f"key:{_quoted(value)} state:dead") == Query([], {"key": value, "state": "dead"})
