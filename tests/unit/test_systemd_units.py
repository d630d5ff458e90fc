"""The units for systemd: their commands, their settings, and what they are locked into."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import click
import pytest

from drain.__main__ import main
from tests.helpers import ROOT
from tests.unit.contrib.test_readme import all_commands

DEPLOY = ROOT / "deploy"
SERVICES = sorted(DEPLOY.glob("*.service"))
# What jobs commonly need, and nothing of job-drain's own.
LEFT_TO_JOBS = {"MemoryDenyWriteExecute", "ProcSubset"}
each_service = pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)


def directives(path: Path) -> dict[str, list[str]]:
    """Values of each directive of a unit, in their order."""
    found = defaultdict(list)
    for name, value in re.findall(r"^(\w+)=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE):
        found[name].append(value)
    return found


def hardening(path: Path) -> dict[str, list[str]]:
    """The part of a unit that begins with `DynamicUser=`."""
    unit = directives(path)
    names = list(unit)
    return {name: unit[name] for name in names[names.index("DynamicUser") :] if name != "WantedBy"}


def test_there_is_a_unit_for_each_program_and_a_timer_for_the_audit() -> None:
    names = {path.stem for path in SERVICES}
    assert names == {"job-drain", "job-drain-worker", "job-drain-web", "job-drain-audit"}
    timer = directives(DEPLOY / "job-drain-audit.timer")
    assert (timer["OnCalendar"], timer["Persistent"]) == (["daily"], ["yes"])


@each_service
def test_the_command_of_a_unit_parses(path: Path) -> None:
    (line,) = directives(path)["ExecStart"]
    program, name, *arguments = line.split()
    assert program == "/opt/job-drain/bin/drain"
    command = main.commands[name]
    command.make_parser(click.Context(command, **main.context_settings)).parse_args(arguments)


@each_service
def test_a_unit_is_hardened_like_the_enqueuer_except_for_what_jobs_need(path: Path) -> None:
    strict, own = hardening(DEPLOY / "job-drain.service"), hardening(path)
    assert strict["CapabilityBoundingSet"] == [""]
    assert "@privileged" in strict["SystemCallFilter"][1]
    if path.stem != "job-drain-worker":
        assert own == strict
        return
    assert strict.keys() - own.keys() == LEFT_TO_JOBS
    for name in own.keys() - {"RestrictAddressFamilies", "SystemCallFilter"}:
        assert own[name] == strict[name]


def test_the_sample_environment_file_names_only_settings() -> None:
    text = (DEPLOY / "job-drain.env").read_text(encoding="utf-8")
    known = {
        str(variable)
        for command in all_commands()
        for option in command.params
        for variable in ([option.envvar] if isinstance(option.envvar, str) else option.envvar or [])
    }
    assert set(re.findall(r"^#?([A-Z_]+)=", text, re.MULTILINE)) <= known | {"PYTHONPATH", "DRAIN_WEB_TOKEN"}
    # Each file that the sample names is read by the unit of that name, and every unit reads the common one.
    for path in SERVICES:
        first, *own = directives(path)["EnvironmentFile"]
        assert first == "/etc/job-drain.env"
        assert own == ([] if path.stem == "job-drain" else [f"-/etc/{path.stem}.env"])


def test_the_recipe_installs_every_file() -> None:
    page = (ROOT / "docs" / "operations" / "deploy.md").read_text(encoding="utf-8")
    assert "deploy/job-drain.env /etc/job-drain.env" in page
    assert "deploy/*.service deploy/*.timer /etc/systemd/system/" in page
    for path in [*SERVICES, DEPLOY / "job-drain-audit.timer", DEPLOY / "job-drain.env"]:
        assert f"(../../deploy/{path.name})" in page
