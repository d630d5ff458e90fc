"""The workflow of each push runs all that `.ci/run` runs."""

import re

import yaml

from tests.helpers import ROOT


def test_the_workflow_runs_the_same_parts_as_the_script() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["part"]
    parts = re.findall(r"^if part (\w+) ", script, re.MULTILINE)
    assert len(parts) >= 6
    assert [each["part"] for each in job["strategy"]["matrix"]["include"]] == parts
    assert job["steps"][-1]["run"].endswith("bash .ci/run ${{ matrix.part }}")
