"""What a release needs: a tag, the version and the changelog that agree.

python -m tests.release v0.2.0
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
_RELEASED = re.compile(r"(\S+) \(\d{4}-\d{2}-\d{2}\)")


def version() -> str:
    """Return the version of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project["version"])


def top_section(changelog: str) -> str:
    """Return the heading of the changelog's first section, such as `Unreleased (0.3.0)`."""
    heading = re.search(r"^## (.+)$", changelog, re.MULTILINE)
    return heading[1] if heading else ""


def problem(tag: str, version: str, changelog: str) -> str | None:
    """Return why this tag cannot be released, in one line; None if it can."""
    if tag != f"v{version}":
        return f"tag {tag}: pyproject.toml has version {version}; tag it v{version}, or change the version"
    section = top_section(changelog)
    released = _RELEASED.fullmatch(section)
    if released is None or released[1] != version:
        return f"CHANGELOG.md begins with `## {section}`: a release begins with `## {version} (YYYY-MM-DD)`"
    return None


if __name__ == "__main__":
    sys.exit(problem(sys.argv[1], version(), (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))
