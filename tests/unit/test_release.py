"""The workflow that publishes, and what it checks first."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests import release
from tests.helpers import ROOT

CHANGELOG = "# Changelog\n\n## 0.3.0 (2027-01-15)\n\n- Something.\n\n## 0.2.0 (2026-12-01)\n"
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


@pytest.fixture
def workflow() -> dict[Any, Any]:
    return dict(yaml.safe_load(WORKFLOW.read_text(encoding="utf-8")))


def test_the_changelog_begins_with_the_projects_version() -> None:
    section = release.top_section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    version = re.escape(release.version())
    assert re.fullmatch(rf"Unreleased \({version}\)|{version} \(\d{{4}}-\d{{2}}-\d{{2}}\)", section)


@pytest.mark.parametrize(
    ("tag", "changelog", "words"),
    [
        ("v0.3.0", CHANGELOG, None),
        ("v0.3.1", CHANGELOG, "pyproject.toml has version 0.3.0"),
        ("0.3.0", CHANGELOG, "tag it v0.3.0"),
        ("v0.3.0", CHANGELOG.replace("0.3.0 (2027-01-15)", "Unreleased (0.3.0)"), "`## Unreleased (0.3.0)`"),
        ("v0.3.0", CHANGELOG.replace("0.3.0", "0.4.0"), "`## 0.4.0 (2027-01-15)`"),
        ("v0.3.0", "", "`## 0.3.0 (YYYY-MM-DD)`"),
    ],
)
def test_a_tag_is_released_only_with_its_version_and_a_dated_section(
    tag: str, changelog: str, words: str | None
) -> None:
    problem = release.problem(tag, "0.3.0", changelog)
    assert (problem is None) if words is None else (problem is not None and words in problem)


def test_only_the_job_that_publishes_may_ask_for_an_identity(workflow: dict[Any, Any]) -> None:
    # YAML 1.1 reads the key `on` as true.
    assert workflow[True] == {"push": {"tags": ["v*"]}}
    assert workflow["permissions"] == {}
    assert workflow["jobs"]["build"]["permissions"] == {"contents": "read"}
    publish = workflow["jobs"]["publish"]
    assert (publish["permissions"], publish["environment"], publish["needs"]) == (
        {"id-token": "write"},
        "pypi",
        "build",
    )
    # No code of the repository runs in the job that has the identity.
    assert [set(step) & {"run"} for step in publish["steps"]] == [set(), set()]


def test_each_action_except_pypis_own_is_pinned_to_a_commit(workflow: dict[Any, Any]) -> None:
    used = [step["uses"] for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    floating = [action for action in used if not re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action)]
    assert floating == ["pypa/gh-action-pypi-publish@release/v1"]


def test_no_workflow_script_contains_a_github_expression(workflow: dict[Any, Any]) -> None:
    scripts = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert len(scripts) == 4
    assert [script for script in scripts if "${{" in script] == []
