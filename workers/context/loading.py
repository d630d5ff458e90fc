"""Imports of SQLAlchemy at the first session: by one thread at a time, and never while a process is being forked.

Two threads that begin such an import at once may each get half of a module; and a child that is forked in the middle of
one waits for ever for the thread that it does not have.
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
    """Import a module; costs a microsecond if it is imported already."""
    with _importing:
        return importlib.import_module(name)
