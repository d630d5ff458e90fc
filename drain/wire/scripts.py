"""Lua scripts, which run inside of Redis: each is a file in `lua/` that says its KEYS, ARGV and answer at its top."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_DIRECTORY = Path(__file__).with_name("lua")


@cache
def load(*names: str) -> str:
    """Text of a script, with the scripts before it in front: their functions are visible to it."""
    return "".join((_DIRECTORY / f"{name}.lua").read_text(encoding="utf-8") for name in names)
