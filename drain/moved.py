"""Former module names: imports fail with the new name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_CONTRIB = (
    *("alembic", "check", "dev", "django", "events", "rehearsal", "scaling", "slo", "telemetry"),
    *("testing", "web"),
)
MOVED = {f"drain.{name}": f"drain.contrib.{name}" for name in _CONTRIB}


class _Finder:
    """Last finder on `sys.meta_path`; finds nothing."""

    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in MOVED:
            raise ModuleNotFoundError(f"{name} is {MOVED[name]} now", name=name)
        return None


def install() -> None:
    """Explain former names."""
    sys.meta_path.append(_Finder)
