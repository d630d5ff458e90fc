"""Fingerprints of the SQL that the model was compared with, kept in `statements.txt`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from proof.statements import Claimed, Statements

HERE = Path(__file__).parent
FILE = HERE / "statements.txt"
_FINISH = "schema.sql: drain_finish"


def names() -> set[str]:
    """Return the SQL constants that the model's statements name."""
    of, claim = Statements(), Claimed(1, 1)
    modelled = (
        *(of.read_due(1), of.move([1], 0, 0), of.record_progress(0, 0), of.claim(1, 1)),
        *(of.finish(claim, ""), of.retry_later(claim, ""), of.extend(claim, "")),
        *(of.redeliver_unclaimed(0, 0, 0), of.redeliver_leases(0), of.redeliver_retries(0)),
    )
    return {atom.statement.name for atom in modelled}


def current() -> Mapping[str, str]:
    """Return the fingerprint of each modelled statement as it is now."""
    texts = {}
    for name in names():
        module, _, constant = name.rpartition(".")
        texts[name] = getattr(import_module(module), constant)
    schema = (HERE.parent / "schema.sql").read_text(encoding="utf-8")
    (texts[_FINISH],) = re.findall(
        r"FUNCTION drain_finish\(job bigint, token bigint, job_salt.*?\nEND\n", schema, re.S
    )
    return {name: hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in sorted(texts.items())}


def accepted() -> Mapping[str, str]:
    """Return the fingerprints that were compared with the model."""
    lines = FILE.read_text(encoding="utf-8").splitlines()
    return {name: fingerprint for fingerprint, _, name in (line.partition(" ") for line in lines)}


def accept() -> None:
    """Accept today's statements."""
    lines = [f"{fingerprint} {name}\n" for name, fingerprint in current().items()]
    FILE.write_text("".join(lines), encoding="utf-8")
