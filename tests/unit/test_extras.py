"""Commands that install job-drain's extras: in texts, and in error messages."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from drain import extras
from tests.pages import DOCS, PAGES, ROOT

NAMES = set(
    tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
)
# The page that explains where job-drain is installed from, and the code that knows it at run time.
EXPLAINED = {DOCS / "index.md", ROOT / "drain" / "extras.py"}
TEXTS = [
    *PAGES,
    *(ROOT / name for name in ("Makefile", "Dockerfile", "docker-compose.yml")),
    *(
        path
        for name in ("deploy", "examples")
        for path in (ROOT / name).rglob("*")
        if path.suffix in {".md", ".yaml", ".yml"}
    ),
    *(path for name in ("drain", "pipeline", "workers", "examples") for path in (ROOT / name).rglob("*.py")),
]
FROM_PYPI = re.compile(r"\bjob-drain\[|pip install[^\n#]*[\s'\"]job-drain['\"\s]")
EXTRAS = re.compile(
    r"(?:\bjob-drain|/clone|/src|'\.|\bextra `?)\[([a-z,]+)\]|\binstall\([\"']([a-z]+)[\"']\)"
)


def test_no_text_installs_from_an_index_that_lacks_job_drain() -> None:
    found = {path for path in TEXTS if FROM_PYPI.search(path.read_text(encoding="utf-8"))}
    assert found == EXPLAINED


def test_each_extra_named_in_a_text_exists() -> None:
    named = {
        extra
        for path in TEXTS
        for of_texts, of_code in EXTRAS.findall(path.read_text(encoding="utf-8"))
        for extra in (of_texts or of_code).split(",")
    }
    assert named == NAMES


def test_the_page_about_installing_lists_each_extra() -> None:
    rows = re.findall(r"^\| (`[a-z`, ]+) \|", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"`([a-z]+)`", " ".join(rows))) == NAMES


@pytest.mark.parametrize(
    ("recorded", "command"),
    [
        (None, "pip install 'job-drain[web]'"),
        (
            {"url": "file:///home/ada/job%20drain", "dir_info": {"editable": True}},
            "pip install --editable '/home/ada/job drain[web]'",
        ),
        ({"url": "file:///src", "dir_info": {}}, "pip install 'job-drain[web] @ file:///src'"),
        (
            {"url": "file:///tmp/job_drain-0.2.0-py3-none-any.whl", "archive_info": {}},
            "pip install 'job-drain[web] @ file:///tmp/job_drain-0.2.0-py3-none-any.whl'",
        ),
        (
            {"url": "https://example.org/job-drain", "vcs_info": {"vcs": "git", "commit_id": "1f"}},
            "pip install 'job-drain[web] @ git+https://example.org/job-drain'",
        ),
    ],
    ids=["index", "editable", "directory", "wheel", "git"],
)
def test_an_extra_is_installed_from_job_drains_own_source(
    recorded: dict[str, Any] | None, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if recorded is not None:
        (tmp_path / "direct_url.json").write_text(json.dumps(recorded))
    monkeypatch.setattr(metadata, "distribution", lambda name: metadata.PathDistribution(tmp_path))
    assert extras.install("web") == command


def test_a_checkout_that_was_not_installed_names_its_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert extras.install("web") == f"pip install --editable '{ROOT}[web]'"
