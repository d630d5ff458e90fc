"""Installation commands for optional packages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_CHECKOUT = Path(__file__).resolve().parents[1]


def install(extra: str) -> str:
    """Pip command that adds an extra to this installation."""
    match _origin():
        case {"url": str(url), "dir_info": {"editable": True}}:
            return f"pip install --editable '{unquote(urlsplit(url).path)}[{extra}]'"
        case {"url": str(url), "vcs_info": {"vcs": str(vcs)}}:
            return f"pip install 'job-drain[{extra}] @ {vcs}+{url}'"
        case {"url": str(url)}:
            return f"pip install 'job-drain[{extra}] @ {url}'"
    return f"pip install 'job-drain[{extra}]'"


def _origin() -> dict[str, Any]:
    """Origin recorded by pip; {} for a package index."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        recorded = distribution("job-drain").read_text("direct_url.json")
    except PackageNotFoundError:
        return {"url": _CHECKOUT.as_uri(), "dir_info": {"editable": True}}
    return dict(json.loads(recorded)) if recorded else {}
