"""What `make test-pythons` finds, and what it takes for promised."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests import every_python

README = (every_python.ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readme_promises_the_pythons_of_the_package() -> None:
    named = re.search(r"Python 3\.(\d+) to 3\.(\d+)", README)
    assert named
    first, last = map(int, named.groups())
    assert every_python.promised_minors() == list(range(first, last + 1))


@pytest.mark.usefixtures("processes")
def test_this_python_is_found_but_a_broken_shim_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = tmp_path / "python3.29"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert shim in every_python.candidates()
    found = every_python.newest_of_each_minor()
    assert sys.version_info.minor in found
    assert 29 not in found
