"""Run the rules of deploy/prometheus and their test cases with promtool, which takes half a minute."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import prometheus

PROMTOOL = shutil.which("promtool")
CASES = sorted((prometheus.DEPLOY / "tests").glob("*.yml"))

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_the_promtool_test_cases_pass(cases: Path) -> None:
    words = [str(PROMTOOL), "test", "rules", str(cases)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("faster", [1, 30])
def test_promtool_accepts_rules_and_configuration(tmp_path: Path, faster: float) -> None:
    for path in (prometheus.ALERTS, prometheus.CONFIG):
        (tmp_path / path.name).write_text(prometheus.scaled(path.read_text(encoding="utf-8"), faster))
    words = [str(PROMTOOL), "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
