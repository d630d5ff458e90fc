"""Public names: one that appears or goes has a line in the changelog.

`tests/public_names.txt` has those of the time at which `DRAIN_WRITE_PRINTED=1` wrote it last: at a release.
"""

import inspect
import os
import re
from collections.abc import Iterator
from typing import get_overloads

import click

import drain
from drain.__main__ import main
from drain.moved import MOVED
from tests.pages import DOCS, ROOT

FILE = ROOT / "tests" / "public_names.txt"
SCHEMA = (ROOT / "schema.sql").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def of_python() -> Iterator[str]:
    """Names that api.md documents, with the parameters of functions of `drain`."""
    yield from re.findall(r"^::: (\S+)", (DOCS / "reference" / "api.md").read_text(encoding="utf-8"), re.M)
    for name in drain.__all__:
        found = getattr(drain, name)
        if inspect.isfunction(found):
            for each in get_overloads(found) or [found]:
                yield from (f"drain.{name}({parameter})" for parameter in inspect.signature(each).parameters)


def of_commands(group: click.Group, words: str) -> Iterator[str]:
    for name, command in group.commands.items():
        yield f"{words} {name}"
        for parameter in command.params:
            yield from (f"{words} {name} {option}" for option in parameter.opts if option.startswith("--"))
        if isinstance(command, click.Group):
            yield from of_commands(command, f"{words} {name}")


def of_tables_in_docs(page: str) -> Iterator[str]:
    """First words of the rows of a page, which other tests compare with the code."""
    text = (DOCS / "reference" / page).read_text(encoding="utf-8")
    yield from re.findall(r"^\| `([a-z_]+)` \|", text, re.M)


def of_columns() -> Iterator[str]:
    for table, text in re.findall(r"CREATE TABLE IF NOT EXISTS (\w+) \((.*?)\n\)", SCHEMA, re.S):
        yield from (f"{table}.{column}" for column in re.findall(r"^    ([a-z_]+) +\w", text, re.M))


def public_names() -> set[str]:
    return {
        *of_python(),
        *of_commands(main, "drain"),
        *of_tables_in_docs("metrics.md"),
        *of_tables_in_docs("log-events.md"),
        *of_columns(),
        *MOVED,
    }


def changed_without_a_word(before: set[str], now: set[str], text: str) -> set[str]:
    """Names of which the last word, an option or a column for example, is not in the text."""
    return {name for name in before ^ now if re.split(r"[ .(]", name.rstrip(")"))[-1] not in text}


def test_each_public_name_that_has_changed_is_in_the_changelog() -> None:
    now = public_names()
    assert len(now) > 700
    if os.environ.get("DRAIN_WRITE_PRINTED"):
        FILE.write_text("".join(f"{name}\n" for name in sorted(now)), encoding="utf-8")
    before = set(FILE.read_text(encoding="utf-8").splitlines())
    latest = CHANGELOG.split("\n## ")[1]
    assert changed_without_a_word(before, now, latest) == set()


def test_a_change_missing_from_the_changelog_is_found() -> None:
    before, now = {"drain list --tag", "jobs.old", "drain.stage(key)"}, {"jobs.new", "drain.stage(key)"}
    assert changed_without_a_word(before, now, "`--tag` is gone, `new` is a column") == {"jobs.old"}
    assert changed_without_a_word(now, now, "") == set()
