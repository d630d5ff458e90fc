"""What the README says is so today."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from prometheus_client import Counter, Gauge, Histogram

from drain import metrics
from drain.__main__ import main
from drain.config import VARIABLES

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SHELL = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL)).replace("\\\n", " ")
COMMANDS = re.findall(r"^(?:\S*/)?drain ([^#&\n]+)", SHELL, re.MULTILINE)


@pytest.mark.parametrize("words", COMMANDS)
def test_each_command_that_it_shows_is_understood(words: str) -> None:
    command: click.Command = main
    arguments = shlex.split(words)
    while isinstance(command, click.Group):
        command = command.commands[arguments.pop(0)]
    parser = command.make_parser(click.Context(command))
    parser.parse_args(arguments)


def test_it_shows_enough_commands_for_the_test_above_to_mean_something() -> None:
    assert {words.split()[0] for words in COMMANDS} >= {"init", "run", "work", "dev", "list", "show", "dead"}


@pytest.mark.parametrize("variable", [*VARIABLES.values(), "DRAIN_METRICS_PORT", "DRAIN_METRICS_HOST"])
def test_it_names_each_setting_with_its_option(variable: str) -> None:
    option = "--" + variable.removeprefix("DRAIN_").lower().replace("_", "-")
    assert re.search(rf"\| `{variable}` +\| `{option}`", README)


def test_it_names_each_metric() -> None:
    ours = [metric for metric in vars(metrics).values() if isinstance(metric, Counter | Gauge | Histogram)]
    assert len(ours) >= 10
    for metric in ours:
        assert next(iter(metric.describe())).name in README
    of_workers = [
        metric for metric in vars(metrics).values() if isinstance(metric, tuple) and len(metric) == 2
    ]
    assert len(of_workers) == 4
    for name, _ in of_workers:
        assert name in README


def test_it_names_each_word_of_the_makefile_that_a_newcomer_needs() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make (\w+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
