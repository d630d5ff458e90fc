"""The model's checker, and that its statements are today's. `make proof` runs all scenarios and mutants."""

from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from proof import fingerprints
from proof.atoms import Begin, Commit, Execute
from proof.checker import Atom, Scenario, World, explore
from proof.delivery.scenarios import DELIVERY
from proof.module import Module, Mutant
from proof.modules import MODULES
from proof.postgres import (
    READ_COMMITTED,
    REPEATABLE_READ,
    Blocked,
    Database,
    SerializationFailureError,
    Statement,
    Writer,
)

_SLOW = {"claim without a flush"}
_FAST = [
    pytest.param(module, mutant, id=f"{module.name}: {mutant.broken}")
    for module in MODULES
    for mutant in module.mutants
    if mutant.broken not in _SLOW
]


def test_the_modelled_statements_have_not_changed_since_the_last_review() -> None:
    # If this fails: compare the statement with its atom in proof/, then run `python -m proof --accept`.
    assert fingerprints.current() == fingerprints.accepted()


@pytest.mark.parametrize("name", ["two applications, two leaders", "the leader redelivers in haste"])
def test_a_scenario_keeps_its_invariants_and_its_goal(name: str) -> None:
    result = explore(DELIVERY.scenarios[name](""))
    assert (result.problem, result.trace) == (None, ())
    assert result.states > 500


@pytest.mark.parametrize(("module", "mutant"), _FAST)
def test_each_mutant_is_caught_by_the_invariant_that_it_breaks(module: Module, mutant: Mutant) -> None:
    result = explore(module.scenarios[mutant.scenario](mutant.broken))
    assert mutant.violated in (result.problem or "nothing")
    assert result.depth > 0


def test_each_kind_of_violation_has_two_mutants() -> None:
    found = Counter(mutant.violated for module in MODULES for mutant in module.mutants)
    assert [violated for violated, mutants in found.items() if mutants < 2] == []
    assert len(found) >= 11


def _add_one(writer: Writer, row_id: int, row: int) -> int:
    writer.update("counters", row_id, row + 1)
    return row


def _counting(*, isolation: str, reads: bool) -> Scenario:
    """Build two programs that add one to a row: in one statement, or by a read and a write."""

    def add() -> Generator[Atom, Any, None]:
        yield Begin(isolation)
        seen = None
        if reads:
            (seen,) = yield Execute(
                Statement("", "counters", lambda at, row, lapsed: True, lambda w, at, row: row, reads=True)
            )

        def write(writer: Writer, row_id: int, row: int) -> None:
            writer.update("counters", row_id, (row if seen is None else seen) + 1)

        try:
            yield Execute(Statement("", "counters", lambda at, row, lapsed: True, write))
        except SerializationFailureError:
            return
        yield Commit()

    return Scenario(
        {"a": add, "b": add},
        lambda: World(Database({("counters", 1): 0}, {})),
        (),
        lambda world: world.database.committed["counters", 1] == 2,
        lambda world: iter(()),
        lambda atom: False,
        lambda name: False,
    )


def test_read_committed_updates_add_up_after_a_lock_wait() -> None:
    assert explore(_counting(isolation=READ_COMMITTED, reads=False)).problem is None


@pytest.mark.parametrize("isolation", [READ_COMMITTED, REPEATABLE_READ])
def test_an_update_of_an_outdated_read_is_found(isolation: str) -> None:
    result = explore(_counting(isolation=isolation, reads=True))
    assert result.problem == "the goal is out of reach"


def test_a_locked_row_blocks_an_update_and_is_skipped_by_skip_locked() -> None:
    database = Database({("counters", 1): 0, ("counters", 2): 0}, {})
    first = Statement("", "counters", lambda at, row, lapsed: at == 1, _add_one)
    database.begin("a", READ_COMMITTED)
    database.execute("a", first)
    assert database.execute("b", first) == Blocked("a")
    skipping = Statement("", "counters", lambda at, row, lapsed: True, _add_one, skips_locked=True)
    assert database.execute("c", skipping) == [0]
    assert database.committed == {("counters", 1): 0, ("counters", 2): 1}


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_crash_keeps_a_prefix_of_the_commits_that_were_not_flushed(kept: int) -> None:
    database = Database({("counters", 1): 0}, {}, keeps_history=True)
    database.flushed = (database.committed, {})
    for _ in range(2):
        database.begin("a", READ_COMMITTED)
        database.execute("a", Statement("", "counters", lambda at, row, lapsed: True, _add_one))
        database.commit("a", is_durable=False)
    database.crash(kept, frozenset("a"))
    assert database.committed == {("counters", 1): kept}
    assert database.disconnected == {"a"}


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_a_failover_keeps_a_prefix_of_the_last_states_though_they_were_flushed(kept: int) -> None:
    database = Database({("counters", 1): 0}, {"numbers": 0}, keeps_history=True, lag=2)
    database.flushed = (database.committed, database.sequences)
    for number in range(1, 3):
        database.begin("a", READ_COMMITTED)
        numbered = {"numbers": number}
        database.execute(
            "a",
            Statement("", "counters", lambda at, row, lapsed: True, _add_one, sequences=numbered),
        )
        database.commit("a", is_durable=True)
    database.crash(kept, frozenset("a"))
    # The second number reaches the replica before the commit that uses it.
    assert (database.committed["counters", 1], database.sequences["numbers"]) == [(1, 1), (1, 2), (2, 2)][
        kept
    ]
    assert database.disconnected == {"a"}
