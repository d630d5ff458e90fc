"""The units as systemd reads them: nothing that it does not know, and little exposure by its own measure."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers import ROOT

pytestmark = [
    pytest.mark.usefixtures("processes"),
    pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on PATH"),
]
SERVICES = sorted((ROOT / "deploy").glob("*.service"))
TIMERS = sorted((ROOT / "deploy").glob("*.timer"))


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.stem)
def test_the_exposure_of_a_unit_is_below_two_and_a_half(path: Path) -> None:
    done = analyze("security", "--offline=true", "--no-pager", path)
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    if found is None and "--offline" in done.stderr:
        pytest.skip("this systemd-analyze is older than 250")
    assert found is not None, done.stderr
    assert float(found[1]) < 2.5


def test_systemd_understands_each_line() -> None:
    said = analyze("verify", *SERVICES, *TIMERS).stderr.splitlines()
    files = [line for line in said if "job-drain" in line]
    assert [line for line in files if "drain is not executable" not in line] == []
