"""What the README and the pages of docs/ say is so today."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import click
import pytest

from drain.__main__ import main
from drain.config import VARIABLES
from tests import pages
from tests.pages import DOCS, PAGES, README, ROOT

# Options of other programs that pages name: RQ's, Docker's, Spark's, PostgreSQL's.
OPTIONS_OF_OTHERS = {
    *("--dequeue-strategy", "--worker-class", "--config"),
    *("--network", "--stop-timeout", "--forwarded-allow-ips"),
}
# Variables that only make and the tests know.
# The last is no option: others would see it on the command line.
VARIABLES_OF_TESTS = {"DRAIN_TEST_POSTGRES", "DRAIN_TEST_REDIS", "DRAIN_WRITE_PRINTED"}
# No option: others would see it on the command line.
WITHOUT_OPTION = {"DRAIN_WEB_TOKEN", "DRAIN_SOURCE_DATABASE_URL"}
# Set for the commands of --on-unhealthy and --on-recovery.
OF_HEALTH = {
    f"DRAIN_HEALTH_{name}" for name in ("EVENT", "WHAT", "REASON", "SINCE", "PROCESS", "RECOVERED_AT")
}
# Names of sessions in PostgreSQL, which are spelled like commands.
NAMES_OF_SESSIONS = {"drain job", "drain lease", "drain snapshot", "drain spark"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def all_commands(command: click.Command = main) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for each in command.commands.values():
            yield from all_commands(each)


def options_of(command: click.Command) -> set[str]:
    return {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}


def find(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that these words name, and what is left of them."""
    command: click.Command = main
    while isinstance(command, click.Group) and words and re.fullmatch("[a-z]+", words[0]):
        assert words[0] in command.commands, f"there is no `drain {words[0]}`"
        command, words = command.commands[words[0]], words[1:]
    return command, words


@each_page
def test_each_command_shown_on_a_page_parses(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("DRAIN_")]:
        monkeypatch.delenv(name)
    for words in pages.commands(page):
        command, arguments = find(words)
        assert not isinstance(command, click.Group), words
        # Reads values and their ranges too, and misses what is required.
        command.make_context(command.name, arguments, **main.context_settings)


@each_page
def test_commands_in_prose_have_the_options_shown(page: Path) -> None:
    every_option = set().union(*map(options_of, all_commands()))
    for code in pages.inline_code(page):
        words = code.split()
        if words[0] == "drain" and len(words) > 1 and code not in NAMES_OF_SESSIONS:
            command, rest = find(words[1:])
            named = takewhile(lambda word: word not in ("|", "&"), rest)
            assert {word.partition("=")[0] for word in named if word.startswith("--")} <= options_of(
                command
            ), code
        elif words[0].startswith("--"):
            assert words[0].partition("=")[0] in every_option | OPTIONS_OF_OTHERS, code


def test_the_readme_shows_enough_commands_to_check() -> None:
    assert {words[0] for words in pages.commands(README)} >= {"init", "run", "work", "dev", "show"}
    everywhere = {words[0] for page in PAGES for words in pages.commands(page)}
    assert everywhere >= set(main.commands) - {"demo"}


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120


@pytest.mark.parametrize("variable", [*VARIABLES.values(), "DRAIN_METRICS_PORT", "DRAIN_METRICS_HOST"])
def test_each_setting_is_documented_with_its_option(variable: str) -> None:
    option = "--" + variable.removeprefix("DRAIN_").lower().replace("_", "-")
    text = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    assert re.search(rf"\| `{variable}` +\| `{option}`", text)


@each_page
def test_each_variable_that_a_page_names_is_a_setting(page: Path) -> None:
    known = {
        str(variable)
        for command in all_commands()
        for option in command.params
        for variable in ([option.envvar] if isinstance(option.envvar, str) else option.envvar or [])
    }
    assert "DRAIN_KEEP_DAYS" in known
    named = set(re.findall(r"\bDRAIN_[A-Z_]+\b", page.read_text(encoding="utf-8")))
    assert named <= known | VARIABLES_OF_TESTS | WITHOUT_OPTION | OF_HEALTH


@each_page
def test_each_make_target_named_on_a_page_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"(?:^|`)make ([\w-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@each_page
def test_each_link_on_a_page_resolves(page: Path) -> None:
    """As GitHub resolves it; `make docs` looks at those of the site."""
    for link in pages.links(page):
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), link
        if anchor:
            assert anchor in pages.anchors(file), link
