"""Lua scripts; each documents KEYS, ARGV and reply."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_DIRECTORY = Path(__file__).with_name("lua")


@cache
def load(*names: str) -> str:
    """Return a script, after those whose functions it uses."""
    return "".join((_DIRECTORY / f"{name}.lua").read_text(encoding="utf-8") for name in names)
