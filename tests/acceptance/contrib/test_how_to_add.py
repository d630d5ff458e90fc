"""CONTRIBUTING names each file that a column, a rule, a command … touches: dummies are added through exactly those.

`tests/dummies` has a patch for each, in the order in which they are applied. To renew one that no longer applies, apply
those before it in a copy, make its change by hand, and write it with `git diff -U1`.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import tree

ROOT = tree.ROOT
PATCHES = sorted((ROOT / "tests" / "dummies").glob("*.patch"))
_CRASHES = "tests/acceptance/test_crash_points.py"
# Tests that compare lists with each other, and those of what the dummies change.
CONSISTENCY = (
    *(
        "tests/unit/test_columns.py",
        "tests/unit/test_docs.py",
        "tests/unit/test_house.py",
        "tests/unit/test_layers.py",
    ),
    *("tests/unit/test_printed.py", "tests/unit/test_rules.py", "tests/unit/test_schema_text.py"),
    *("tests/unit/contrib/test_readme.py", "tests/unit/contrib/test_public_names.py"),
    *("tests/database/test_queues.py", "tests/database/test_move.py", "tests/database/contrib/test_web.py"),
    *("tests/process/test_migrations.py", "tests/process/test_roles.py"),
    f"{_CRASHES}::test_every_crash_point_has_its_test",
    f"{_CRASHES}::test_a_killed_enqueuer_loses_no_job_and_makes_none_run_twice[GREETED]",
)


def kind_of(patch: Path) -> str:
    return patch.stem.partition("-")[2].replace("-", " ")


def touched(patch: Path) -> set[str]:
    return set(re.findall(r"^\+\+\+ b/(.+)$", patch.read_text(encoding="utf-8"), re.M))


def named(kind: str) -> set[str]:
    """Files and folders that the section names, but for those of the steps that run tests."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^### … a {kind}\n(.*?)(?=^##)", text, re.S | re.M)
    steps = [step for step in re.split(r"^\d+\. ", section, flags=re.M)[1:] if not step.startswith("Run ")]
    return {name for name in re.findall(r"`([\w./-]+)`", "".join(steps)) if (ROOT / name).exists()}


@pytest.mark.parametrize("patch", PATCHES, ids=kind_of)
def test_an_addition_touches_exactly_the_files_named_in_contributing(patch: Path) -> None:
    files, names = touched(patch), named(kind_of(patch))
    folders = {f"{Path(file).parent}/" for file in files}
    assert {file for file in files if file not in names and f"{Path(file).parent}/" not in names} == set()
    assert names - files - folders == set()


def test_the_consistency_tests_pass_with_every_dummy_applied() -> None:
    with tree.copied() as copy:
        subprocess.run(["git", "apply", "-C1", *map(str, PATCHES)], cwd=copy, check=True)
        env = tree.environment(copy)
        command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CONSISTENCY)
        result = subprocess.run(command, cwd=copy, env=env, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout[-5000:]
        greeting = (sys.executable, "-m", "drain", "greet")
        assert (
            subprocess.run(greeting, cwd="/", env=env, capture_output=True, check=True).stdout == b"hello\n"
        )
