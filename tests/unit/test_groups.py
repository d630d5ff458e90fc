"""A group of commands without a subcommand prints its help."""

import click
import pytest
from click.testing import CliRunner

from drain.__main__ import main

GROUPS = sorted(name for name, command in main.commands.items() if isinstance(command, click.Group))


def test_the_known_groups_exist() -> None:
    assert {"cron", "dead", "jobs", "queue", "slo"} <= set(GROUPS)


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_without_a_subcommand_prints_its_help_line_by_line(name: str) -> None:
    result = CliRunner().invoke(main, [name])
    assert result.exit_code == 2
    assert f"Usage: main {name} [OPTIONS] COMMAND [ARGS]...\n" in result.output
    assert "\nCommands:\n" in result.output
    assert r"\n" not in result.output
