"""Progress of `make bench`: which parts are done for this commit, and how long each took last time."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

ROOT = Path(__file__).parents[1]
# Figures belong to the last commit of these paths, so that repairing one benchmark keeps the figures of the others.
MEASURED = ("drain", "workers", "pipeline", "schema.sql", "pyproject.toml")


@dataclass
class Progress:
    """State of a results directory.

    Attributes:
        path: File that holds the state.
        commit: Commit that is measured.
        done: Parts that have written their figures for this commit, each as `servers:part`.
        seconds: Duration of the last complete run of each part, by the same name.
    """

    path: Path
    commit: str
    done: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path, commit: str, *, again: bool = False) -> Self:
        """Read the state; no part is done if the commit differs or `again` is set."""
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        done = found["done"] if found.get("commit") == commit and not again else []
        return cls(path, commit, done, found.get("seconds", {}))

    def is_done(self, kind: str, part: str) -> bool:
        return f"{kind}:{part}" in self.done

    def last_time(self, kind: str, part: str) -> str:
        """Format how long the part took last time."""
        seconds = self.seconds.get(f"{kind}:{part}")
        return "not known" if seconds is None else in_words(seconds)

    def ended(self, kind: str, part: str, seconds: float) -> None:
        """Record that a part is done."""
        self.done.append(f"{kind}:{part}")
        self.seconds[f"{kind}:{part}"] = round(seconds, 1)
        text = json.dumps({name: value for name, value in asdict(self).items() if name != "path"}, indent=1)
        self.path.write_text(text + "\n", encoding="utf-8")


def in_words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def commit() -> str:
    """Return the last commit of the measured paths, marked if files differ from it; "" outside git."""
    last = _git("log", "-1", "--format=%h", "--", *MEASURED)
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *MEASURED)
    return f"{last}, changed" if changed else last


def _git(*words: str) -> str:
    ended = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return ended.stdout.strip() if not ended.returncode else ""
