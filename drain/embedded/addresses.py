"""Free ports and socket directories."""

from __future__ import annotations

import os
import socket
from pathlib import Path

# In bytes: macOS allows 104, with the NUL.
_LONGEST_SOCKET_PATH = 100


def free_port() -> int:
    """Find a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def directory_with_room_for(socket_name: str, preferred: Path, fallback: Path) -> Path:
    """Return the preferred directory unless its path is too long."""
    fits = len(os.fsencode(preferred / socket_name)) <= _LONGEST_SOCKET_PATH
    return preferred if fits else fallback
