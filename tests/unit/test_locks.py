"""All advisory locks are those of drain/database/locks.py, and the functions of schema.sql take the same."""

import ast
import re

from drain.database import locks, schema
from drain.database.locks import Lock
from tests.helpers import ROOT
from tests.unit.test_schema_text import parsed, sources, statements

LOCKS = {name: lock for name, lock in vars(locks).items() if isinstance(lock, Lock)}
# Function of `schema.sql` -> the lock that it takes.
OF_FUNCTIONS = {
    "drain_make_days_of": locks.MAKE_DAYS,
    "drain_drop_old_day_of": locks.ARCHIVE,
    "drain_wake_enqueuer": locks.ASLEEP,
}


def test_lock_numbers_match_those_of_every_earlier_version() -> None:
    assert {name: tuple(lock) for name, lock in LOCKS.items()} == {
        "LEADER": (1785684580, "1"),
        "ASLEEP": (1785684580, "2"),
        "SCHEMA": (1785684580, "3"),
        "MAKE_DAYS": (1785684580, "4"),
        "ARCHIVE": (1785684580, "6"),
        "BULK_STAGING": (1785684580, "7"),
        "BULK_PLACE": (1785684585, "hashtext('{name}')"),
        "BULK_RUN": (1785684586, "hashtext(%s)"),
        "RECONCILE": (1785684587, "hashtext(%s)"),
    }


def test_no_two_locks_are_the_same() -> None:
    assert len(set(LOCKS.values())) == len(LOCKS)


def test_schema_functions_take_the_named_locks() -> None:
    found = {}
    for function in re.split(r"^CREATE OR REPLACE FUNCTION ", schema.text(), flags=re.MULTILINE)[1:]:
        for first, second in re.findall(r"advisory\w*lock\w*\((\d+), (\d+)\)", function):
            found[function.partition("(")[0]] = Lock(int(first), second)

    assert found == OF_FUNCTIONS
    assert set(re.findall(r"\b17\d{8}, \d+", schema.text())) == {str(lock) for lock in found.values()}


def test_no_other_module_spells_the_numbers_of_a_lock() -> None:
    firsts = {lock.first for lock in LOCKS.values()}
    spelling = {
        path
        for path in sources()
        if any(str(first) in text for text in statements(path) for first in firsts)
        or any(
            isinstance(node, ast.Constant) and type(node.value) is int and node.value in firsts
            for node in ast.walk(parsed(path))
        )
    }

    # The number of the other locks is counted from the first one, which stands in the module of the locks alone.
    assert spelling == {ROOT / "drain" / "database" / "locks.py"}
