"""Fingerprints of the SQL that the model was compared with, kept in `statements.txt`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

HERE = Path(__file__).parent
FILE = HERE / "statements.txt"
_CONSTANT = re.compile(r"\bdrain\.[a-z_.]+\.[A-Z_]+\b")
_FUNCTION = re.compile(r"schema\.sql: (\w+)")


def current() -> Mapping[str, str]:
    """Return the fingerprint, as it is now, of each statement that the model names."""
    model = "".join(path.read_text(encoding="utf-8") for path in sorted(HERE.rglob("*.py")))
    texts = {}
    for name in _CONSTANT.findall(model):
        module, _, constant = name.rpartition(".")
        texts[name] = str(getattr(import_module(module), constant))
    schema = (HERE.parent / "schema.sql").read_text(encoding="utf-8")
    for name in _FUNCTION.findall(model):
        versions = re.findall(rf"FUNCTION {name}\(.*?\nEND;?\n", schema, re.S)
        texts[f"schema.sql: {name}"] = "".join(versions)
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in sorted(texts.items())}


def accepted() -> Mapping[str, str]:
    """Return the fingerprints that were compared with the model."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return {name: fingerprint for fingerprint, _, name in (line.partition(" ") for line in lines)}


def accept() -> None:
    """Accept today's statements."""
    lines = [f"{fingerprint} {name}\n" for name, fingerprint in current().items()]
    FILE.write_text("".join(lines), encoding="utf-8")
