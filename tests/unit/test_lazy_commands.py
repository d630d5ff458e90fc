"""Commands of other packages: found by entry points, imported when they are needed."""

import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from drain.terminal.commandline import Group
from drain.terminal.lazy_commands import GROUP, LazyCommands

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command line with a command `top`, and with what the package `shop` adds."""
    info = tmp_path / "shop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{GROUP}]\n"
        "hello = shop_of_lazy:hello\ntop = shop_of_lazy:hello\n"
        "broken = shop_of_lazy_broken:hello\nnumber = shop_of_lazy:NUMBER\n"
    )
    (tmp_path / "shop_of_lazy.py").write_text(
        "import click\nNUMBER = 1\n@click.command\ndef hello():\n    'Say hello.'\n    print('hello')\n"
    )
    (tmp_path / "shop_of_lazy_broken.py").write_text("raise ValueError('no\\nluck')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("shop_of_lazy", "shop_of_lazy_broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    group = Group("drain", commands=LazyCommands({"top": "drain.commands.top:top"}))

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(group, words)

    return invoke


def test_a_package_adds_a_command(run: Run) -> None:
    assert run("hello").output == "hello\n"
    assert "Say hello." in run("--help").output


def test_a_command_is_imported_when_it_is_needed(run: Run) -> None:
    assert run("top", "--help").exit_code == 0
    assert "shop_of_lazy" not in sys.modules


def test_a_name_of_ours_is_never_that_of_another_package(run: Run) -> None:
    assert "Say hello." not in run("top", "--help").output


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("broken", "shop_of_lazy_broken:hello cannot be imported: ValueError: no luck"),
        ("number", "shop_of_lazy:NUMBER is not a click command"),
    ],
)
def test_a_command_that_cannot_be_used_hinders_no_other(run: Run, name: str, problem: str) -> None:
    result = run(name)
    assert result.exit_code == 1
    assert result.output == f"Error: the command `{name}` of the package shop does not work: {problem}\n"
    assert f"\n  {name} " in run("--help").output
    assert run("hello").exit_code == 0


def test_it_is_a_mapping_of_commands() -> None:
    commands = LazyCommands({"top": "drain.commands.top:top"})
    commands["mine"] = click.Command("mine")
    assert {"top", "mine"} <= set(commands)
    assert len(commands) == len(set(commands))
    del commands["mine"]
    assert "mine" not in commands
