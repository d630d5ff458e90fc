"""Commands of other packages: found by entry points, imported when they are needed."""

import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from drain.terminal.commandline import Group
from drain.terminal.lazy_commands import GROUP, OPTIONS, LazyCommands
from tests.installed_package import install

Run = Callable[..., Result]

OWN = {"top": "drain.commands.top:top", "stack": "drain.commands.stack:stack"}
SHOP = """
import click
from drain.terminal.commandline import add_to

NUMBER = 1

@click.command
def hello():
    "Say hello."
    print("hello")

def add_options(command):
    top = command.callback

    @click.option("--hello", is_flag=True, help="Say hello instead.")
    def with_hello(*, hello, **given):
        print("hello") if hello else top(**given)

    add_to(command, with_hello)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command line with a command `top`, and with what the package `shop` adds."""
    install(
        monkeypatch,
        tmp_path,
        {
            GROUP: "hello = shop_of_lazy:hello\ntop = shop_of_lazy:hello\n"
            "broken = shop_of_lazy_broken:hello\nnumber = shop_of_lazy:NUMBER",
            OPTIONS: "top = shop_of_lazy:add_options\nstack = shop_of_lazy_broken:add_options",
        },
        {"shop_of_lazy": SHOP, "shop_of_lazy_broken": "raise ValueError('no\\nluck')"},
    )
    group = Group("drain", commands=LazyCommands(OWN))

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(group, words)

    return invoke


def test_a_package_adds_a_command(run: Run) -> None:
    assert run("hello").output == "hello\n"
    assert "Say hello." in run("--help").output


def test_a_command_is_imported_when_it_is_needed(run: Run) -> None:
    assert run("broken", "--help").exit_code == 0
    assert "shop_of_lazy" not in sys.modules


def test_a_package_adds_options_to_a_built_in_command(run: Run) -> None:
    for _ in range(2):
        assert run("top", "--help").output.count("--hello") == 1
    assert run("top", "--hello").output == "hello\n"
    assert run("top").exit_code == 1


def test_options_that_cannot_be_added_are_left_out_and_reported(run: Run) -> None:
    result = run("stack", "--help")
    assert "Usage: drain stack" in result.output
    problem = (
        "`drain stack` runs without the options of shop_of_lazy_broken:add_options: ValueError: no luck\n"
    )
    assert result.stderr == problem


def test_a_package_cannot_replace_a_built_in_command(run: Run) -> None:
    assert "Say hello." not in run("top", "--help").output


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("broken", "shop_of_lazy_broken:hello cannot be imported: ValueError: no luck"),
        ("number", "shop_of_lazy:NUMBER is not a click command"),
    ],
)
def test_a_broken_command_does_not_affect_the_others(run: Run, name: str, problem: str) -> None:
    result = run(name)
    assert result.exit_code == 1
    assert result.output == f"Error: the command `{name}` of package shop does not work: {problem}\n"
    assert f"\n  {name} " in run("--help").output
    assert run("hello").exit_code == 0


def test_lazy_commands_behave_as_a_mapping() -> None:
    commands = LazyCommands({"top": "drain.commands.top:top"})
    commands["mine"] = click.Command("mine")
    assert {"top", "mine"} <= set(commands)
    assert len(commands) == len(set(commands))
    del commands["mine"]
    assert "mine" not in commands
