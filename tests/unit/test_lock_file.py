"""What the image installs: each package at one version, by hash, within the bounds of `pyproject.toml`."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.dockerfile import instructions
from tests.helpers import ROOT

LOCK = (ROOT / "deploy" / "requirements.txt").read_text(encoding="utf-8")
# Markers as in the image, whatever Python runs the tests.
IMAGE = {"python_version": "3.13", "python_full_version": "3.13.0", "sys_platform": "linux"}


def entries() -> dict[str, str]:
    """Each package of the lock file with the rest of its entry."""
    text = re.sub(r"^\s*#.*\n", "", LOCK, flags=re.MULTILINE).replace("\\\n", "")
    return {line.partition("==")[0]: line.partition("==")[2] for line in text.splitlines() if line.strip()}


def wanted() -> list[Requirement]:
    file = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = file["project"]
    texts = [
        *file["build-system"]["requires"],
        *project["dependencies"],
        *project["optional-dependencies"]["web"],
    ]
    return [each for each in map(Requirement, texts) if each.marker is None or each.marker.evaluate(IMAGE)]


def test_every_dependency_is_locked_to_a_version_within_its_bounds() -> None:
    locked = {name: rest.split()[0] for name, rest in entries().items()}
    for requirement in wanted():
        version = locked[canonicalize_name(requirement.name)]
        assert version in requirement.specifier, f"{requirement} is locked to {version}: run `make lock`"
    assert "psycopg-binary" in locked


def test_every_entry_has_hashes() -> None:
    for name, rest in entries().items():
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", rest), name


def test_the_image_installs_index_packages_only_by_hash() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    installs = [rest for name, rest in instructions(text) if name == "RUN" and "pip install" in rest]
    assert len(installs) == 2
    for line in installs:
        assert "--require-hashes" in line or "--no-deps --no-build-isolation" in line


def test_the_lock_file_targets_the_python_of_the_image() -> None:
    (version,) = re.findall(
        r"^ARG BASE=python:([\d.]+)-slim$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE
    )
    assert f"--python-version {version} " in (ROOT / "Makefile").read_text("utf-8")
