"""The catalogue of mutants fits the tree, so that none of them rots."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.mutants.catalogue import AREAS
from tests.mutants.mutant import CatalogueError, Mutant
from tests.mutants.tree import files_of_tests

MUTANTS = [mutant for mutants in AREAS.values() for mutant in mutants]
FILES = files_of_tests(ROOT)


@cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@cache
def names_in(file: str) -> set[str]:
    """Names of the tests in a file, by its base name; to parse all files would take a second."""
    text = (ROOT / FILES[file]).read_text(encoding="utf-8")
    return set(re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE))


def test_each_mutant_replaces_a_text_that_occurs_once_in_its_file() -> None:
    counts = {mutant.name: text_of(mutant.file).count(mutant.old) for mutant in MUTANTS}

    assert {name: count for name, count in counts.items() if count != 1} == {}
    assert [mutant.name for mutant in MUTANTS if mutant.new == mutant.old] == []


def test_each_mutant_names_tests_that_exist() -> None:
    named = [test.partition("[")[0].split("::") for mutant in MUTANTS for test in mutant.tests]

    assert [file for file, _ in named if file not in FILES] == []
    assert [(file, name) for file, name in named if name not in names_in(file)] == []
    assert [mutant.name for mutant in MUTANTS if not 1 <= len(mutant.tests) <= 3] == []


def test_base_names_of_test_files_are_unique() -> None:
    counts = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))

    assert [name for name, count in counts.items() if count > 1] == []


def test_names_of_mutants_are_unique() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("text", ["neither", "twice, twice", None], ids=["missing", "ambiguous", "no file"])
def test_a_mutant_that_does_not_fit_is_refused_in_one_line(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "module.py").write_text(text)
    mutant = Mutant("say it once", "module.py", "twice", "once", ())

    with pytest.raises(CatalogueError, match=r"^say it once: .*module\.py.*$"):
        mutant.apply(tmp_path)
