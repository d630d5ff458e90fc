"""Runs of pytest in copies of the tree, and what they say about a mutant."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple
from xml.etree import ElementTree

from tests.mutants import tree
from tests.mutants.mutant import CatalogueError, Mutant

# Exit codes of pytest; and that of a run that took too long.
_PASSED, _FAILED, _TIMED_OUT = 0, 1, -1
# Seconds that an interrupted pytest gets to end the programs of its tests.
_END_SECONDS = 30
# What each says about a mutant. Where pytest fails and no test has, a fixture has failed.
_OUTCOMES = {_PASSED: "survived", _FAILED: "only a fixture failed", _TIMED_OUT: "timed out"}


class Verdict(NamedTuple):
    """Result of one mutant; test and layer, its folder below tests/, are empty unless it was caught."""

    outcome: str
    seconds: float
    test: str = ""
    layer: str = ""


def try_out(mutant: Mutant, seconds: float) -> Verdict:
    """Apply a mutant to a copy of the tree, and run its tests there for at most some seconds."""
    began = monotonic()
    with tree.copied() as root:
        mutant.apply(root)
        files = tree.files_of_tests(root)
        code, failed, error = _pytest([tree.pytest_id(test, files) for test in mutant.tests], root, seconds)
    took = monotonic() - began
    if failed:
        return Verdict("caught", took, failed[0], files[failed[0].partition("::")[0]].parts[1])
    if code not in _OUTCOMES:
        raise CatalogueError(f"{mutant.name}: pytest exited with {code}: {error}")
    return Verdict(_OUTCOMES[code], took)


def require_passing(mutants: Sequence[Mutant], seconds: float) -> int:
    """Run all named tests once without a mutant; return how many there are."""
    with tree.copied() as root:
        tree.require_own_packages(root)
        files = tree.files_of_tests(root)
        tests = {tree.pytest_id(test, files) for mutant in mutants for test in mutant.tests}
        code, failed, error = _pytest(sorted(tests), root, seconds)
    if code != _PASSED:
        raise CatalogueError(f"the tests fail without a mutant: {failed[0] if failed else error}")
    return len(tests)


def _pytest(tests: Sequence[str], root: Path, seconds: float) -> tuple[int, list[str], str]:
    """Return the exit code, the tests that failed, and the last error of the output."""
    report, output = root / "report.xml", root / "output.txt"
    # pytest-xdist stays loaded: tests/conftest.py has a hook of its own for it.
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-x", "-q", f"--junitxml={report}")
    with output.open("w") as written:
        process = subprocess.Popen(
            (*command, *tests), cwd=root, env=tree.environment(root), stdout=written, stderr=written
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            # Interrupted, the hanging test ends its programs; killed, it would leave them running.
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            process.kill()
            process.wait()
            code = _TIMED_OUT
    # "no tests ran" comes after the reason.
    errors = [line for line in output.read_text(errors="replace").splitlines() if line.startswith("E")]
    return code, _failures(report) if code == _FAILED else [], errors[-1] if errors else "no error is shown"


def _failures(report: Path) -> list[str]:
    """Read the tests that failed, as `test_file.py::test_name[parameters]`; a fixture's failure is an error."""
    return [
        f"{case.attrib['classname'].rpartition('.')[2]}.py::{case.attrib['name']}"
        for case in ElementTree.parse(report).iter("testcase")
        if case.find("failure") is not None
    ]
