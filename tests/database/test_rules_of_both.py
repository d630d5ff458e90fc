"""Rules are validated in Python and by CHECKs of `queues`: both accept the same ones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import product
from typing import Any

import psycopg
import pytest

from drain import queues
from drain.admission.rules import Rules
from drain.errors import ConfigError
from drain.tables import rules as ruled
from drain.tables.rules import RulesRow

WHOLE = (-1, 0, 1, 2, 2**31 - 1)
RATES = (
    *("1/s", "1/min", "1/h", "1/d", "999999999/s", "1000000000/s", "0/s", "01/s", "-1/s", "1.5/s", "1e3/s"),
    *("", "/", "1/", "/s", "1/S", "1/sec", "1/s ", " 1/s", "1/s\n", "1 /s", "\u0661/s", "NaN/s", "1/s/s"),
)
BURSTS = (*WHOLE, 364, 365, 366, 525_600, 525_601, 8_760, 8_761, 3_000_000)
NAMES = (
    *("a", "A_9.x:y-z", "_", "9", "x" * 100, "x" * 101, "", "-a", ".a", ":a", "a b", "a\n", "\n", "ä", "a,b"),
    *("a*", '"', "\\", "a\u200b", "a/b"),
)
WEIGHTS: tuple[Any, ...] = (
    *({"a": 1}, {"a": 1, "b": 0.5}, {"a": 0.001}, {"a": 1000}, {"a": 1000.0}, {"a": 0.0009}, {"a": 1000.1}),
    *({"a": 0}, {"a": -1}, {"a": 10**400}, {"a": 1e308}, {"a": 5e-324}, {"a": math.nan}, {"a": math.inf}),
    *({"a": "1"}, {"a": None}, {"a": True}, {"a": [1]}, {"a": []}, {"a": {}}, {"a": {"b": 1}}, {"a": [[1]]}),
    *(
        {"": 1},
        {"x" * 255: 1},
        {"x" * 256: 1},
        {"ä" * 255: 1},
        {"ä" * 256: 1},
        {"\n": 1},
        {"a\nb": 1},
        {" ": 1},
    ),
    *({"a\0b": 1}, {"\ud800": 1}, {"\U0001f600": 1}, {"a": 1, "": 1}, {"a": 1, "b": []}),
    *([], [1], 1, "a", None, True),
)
AGING = (*(5e-324, 0.001, 1, 60.0, 31_536_000, 31_536_000.1, 1e308, 0, -1, math.nan, math.inf, -math.inf),)


def of_one_column() -> Iterator[dict[str, Any]]:
    """Values of one rule, with those that it needs."""
    for name in ("running", "running_per_key"):
        yield from ({name: value} for value in WHOLE)
    for value in RATES:
        yield {"rate": value}
        yield {"rate_per_key": value}
        yield {"rate": value, "rate_per_key": "1/s"}
    yield from (
        {"rate": rate, "burst": burst} for rate, burst in product(("1/d", "1/h", "1/min", "2/s"), BURSTS)
    )
    yield from ({"rate_per_key": "1/d", "burst": burst} for burst in BURSTS)
    yield from ({"rate": "1/s", "rate_per_key": "1/d", "burst": burst} for burst in BURSTS)
    yield from ({"rate": "x", "burst": burst} for burst in BURSTS)
    yield from ({"weights": weights, "fair": True} for weights in WEIGHTS)
    yield from ({"aging_seconds": seconds} for seconds in AGING)
    yield from (
        {"on_dead": each, "ordered": True} for each in ("hold", "skip", "", "HOLD", "holds", "skip\n")
    )
    yield from ({"queue": name, "running": 1} for name in NAMES)


TOGETHER: dict[str, tuple[Any, ...]] = {
    "running": (None, 1, 2),
    "running_per_key": (None, 1, 2),
    "rate": (None, "1/s"),
    "rate_per_key": (None, "1/s"),
    "burst": (None, 5),
    "fair": (False, True),
    "weights": ({}, {"a": 2}),
    "ordered": (False, True),
    "on_dead": ("hold", "skip"),
    "aging_seconds": (None, 60.0),
}


def together() -> Iterator[dict[str, Any]]:
    """Rules that may contradict each other, in all combinations."""
    return (dict(zip(TOGETHER, values, strict=True)) for values in product(*TOGETHER.values()))


def python_says(values: dict[str, Any]) -> bool:
    try:
        Rules.from_row(RulesRow(**({"queue": "calls"} | values)))
    except ConfigError:
        return False
    return True


def checks_say(connection: psycopg.Connection, values: dict[str, Any]) -> bool:
    given = {"queue": "calls"} | values
    if "weights" in given:
        given["weights"] = json.dumps(given["weights"])
    columns = ", ".join(given)
    places = ", ".join(f"CAST(%({name})s AS {ruled.TYPES.get(name, 'text')})" for name in given)
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(f"INSERT INTO queues ({columns}) VALUES ({places})".encode(), given)
            # Accepted rules are read as they were written.
            (row,) = connection.execute(ruled.READ_ALL).fetchall()
            assert ruled.row_of(row) == RulesRow(**({"queue": "calls"} | values))
    except (psycopg.DataError, psycopg.IntegrityError):
        return False
    return True


@pytest.mark.parametrize("cases", [of_one_column, together])
def test_table_checks_and_python_accept_the_same_rules(database_url: str, cases: Any) -> None:
    with psycopg.connect(database_url) as connection:
        said = [(values, python_says(values), checks_say(connection, values)) for values in cases()]

    assert [case for case in said if case[1] != case[2]] == []
    assert {python for _, python, _ in said} == {True, False}


@pytest.mark.parametrize("rate", ["rate", "rate_per_key"])
def test_a_burst_that_takes_over_a_year_to_fill_is_refused(database_url: str, rate: str) -> None:
    with psycopg.connect(database_url) as connection:
        queues.change(connection, "calls", {rate: "1/d", "burst": 365})
        with pytest.raises(ConfigError, match="longer than a year to fill at 1/d: at most 365 is possible"):
            queues.change(connection, "calls", {"burst": 3_000_000})
