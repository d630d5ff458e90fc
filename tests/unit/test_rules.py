"""Rules of a queue: their texts, and the one line about each that cannot be used."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from drain import formatting
from drain.admission import declared
from drain.admission.options import as_options, with_options
from drain.admission.rules import Rate, Rules, check_key
from drain.errors import ConfigError
from drain.jobs.values import LONGEST_KEY
from drain.tables.rules import RulesRow
from tests import pages


def refused(**options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        with_options(Rules("calls"), options)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("queue calls: ")
    return text


@pytest.mark.parametrize(
    ("text", "per_second"), [("100/s", 100), ("10/min", 1 / 6), ("5/h", 5 / 3600), ("1/d", 1 / 86_400)]
)
def test_a_rate_is_parsed_and_written_in_its_usual_form(text: str, per_second: float) -> None:
    rate = Rate.parse(text)
    assert rate.per_second == pytest.approx(per_second)
    assert str(rate) == text
    bucket = RulesRow("calls", rate=text).bucket
    assert bucket is not None
    assert bucket.per_second == rate.per_second


@pytest.mark.parametrize(
    "text", ["", "10", "10/", "/s", "10/m", "10/sec", "-1/s", "1.5/s", "1_0/s", "\u0661/s", "10/s\n"]
)
def test_an_invalid_rate_is_refused(text: str) -> None:
    assert "is written as 100/s, 10/min, 5/h or 1/d" in refused(rate=text)


def test_a_rate_of_zero_is_refused_with_advice() -> None:
    assert refused(rate="0/s") == "queue calls: a rate of zero would start nothing: pause the queue instead"
    with pytest.raises(ConfigError):
        Rate(1, 7)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"running": 3, "running_per_key": 4}, "running_per_key (4) exceeds running (3)"),
        ({"ordered": True, "running_per_key": 2}, "ordered runs one job of a key at a time"),
        ({"weights": {"acme": 3}}, "weights need fair"),
        ({"burst": 5}, "burst needs a rate"),
        ({"on_dead": "skip"}, "on_dead needs ordered"),
        ({"on_dead": "hold"}, "on_dead needs ordered"),
        ({"aging": 60, "fair": True}, "aging orders a queue by time"),
        ({"aging": 60, "ordered": True}, "aging orders a queue by time"),
        ({"aging": 60, "running_per_key": 1}, "aging orders a queue by time"),
        ({"aging": 60, "rate_per_key": "1/s"}, "aging orders a queue by time"),
    ],
)
def test_a_rule_that_contradicts_another_is_refused(options: dict[str, Any], complaint: str) -> None:
    assert complaint in refused(**options)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"running": 0}, "running must be a whole number from 1"),
        ({"running": True}, "running must be a whole number from 1"),
        ({"running": 2**31}, "running must be a whole number from 1"),
        ({"running_per_key": "4"}, "running_per_key must be a whole number"),
        ({"rate": 100}, "rate must be a string with a unit, such as '100/s'"),
        (
            {"fair": True, "weights": {"acme": 0}},
            "the weight of a key must be a number from 0.001 to 1000, not 0",
        ),
        ({"fair": True, "weights": {"acme": float("nan")}}, "not nan"),
        ({"fair": True, "weights": {"k" * 256: 1}}, "key must have 1 to 255 characters, not 256"),
        ({"fair": True, "weights": {"\ud800": 1}}, "lone surrogate"),
        (
            {"fair": True, "weights": ["acme"]},
            "weights must map keys to numbers, such as {'acme': 3}, not ['acme']",
        ),
        ({"fair": "yes"}, "fair must be true or false"),
        ({"fair": 1}, "fair must be true or false, not 1"),
        ({"ordered": True, "on_dead": "wait"}, "on_dead must be 'hold' or 'skip', not 'wait'"),
        ({"aging": 0}, "aging must be a time above 0 and at most a year, not 0 seconds"),
        ({"aging": "soon"}, "aging: a length of time is written as 90s, 10m"),
        ({"runing": 5}, "unknown rule 'runing'; did you mean running?"),
        ({"colour": 5}, "unknown rule 'colour'; known rules: running, "),
        ({"on_dead": "hold", "on-dead": "skip"}, "on-dead is given twice"),
    ],
)
def test_an_invalid_rule_is_refused(options: dict[str, Any], complaint: str) -> None:
    assert complaint in refused(**options)


@pytest.mark.parametrize("queue", ["", "a b", "-a", "a" * 101, "a\nb", None])
def test_an_invalid_queue_name_is_refused(queue: Any) -> None:
    with pytest.raises(ConfigError, match="is not a queue name"):
        Rules(queue)


@pytest.mark.parametrize("key", ["", "k" * (LONGEST_KEY + 1), "a\0b", "\ud800", 7.5, True, None])
def test_an_invalid_key_is_refused(key: Any) -> None:
    assert check_key("k" * LONGEST_KEY)
    with pytest.raises(ConfigError, match=r"^key "):
        check_key(key)


def test_a_numeric_key_becomes_its_digits_as_in_staging() -> None:
    assert check_key(42) == "42"
    assert with_options(Rules("calls"), {"fair": True, "weights": {42: 3}}).weights == {"42": 3}


def test_an_option_changes_only_its_own_rule_and_may_remove_it() -> None:
    rules = with_options(
        Rules("calls"), {"running": 50, "rate": "100/s", "fair": True, "weights": {"acme": 3}}
    )
    changed = with_options(rules, {"running": None, "rate_per_key": Rate(10, 60.0), "aging": None})
    assert as_options(changed) == {
        "rate": "100/s", "rate_per_key": "10/min", "fair": True, "weights": {"acme": 3}
    }  # fmt: skip
    off = dict.fromkeys(as_options(changed))
    assert with_options(changed, off) == Rules("calls")


def test_rules_say_whether_they_look_at_keys() -> None:
    assert not Rules("calls").limits_anything
    limited = with_options(Rules("calls"), {"running": 5, "rate": "1/s", "burst": 9})
    assert (limited.for_keys, limited.limits_anything) == (False, True)
    for options in ({"running_per_key": 1}, {"rate_per_key": "1/s"}, {"fair": True}, {"ordered": True}):
        assert with_options(Rules("calls"), options).for_keys
    aging = with_options(Rules("calls"), {"aging": timedelta(minutes=1)})
    assert (aging.aging_seconds, aging.for_keys, aging.limits_anything) == (60.0, False, True)


FILE = """
[calls]
running = 50
rate-per-key = "10/min"
fair = true
weights = { acme = 3 }

["a.b"]
aging = "90s"
"""


def test_a_file_declares_rules_by_queue() -> None:
    wanted = declared.read(FILE)
    assert {queue: as_options(rules) for queue, rules in wanted.items()} == {
        "calls": {"running": 50, "rate_per_key": "10/min", "fair": True, "weights": {"acme": 3}},
        "a.b": {"aging": 90.0},
    }


def test_the_example_file_in_the_how_to_is_valid() -> None:
    (block,) = [
        each for each in pages.blocks(pages.DOCS / "howto" / "queue-rules.md") if each.language == "toml"
    ]
    assert list(declared.read(block.text)) == ["calls", "calls.slow"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[calls", "it is not valid TOML"),
        ("running = 5", "'running' is not in a table: rules belong under a queue name"),
        ("[a.b]\nrunning = 5", 'quote a name with a dot, as in ["a.b"]'),
        ("[calls]\nrunning = 0", "queue calls: running must be a whole number"),
        ("['a b']\nrunning = 1", "'a b' is not a queue name"),
        ("[calls]\nrate = '1/s'\nrate = '2/s'", "it is not valid TOML"),
        pytest.param(f"[calls]\nrunning = {'9' * 5000}", "it is not valid TOML", id="digits"),
    ],
)
def test_an_invalid_file_is_refused_on_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        declared.read(text)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_differences_are_by_rule_and_unlisted_queues_are_pruned_only_on_request() -> None:
    present = {
        "calls": with_options(Rules("calls"), {"running": 10, "rate": "1/s"}),
        "mail": with_options(Rules("mail"), {"running": 1}),
        "same": with_options(Rules("same"), {"fair": True}),
    }
    wanted = declared.read("[calls]\nrunning = 50\n[same]\nfair = true\n[new]\nordered = true")
    found = declared.differences(present, wanted, prune=False)
    assert [(each.queue, each.options) for each in found] == [
        ("calls", {"running": (10, 50), "rate": ("1/s", None)}),
        ("new", {"ordered": (None, True)}),
    ]
    pruned = declared.differences(present, wanted, prune=True)
    assert [each.queue for each in pruned] == ["calls", "mail", "new"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("2d", 172_800), ("1h 30m", 5400)]
)
def test_a_duration_is_parsed_in_its_usual_form(text: str, seconds: float) -> None:
    assert formatting.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "-5s", "1e3s", "10 m", "5min"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is written as 90s"):
        formatting.seconds(text)
