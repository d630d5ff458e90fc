"""Imports of SQLAlchemy by one thread, and never during a fork.

Concurrent imports may get half a module; a child forked during one waits forever for a thread it lacks.
"""

from __future__ import annotations

import importlib
import os
import threading
from types import ModuleType

_importing = threading.Lock()
os.register_at_fork(
    before=_importing.acquire, after_in_parent=_importing.release, after_in_child=_importing.release
)


def load(name: str) -> ModuleType:
    """Import a module; 1 us if loaded."""
    with _importing:
        return importlib.import_module(name)
