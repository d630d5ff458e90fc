"""The units for systemd start what the command line knows, and leave it the time that it takes."""

import shlex
from pathlib import Path

import click
import pytest

from drain.__main__ import main
from drain.workers.supervisor import health, supervisor

DEPLOY = Path(__file__).parents[2] / "deploy"
WORKERS = DEPLOY / "job-drain-worker.service"
UNITS = [DEPLOY / "job-drain.service", WORKERS]


def settings_of(unit: Path) -> dict[str, str]:
    lines = [line for line in unit.read_text().splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def options_of(unit: Path) -> dict[str, object]:
    """What the words of ExecStart come to; the command itself is not called."""
    _, name, *words = shlex.split(settings_of(unit)["ExecStart"])
    command = main.commands[name]
    context = click.Context(command, **main.context_settings)
    command.parse_args(context, [*words, "--database-url", "postgresql://localhost/shop"])
    return context.params


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: str(unit.stem))
def test_a_unit_restarts_until_its_stores_are_available(unit: Path) -> None:
    assert options_of(unit)
    settings = settings_of(unit)
    assert settings["Type"] == "notify"
    assert settings["TimeoutStartSec"] == "infinity"
    assert (settings["Restart"], settings["StartLimitIntervalSec"]) == ("always", "0")
    assert {"postgresql.service", "redis-server.service"} <= set(settings["After"].split())
    # In this order alone: a store that is stopped takes nobody along.
    assert not {"Requires", "BindsTo", "PartOf"} & settings.keys()


def test_the_worker_unit_allows_for_the_grace_and_the_loop() -> None:
    settings, options = settings_of(WORKERS), options_of(WORKERS)
    grace = options["grace_seconds"]
    assert isinstance(grace, float)
    assert float(settings["TimeoutStopSec"]) > grace + supervisor._KILL_SECONDS
    assert float(settings["WatchdogSec"]) > 10 * supervisor._LOOK_SECONDS
    assert health._UNHEALTHY_SECONDS > 10 * supervisor._LOOK_SECONDS
    assert (settings["KillMode"], settings["OOMPolicy"]) == ("mixed", "continue")
