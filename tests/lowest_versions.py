"""Prints the lowest version of each package that the tests install and pyproject.toml allows, as constraints of pip."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BOUND = re.compile(r"(?P<name>[\w.-]+)(\[[^\]]*\])?>=(?P<version>[\w.]+)[^;]*(?P<marker>;.*)?")


def requirements(file: dict[str, Any]) -> Iterator[str]:
    """All but those of Spark, whose tests are others."""
    yield from file["project"]["dependencies"]
    for extra, needed in file["project"]["optional-dependencies"].items():
        if extra != "spark":
            yield from needed
    yield from file["dependency-groups"]["test"]


if __name__ == "__main__":
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    for each in sorted({*requirements(project)}):
        bound = BOUND.fullmatch(each)
        assert bound is not None, each
        print(f"{bound['name']}=={bound['version']}{bound['marker'] or ''}")  # noqa: T201
