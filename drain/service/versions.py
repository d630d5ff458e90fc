"""Versions for the metrics."""

from __future__ import annotations

import platform
from functools import cache
from importlib import metadata


@cache
def versions() -> tuple[str, str]:
    """Return the versions of job-drain, '' if unknown, and Python."""
    try:
        own = metadata.version("job-drain")
    except metadata.PackageNotFoundError:
        own = ""
    return own, platform.python_version()
