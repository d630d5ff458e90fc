"""Real statements and Redis commands in orders that seeds decide; `python -m tests.interleavings` runs more."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from drain.tables import claims
from tests.helpers import query
from tests.interleavings import history
from tests.interleavings.modules import MODULES, Laboratory
from tests.mutants.catalogue import AREAS

SCHEDULES = int(os.environ.get("INTERLEAVINGS", "25"))
BY_DELIVERY = "AND (%(delivery)s::bigint IS NULL OR job.delivery = %(delivery)s)"


@pytest.fixture
def laboratory(database_url: str, redis_url: str) -> Iterator[Laboratory]:
    # Paths of sockets are short.
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as directory,
        closing(Laboratory(Path(directory), database_url, redis_url)) as made,
    ):
        yield made


@pytest.mark.parametrize("module", MODULES)
def test_nothing_is_lost_or_doubled_in_any_order_of_the_statements(
    laboratory: Laboratory, module: str
) -> None:
    steps = 0
    for seed in range(SCHEDULES):
        outcome = laboratory.run(module, seed)
        assert not outcome.problem, f"python -m tests.interleavings {module} --seed {seed} --schedules 1"
        steps += len(outcome.choices)
    assert steps > 20 * SCHEDULES
    assert laboratory.run(module, SCHEDULES - 1) == outcome


def test_a_claim_through_any_delivery_is_found_repeated_and_shrunk(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert BY_DELIVERY in claims.CLAIM
    monkeypatch.setattr(claims, "CLAIM", claims.CLAIM.replace(BY_DELIVERY, ""))

    outcomes = ((seed, laboratory.run("delivery", seed)) for seed in range(1000))
    seed, outcome = next((seed, outcome) for seed, outcome in outcomes if outcome.problem)
    assert laboratory.run("delivery", seed) == outcome
    assert laboratory.run("delivery", seed, outcome.choices) == outcome
    shortest = laboratory.shrunk("delivery", seed, outcome)
    assert len(shortest.choices) < len(outcome.choices)
    assert laboratory.run("delivery", seed, shortest.choices).problem


def test_each_mutant_of_a_module_is_in_the_catalogue() -> None:
    known = {mutant.name for area in AREAS.values() for mutant in area}
    named = {name for module in MODULES.values() for name in module.mutants}
    assert named <= known


NOW, LATER = datetime(2026, 11, 28, 12, tzinfo=UTC), datetime(2026, 11, 28, 13, tzinfo=UTC)
STAGED = ("staged", True, None, None, None, None)
MOVED = (("staged", False, None, None, None, None), ("inflight", True, 1, 0, None, None))
CLAIMED = ("inflight", True, 1, 1, "w", LATER)
LAPSED = ("inflight", True, 1, 1, "w", NOW)
FINISHED = (("inflight", False, 1, 1, "w", LATER), ("finished", True, None, 1, None, None))
GAVE_WAY = (("inflight", False, 1, 0, None, None), ("finished", True, None, 1, None, None, None, None, 2))
RELEASED = ("inflight", True, 1, 1, "w", None, True)
WAITING = ("inflight", True, 1, 1, "w", None, False, LATER)


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ((STAGED, MOVED, CLAIMED, FINISHED), None),
        ((STAGED, MOVED[0]), None),
        ((STAGED, MOVED[1]), "in ['inflight', 'staged']"),
        ((STAGED, MOVED, FINISHED), "finished without a claim"),
        ((STAGED, MOVED, GAVE_WAY), "gave way to 2, which began no attempt afterwards"),
        ((STAGED, MOVED, CLAIMED, GAVE_WAY), "gave way to another under a claim"),
        ((STAGED, MOVED, CLAIMED, ("inflight", True, 1, 2, "v", LATER)), "a claim of v under a valid lease"),
        ((STAGED, MOVED, CLAIMED, ("inflight", True, 2, 1, "w", None)), "a delivery under a valid lease"),
        ((STAGED, MOVED, LAPSED, ("inflight", True, 2, 1, "w", None)), None),
        ((STAGED, MOVED, LAPSED, ("inflight", True, 1, 2, "v", LATER)), "a second claim of delivery 1"),
        ((STAGED, MOVED, CLAIMED, RELEASED, ("inflight", True, 1, 2, "v", LATER)), None),
        ((STAGED, MOVED, CLAIMED, RELEASED, CLAIMED), "a lease of w without a claim"),
        ((STAGED, MOVED, CLAIMED, WAITING, ("inflight", True, 1, 2, "v", LATER)), "before its next attempt"),
        (
            (STAGED, MOVED, CLAIMED, WAITING, ("inflight", True, 2, 1, "w", None)),
            "a delivery before its time",
        ),
        ((STAGED, MOVED, LAPSED, ("inflight", True, 1, 3, "v", LATER)), "token 3"),
        ((STAGED, MOVED, LAPSED, ("inflight", True, 1, 1, "v", LATER)), "the claim of v under token 1"),
        ((STAGED, MOVED, LAPSED, ("inflight", True, 0, 1, None, None)), "delivery 0"),
        ((STAGED, MOVED, CLAIMED, FINISHED, ("finished", False, None, 1, None, None)), "in no table"),
        ((STAGED, MOVED, MOVED[0], ("inflight", False, 1, 0, None, None)), "in no table"),
    ],
)
def test_a_history_is_a_word_of_the_automaton(
    database_url: str, word: tuple[Any, ...], problem: str | None
) -> None:
    query(database_url, history.LOG)
    with psycopg.connect(database_url) as connection:
        for number, letters in enumerate(word, 1):
            for letter in letters if isinstance(letters[0], tuple) else [letters]:
                connection.execute(
                    "INSERT INTO changes "
                    "(xid, id, at, place, is_there, delivery, token, worker, lease, is_released, due, stands) "
                    "VALUES (%s::text::xid8, 1, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                    (number, NOW, *letter, *[None] * (9 - len(letter))),
                )
        found = history.read(connection, history.Notes()).problems
    assert len(found) == (problem is not None)
    assert (problem or "") in "".join(found)
