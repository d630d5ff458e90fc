"""Rules of the house: maps of the rooms, sizes of files and classes, and the first words of docstrings."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import ROOT

PACKAGES = ("drain", "workers", "pipeline")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
ROOMS = sorted(path for path in FILES if path.name == "__init__.py")

LINES_OF_A_FILE = 300
LINES_OF_A_CLASS = 150
# A file or class that is larger says why it is one thing, in a comment: in the file, or in the class.
REASON = re.compile(r"^\s*# One thing: \S", re.MULTILINE)

# First words of a summary that is neither a noun nor an imperative: the reader would have to guess what is meant.
PRONOUNS = (
    "What",
    "Those",
    "How",
    "Whoever",
    "Whether",
    "Where",
    "The same",
    "So",
    "That",
    "This",
    "It",
    "One's",
)
PRONOUN_FIRST = re.compile(rf"(?:{'|'.join(PRONOUNS)})\b")

Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(path: Path) -> Iterator[Definition]:
    """The module, and all classes and functions in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Definition):
            yield node


def name_of(node: Definition) -> str:
    return "the module" if isinstance(node, ast.Module) else node.name


def fail_on(offenders: Iterator[tuple[Path, str]]) -> None:
    """Fail with a line for each offender, so that one failure shows all of them."""
    if lines := sorted(f"{path.relative_to(ROOT)}: {text}" for path, text in offenders):
        pytest.fail("\n".join([f"{len(lines)} offenders", *lines]), pytrace=False)


def test_each_package_docstring_names_all_of_its_modules() -> None:
    def missing() -> Iterator[tuple[Path, str]]:
        for room in ROOMS:
            text = ast.get_docstring(ast.parse(room.read_text(encoding="utf-8"))) or ""
            for module in modules_in(room.parent):
                if not re.search(rf"\b{module}\b", text):
                    yield room, f"does not name `{module}`"

    fail_on(missing())


def modules_in(room: Path) -> Iterator[str]:
    for path in room.iterdir():
        is_package = (path / "__init__.py").exists()
        is_module = path.suffix == ".py" and path.stem not in {"__init__", "__main__"}
        if is_package or is_module:
            yield path.stem


def test_no_file_or_class_exceeds_its_size_limit() -> None:
    def too_large() -> Iterator[tuple[Path, str]]:
        for path in FILES:
            text = path.read_text(encoding="utf-8")
            lines = text.splitlines()
            if len(lines) > LINES_OF_A_FILE and not REASON.search(text):
                yield path, f"{len(lines)} lines"
            for node in definitions(path):
                if isinstance(node, ast.ClassDef):
                    body = lines[node.lineno - 1 : node.end_lineno]
                    if len(body) > LINES_OF_A_CLASS and not REASON.search("\n".join(body)):
                        yield path, f"class {node.name} has {len(body)} lines"

    fail_on(too_large())


def test_each_module_has_a_docstring() -> None:
    def silent() -> Iterator[tuple[Path, str]]:
        for path in FILES:
            if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))):
                yield path, "has no docstring"

    fail_on(silent())


def test_the_summary_of_a_docstring_begins_with_a_noun_or_a_verb() -> None:
    def pronouns() -> Iterator[tuple[Path, str]]:
        for path in FILES:
            for node in definitions(path):
                summary = (ast.get_docstring(node) or "").partition("\n")[0]
                if PRONOUN_FIRST.match(summary):
                    yield path, f"{name_of(node)}: {summary}"

    fail_on(pronouns())


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_has_files_to_check(package: str) -> None:
    assert Counter(path.relative_to(ROOT).parts[0] for path in FILES)[package] > 10


# Of a single array, the one that fits its type exactly is called, whoever made it; of several it is PostgreSQL's own.
CALLS_ANYBODY = re.compile(
    r"(?<![.\w])(?:unnest\(%\(\w+\)s::\w+\[\]\)|array_agg\(|jsonb_build_object\(|lead\()"
)


def test_calls_of_polymorphic_functions_are_schema_qualified() -> None:
    """A role that may make functions would have its own called by ours."""

    def unqualified() -> Iterator[tuple[Path, str]]:
        for path in FILES:
            for found in CALLS_ANYBODY.finditer(path.read_text(encoding="utf-8")):
                yield path, found[0]

    fail_on(unqualified())
